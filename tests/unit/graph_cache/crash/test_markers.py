"""Crash markers tell of processes that died, and of nothing else."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from onegraph.graph_cache.crash import liveness
from onegraph.graph_cache.crash.liveness import this_process
from onegraph.graph_cache.crash.markers import Markers


@pytest.fixture
def markers(tmp_path: Path) -> Markers:
    return Markers(tmp_path / "home")


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    return tmp_path / "entry"


def files(home: Path) -> list[Path]:
    return [path for path in home.rglob("*") if path.is_file()]


def in_a_process(action: Callable[[], None]) -> None:
    process = multiprocessing.get_context("fork").Process(target=action)
    process.start()
    process.join()


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

    in_a_process(die)
    assert markers.died_while_capturing(entry) and not markers.died_while_loading(entry)  # once may be bad luck
    in_a_process(die)
    assert markers.died_while_loading(entry) and markers.died_while_capturing(entry)
    assert not markers.died_while_loading(tmp_path / "another")
    markers.clear_loading(entry)
    assert not markers.died_while_loading(entry)
    assert markers.died_while_capturing(entry)  # it is never tried again here


def test_an_unfinished_marker_goes_after_a_success(markers: Markers, tmp_path: Path) -> None:
    """Its process died before it wrote who it is, and so before it loaded anything."""
    entry = tmp_path / "entry"
    with markers.loading(entry):
        (marker,) = files(tmp_path / "home")
    old, new, other = marker, marker.with_name(liveness.new_nonce()), marker.with_name(".DS_Store")
    for file in (old, new, other):
        file.touch()
    for file in (old, other):
        os.utime(file, (0, 0))
    assert not markers.note_death(entry)
    markers.clear_loading(entry)
    assert sorted(files(tmp_path / "home")) == sorted([new, other])


@pytest.mark.parametrize("name", [".DS_Store", "²", "9" * 30])
def test_a_strangers_file_is_no_marker(name: str, markers: Markers, tmp_path: Path) -> None:
    entry = tmp_path / "entry"
    for activity in (markers.loading, markers.capturing):
        with activity(entry):
            for marker in files(tmp_path / "home"):
                marker.with_name(name).touch()
    assert not markers.died_while_loading(entry)
    assert not markers.died_while_capturing(entry)


def test_a_home_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("no folder")
    loaded = False
    with Markers(tmp_path / "home").loading(tmp_path / "entry"):
        loaded = True
    assert loaded
    assert (tmp_path / "home").read_text() == "no folder"
    assert [*tmp_path.iterdir()] == [tmp_path / "home"]


def left(markers: Markers, entry: Path, text: str | None, name: str = "m-1") -> Path:
    """A marker of a process that was there before."""
    with markers.loading(entry):
        folder = files(markers._home)[0].parent
    (folder / name).write_text(text or "")
    if '"before"' in (text or ""):
        os.utime(folder / name, (1e9, 1e9))
    return folder / name


def marker(**changes: object) -> str:
    """The content of this process' marker, with some of its fields changed."""
    return json.dumps(json.loads(this_process().to_text()) | changes)


OTHERS = [
    ({}, 0),
    ({"started": "1"}, 1),  # its id was given to another process
    ({"boot": "before"}, 1),
    ({"boot": "before", "namespace": "pid:[1]"}, 1),
    ({"boot": "another"}, 0),  # of another machine of this name, which runs now
    ({"namespace": "pid:[1]"}, 0),  # of another container: nobody knows
    ({"namespace": "pid:[1]", "started": "1"}, 0),
    ({"machine": "another", "boot": "another"}, 0),
    ({"pid": "1"}, 0),
    ({"pid": -1}, 0),
    ({"started": 1}, 0),
]


@pytest.mark.parametrize(("changes", "deaths"), OTHERS, ids=str)
def test_whose_marker_tells_of_a_death(changes: dict[str, object], deaths: int, markers: Markers, entry: Path) -> None:
    left(markers, entry, marker(**changes))
    assert markers.note_death(entry) == bool(deaths)


def test_one_process_dies_once(markers: Markers, entry: Path) -> None:
    for name in ("m-1", "m-2"):  # it loaded the graph on two devices
        left(markers, entry, marker(started="1"), name)
    assert not markers.died_while_loading(entry)
    assert markers.note_death(entry) and not markers.note_death(entry)
    assert not markers.died_while_loading(entry)


def test_the_second_death_in_a_row_counts(markers: Markers, entry: Path) -> None:
    left(markers, entry, marker(started="1"))
    assert markers.note_death(entry)
    left(markers, entry, marker(started="2"))
    assert markers.died_while_loading(entry)
    markers.clear_loading(entry)
    left(markers, entry, marker(started="3"))
    assert not markers.died_while_loading(entry)


def test_a_zombie_is_dead() -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    try:
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        started = liveness._stat(child)[1]
        owner = dataclasses.replace(this_process(), pid=child, started=started)
        assert liveness.state(owner, Path("owner")) == ("dead" if started else "alive")
    finally:
        os.waitpid(child, 0)


def test_without_proc_the_id_decides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(liveness, "_PROC", tmp_path)
    assert this_process() == liveness.Owner(os.getpid(), liveness.machine_id())
    assert liveness.state(this_process(), tmp_path / "owner") == "alive"
    monkeypatch.setattr(liveness, "runs", lambda pid: False)
    assert liveness.state(this_process(), tmp_path / "owner") == "dead"


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 4000, "null", '{"pid": true}', "\udcff"])
def test_a_damaged_owner_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "owner").write_text(text, errors="surrogateescape")
    assert liveness.read_owner(tmp_path / "owner") is None
