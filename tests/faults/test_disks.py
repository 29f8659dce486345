"""Disks that are full, cannot be written or read, or cannot do what others do."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from support.processes.faults import cut, disk, failing, fill, folders_not_synced, nothing_saved, read_only
from support.processes.lives import Case, Life, Script, copy_case, live, new_case
from support.store.entries import key, new_entry, publish, snapshot

from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.lookup import Hit
from onegraph.graph_cache.model_hash import ModelSource

UID = 65534 if os.geteuid() == 0 else None  # whom permissions hold back


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of two megabytes."""
    (tmp_path / "small").mkdir()
    with disk(tmp_path / "small", 2 << 20) as folder:
        yield folder


@pytest.fixture
def foreign(compiled: Case) -> Iterator[Case]:
    """The user's folders, of somebody who is not root, in a place that is open to all."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as open_to_all:
        root = Path(open_to_all)
        case = copy_case(compiled, root / "user")
        if UID is not None:
            for path in [root, *root.rglob("*")]:
                os.chown(path, UID, UID)
        yield case


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_folders_that_cannot_be_synced(number: int, empty: Case) -> None:
    fault = partial(folders_not_synced, number)
    report = live(empty, fault, runs=3).fine()
    assert (report.compiles, report.codes) == (1, ())
    live(empty, fault).restored()
    assert (empty.compiles, empty.leftovers()) == (1, [])


def test_no_room_beside_the_checkpoint(compiled: Case, tmp_path: Path) -> None:
    """The user's folder takes the graph."""
    case = new_case(tmp_path / "user", compiled.golden)
    with disk(case.models, 1 << 20) as models:
        (models / "photo.safetensors").write_bytes(b"weights")
        fill(models, 16 << 10)
        report = live(case, runs=2).fine()
        assert (report.compiles, report.codes) == (1, ())
        live(case).restored()
        assert case.entry.folder.is_relative_to(case.home)
        assert (case.compiles, case.leftovers()) == (1, [])


def test_no_room_anywhere(compiled: Case, small: Path) -> None:
    """Compiled in vain once, and again when there is room."""
    case = new_case(small / "user", compiled.golden)
    filler = fill(small, 16 << 10)
    for _ in range(3):
        report = live(case, runs=3).fine()
        assert report.compiled_calls == 0
        assert set(report.codes) <= {"not_saved", "waits_for_disk"}
        assert case.compiles <= 1
        assert case.leftovers() == []
    filler.unlink()
    live(case, runs=2).fine()
    assert case.leftovers() == []


LATE = [errno.ENOSPC, errno.EIO, errno.EDQUOT]  # what a disk says when all seemed to be written


@pytest.mark.parametrize("number", LATE)
def test_a_disk_that_fails_in_the_end(number: int, empty: Case) -> None:
    """The user's folder, on another one, takes the graph."""
    report = live(empty, partial(nothing_saved, empty.models, number), runs=3).fine()
    assert (report.compiles, report.codes) == (1, ())
    assert empty.entry.folder.is_relative_to(empty.home)
    live(empty).restored()
    assert (empty.compiles, empty.leftovers()) == (1, [])


@pytest.mark.parametrize("number", LATE)
def test_disks_that_all_fail_in_the_end(number: int, empty: Case) -> None:
    """One compile in vain for each process: no other can know of it, since that cannot be written down either."""
    with empty.store.staging():  # so that there is a key
        pass
    for life in range(2):
        report = live(empty, partial(nothing_saved, empty.root, number), runs=3).fine()
        assert (report.compiles, report.compiled_calls) == (0, 0)
        assert empty.compiles == life + 1
    assert empty.leftovers() == []


def test_no_room_to_load(compiled: Case, small: Path) -> None:
    """A library cannot be unpacked: eager, nothing is quarantined, and later it is restored."""
    case = copy_case(compiled, small / "user")
    filler = fill(small, 4 << 10)
    report = live(case, runs=2).fine()
    assert report.codes == ("load_failed", "load_failed")
    assert case.leftovers() == []
    filler.unlink()
    live(case).restored()
    assert case.compiles == 0


def test_a_damaged_copy_in_a_read_only_place(case: Case) -> None:
    """A sound graph in the home takes its place."""
    shutil.rmtree(case.home / "graphs")
    cut(case.copy / "graph.aoti")
    with read_only(case.models):
        live(case, runs=2).fine()
        live(case).restored()
        assert (case.compiles, case.leftovers()) == (1, [])


def test_a_sound_copy_in_a_read_only_place(case: Case) -> None:
    shutil.rmtree(case.home / "graphs")
    before = snapshot(case.models)
    with read_only(case.models):
        live(case).restored()
        live(case).restored()
    assert (case.compiles, case.leftovers()) == (0, [])
    assert snapshot(case.models) == before


@pytest.mark.parametrize("file", ["manifest.json", "signature.json", "outcome.json", "graph.aoti", "."])
def test_a_file_that_is_closed_to_this_user(file: str, foreign: Case) -> None:
    """It is this user's, and stays so: like a damaged one, the copy beside the checkpoint takes its place."""
    (entry,) = foreign.home.glob("graphs/toy/*")
    mode = (entry / file).stat().st_mode
    (entry / file).chmod(0)
    report = Life(Script(foreign, runs=2, uid=UID)).end().fine()
    if file == ".":
        assert report.codes == ("unreadable_now", "unreadable_now")
        (entry / file).chmod(mode)
    else:
        assert report.codes == (("compiled_again_later",) if file in ("manifest.json", "graph.aoti") else ())
        assert report.restores == 1
    Life(Script(foreign, uid=UID)).end().restored()
    assert (foreign.compiles, foreign.leftovers()) == (0, [])


# One change that fails --------------------------------------------------------------------------------------------

THERE = key(dtype="float16")


Act = Callable[[Case, Entry], object]


def publishes(case: Case, entry: Entry) -> None:
    with contextlib.suppress(OSError), case.store.staging() as staged:  # as a compile does
        (staged / "graph.aoti").write_bytes(b"code")
        case.store.publish(key(), staged, new_entry())


def keeps(case: Case, entry: Entry) -> None:
    case.store.keep_beside(entry, case.source)


def takes(case: Case, entry: Entry) -> None:
    case.store.take(key(), case.source)


def attempt(act: Act, case: Case, entry: Entry, place: int, number: int) -> bool:
    """In a process of its own, have one change fail; whether there were so many."""
    process = os.fork()
    if process == 0:
        code = 2
        try:
            with failing(place, number) as failed:
                act(case, entry)
            code = int(failed())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert code in (0, 1), (act.__name__, place)
    return code == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, pytest.param(errno.EIO, marks=pytest.mark.full)])
@pytest.mark.parametrize("act", [publishes, keeps, takes])
def test_each_change_may_fail(act: Act, number: int, tmp_path: Path) -> None:
    """Nothing but a publish's OSError comes out, what was there stays, nothing is left, and the next try succeeds."""
    for place in itertools.count():
        case = new_case(tmp_path / str(place))
        there = publish(case.store, case.source, THERE, b"there")
        source = case.source if act is takes else ModelSource(None, "0")
        made = there if act is publishes else publish(case.store, source)
        if act is takes:
            shutil.rmtree(made.folder)
        before = [snapshot(folder) for folder in (there.folder, *case.models.glob("*.graphs/*/unet/*"))]
        failed = attempt(act, case, made, place, number)
        assert [snapshot(Path(next(iter(one)))) for one in before] == before
        case.grow_older()
        case.store.sweep()
        case.store.sweep_beside(case.source)
        assert case.leftovers() == [], place
        assert not attempt(act, case, made, 1 << 30, number)
        assert isinstance(case.store.find(key()), Hit) and isinstance(case.store.find(THERE), Hit)
        assert len([*case.models.glob("*.graphs/*/unet/[!.]*")]) == (1 if act is publishes else 2)
        if not failed:
            break
    assert place > 10, place
