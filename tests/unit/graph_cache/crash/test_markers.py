"""Crash markers tell of processes that died, and of nothing else."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
from pathlib import Path

import pytest

from onegraph.graph_cache.crash import liveness
from onegraph.graph_cache.crash.markers import Markers


@pytest.fixture
def markers(tmp_path: Path) -> Markers:
    return Markers(tmp_path / "home")


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    return tmp_path / "entry"


def files(home: Path) -> list[Path]:
    return [path for path in home.rglob("*") if path.is_file()]


def die(markers: Markers, entry: Path, devices: int = 1) -> None:
    """Have a process end while it captures an entry and loads it on some devices."""

    def load() -> None:
        with contextlib.ExitStack() as held:
            for activity in (markers.capturing, *[markers.loading] * devices):
                held.enter_context(activity(entry))
            os._exit(1)

    process = multiprocessing.get_context("fork").Process(target=load)
    process.start()
    process.join()


def test_a_live_process_is_no_crash(markers: Markers, entry: Path, tmp_path: Path) -> None:
    with contextlib.suppress(KeyboardInterrupt), markers.loading(entry), markers.capturing(entry):
        assert len(files(tmp_path / "home")) == 2
        assert not markers.died_once_while_loading(entry) and not markers.died_while_capturing(entry)
        raise KeyboardInterrupt
    assert not files(tmp_path / "home")


@pytest.mark.parametrize("devices", [1, 2])
def test_the_second_death_in_a_row_counts(devices: int, markers: Markers, entry: Path, tmp_path: Path) -> None:
    """One may be bad luck. The several markers of one process are one death."""
    for _ in range(2):
        die(markers, entry, devices)
        assert markers.died_once_while_loading(entry) and not markers.died_while_loading(entry)
        assert markers.note_death(entry) and not markers.note_death(entry)
        assert not markers.died_while_loading(entry)
        die(markers, entry, devices)
        assert markers.died_while_loading(entry)
        markers.clear_loading(entry)
        assert not markers.died_once_while_loading(entry)
    assert markers.died_while_capturing(entry)  # it is never tried again here
    assert not markers.died_while_capturing(tmp_path / "another")


# What of a marker differs from one of this process, and whether it and its record tell of a death here.
OTHERS: list[tuple[dict[str, object], bool, bool]] = [
    ({}, True, True),
    ({"machine": "renamed"}, True, True),  # a container of this machine
    ({"boot": "theirs"}, False, True),  # of another machine of this name, or of this one before its last start
    ({"boot": ""}, False, True),  # it had no lock
    ({"machine": "another", "boot": "theirs"}, False, False),
    ({"process": 1}, False, False),
]


@pytest.mark.parametrize(("changes", "marker", "record"), OTHERS, ids=str)
def test_whose_marker_tells_of_a_death(
    changes: dict[str, object], marker: bool, record: bool, markers: Markers, entry: Path, tmp_path: Path
) -> None:
    die(markers, entry)
    (file,) = files(tmp_path / "home" / ".loading")
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    assert markers.died_once_while_loading(entry) == marker
    recorded = file.rename(file.with_name(file.name + ".death"))
    assert markers.died_once_while_loading(entry) == record and not markers.note_death(entry)
    markers.clear_loading(entry)
    assert recorded.exists() != record


def test_a_strangers_file_is_no_marker(markers: Markers, entry: Path, tmp_path: Path) -> None:
    """One that a process made and did not fill, since it died before it loaded anything, goes after a success."""
    with markers.loading(entry):
        (old,) = files(tmp_path / "home")
    others = [old.with_name(name) for name in (".DS_Store", "²", "9" * 30, "x.death", liveness.new_nonce())]
    for file in (old, *others):
        file.touch()
    for file in (old, *others[:-1]):
        os.utime(file, (0, 0))
    assert not markers.note_death(entry) and not markers.died_once_while_loading(entry)
    markers.clear_loading(entry)
    assert sorted(files(tmp_path / "home")) == sorted(others)  # the last may still be written


def test_a_home_that_cannot_be_written_is_no_error(entry: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("no folder")
    with Markers(home).loading(entry):
        assert home.read_text() == "no folder" and [*tmp_path.iterdir()] == [home]
