"""Crash markers tell of processes that died, and of nothing else."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from onegraph.graph_cache.markers import Markers


@pytest.fixture
def markers(tmp_path: Path) -> Markers:
    return Markers(tmp_path / "home")


def files(home: Path) -> list[Path]:
    return [path for path in home.rglob("*") if path.is_file()]


def test_a_marker_goes_even_after_an_error(markers: Markers, tmp_path: Path) -> None:
    for activity in (markers.loading, markers.capturing):
        with pytest.raises(KeyboardInterrupt), activity(tmp_path / "entry"):
            raise KeyboardInterrupt
    assert not files(tmp_path / "home")


def test_a_live_process_is_no_crash(markers: Markers, tmp_path: Path) -> None:
    entry = tmp_path / "entry"
    with markers.loading(entry), markers.capturing(entry):
        assert len(files(tmp_path / "home")) == 2
        assert not markers.died_while_loading(entry)
        assert not markers.died_while_capturing(entry)


def test_a_dead_process_leaves_its_marker(markers: Markers, tmp_path: Path) -> None:
    entry = tmp_path / "entry"

    def die() -> None:
        with markers.capturing(entry), markers.loading(entry):
            os._exit(1)

    process = multiprocessing.get_context("fork").Process(target=die)
    process.start()
    process.join()
    assert markers.died_while_loading(entry) and markers.died_while_capturing(entry)
    assert not markers.died_while_loading(tmp_path / "another")
    markers.clear_loading(entry)
    assert not markers.died_while_loading(entry)
    assert markers.died_while_capturing(entry)  # it is never tried again here


@pytest.mark.parametrize("name", [".DS_Store", "²", "9" * 30])
def test_a_strangers_file_is_no_marker(name: str, markers: Markers, tmp_path: Path) -> None:
    entry = tmp_path / "entry"
    for activity in (markers.loading, markers.capturing):
        with activity(entry):
            for marker in files(tmp_path / "home"):
                marker.with_name(name).touch()
    assert not markers.died_while_loading(entry)
    assert not markers.died_while_capturing(entry)


def test_the_folders_on_disk_keep_their_names(markers: Markers, tmp_path: Path) -> None:
    with markers.loading(tmp_path / "entry"), markers.capturing(tmp_path / "entry"):
        assert {path.name for path in (tmp_path / "home").iterdir()} == {".loading", ".recording"}


def test_a_home_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("no folder")
    with Markers(tmp_path / "home").loading(tmp_path / "entry"):
        pass
