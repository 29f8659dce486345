"""Which folders are this user's alone, by what leads to them, and where graphs go if theirs is not."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from support.store.users import OTHER, as_root
from support.windows.absent import needs_posix

from onegraph.common import reasons
from onegraph.graph_cache.trust import private_folder
from onegraph.graph_cache.trust.private_folder import RefusedError, check, close_to_group, locate, make


def opened(folder: Path, mode: int, uid: int = -1, gid: int = OTHER) -> None:
    """Give a folder another mode, and another owner or group, which only root can."""
    if os.geteuid() == 0:
        os.chown(folder, uid, gid)
    folder.chmod(mode)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder above `shared / "a" / "home"`, which a test opens to others."""
    folder = tmp_path / "shared"
    (folder / "a").mkdir(parents=True)
    return folder


Prepare = Callable[[Path, Path], object]
LOCATED: dict[str, tuple[Prepare, bool]] = {
    "not there": (lambda shared, home: None, True),
    "of this user alone": (lambda shared, home: home.mkdir(0o700), True),
    "readable": (lambda shared, home: home.mkdir(0o755), True),
    "open to a group": (lambda shared, home: (home.mkdir(), opened(home, 0o2775)), True),  # it is closed to it
    "open to all": (lambda shared, home: (home.mkdir(), opened(home, 0o777)), False),
    "open to all and sticky": (lambda shared, home: (home.mkdir(), opened(home, 0o1777)), False),
    "a file": (lambda shared, home: home.touch(), False),
    "a link to nothing": (lambda shared, home: home.symlink_to("missing"), False),
    "an own link": (lambda shared, home: ((shared / "b").mkdir(), home.symlink_to(shared / "b")), True),
    "a link to what is open": (
        lambda shared, home: ((shared / "b").mkdir(), opened(shared / "b", 0o777), home.symlink_to(shared / "b")),
        False,
    ),
    "not there, parent open to all": (lambda shared, home: opened(home.parent, 0o777), False),
    "not there, parent sticky": (lambda shared, home: opened(home.parent, 0o1777), True),
    "on a way open to all": (lambda shared, home: (home.mkdir(), opened(shared, 0o777)), False),
    "on a sticky way": (lambda shared, home: (home.mkdir(), opened(shared, 0o1777)), True),
    "not there, on a way open to all": (lambda shared, home: opened(shared, 0o777), False),
}
AS_ROOT: dict[str, tuple[Prepare, bool]] = {
    "of another user": (lambda shared, home: (home.mkdir(), opened(home, 0o755, OTHER)), False),
    "not there, parent open to a group": (lambda shared, home: opened(home.parent, 0o2775), False),
    "on a way open to a group": (lambda shared, home: (home.mkdir(), opened(shared, 0o2775)), False),
    "on another user's way": (lambda shared, home: (home.mkdir(), opened(shared, 0o755, OTHER)), False),
    "on another user's sticky way": (lambda shared, home: (home.mkdir(), opened(shared, 0o1777, OTHER)), False),
    "another user's link": (
        lambda shared, home: (
            (shared / "b").mkdir(),
            home.symlink_to(shared / "b"),
            os.chown(home, OTHER, OTHER, follow_symlinks=False),
        ),
        False,
    ),
}


@pytest.mark.parametrize(
    ("prepare", "itself"),
    [
        *(pytest.param(*case, id=name) for name, case in LOCATED.items()),
        *(pytest.param(*case, id=name, marks=as_root) for name, case in AS_ROOT.items()),
    ],
)
def test_a_home_that_others_may_write_is_elsewhere(
    prepare: Prepare, itself: bool, shared: Path, temporary: Path
) -> None:
    home = shared / "a" / "home"
    prepare(shared, home)
    there = os.path.lexists(home)
    found = locate(home)
    assert (found == home) == itself
    assert itself or (found.parent == temporary and found.name.startswith(f"onegraph-{os.geteuid()}-"))
    assert os.path.lexists(home) == there and [*temporary.iterdir()] == []  # it changes nothing


def test_a_home_that_cannot_be_written_is_elsewhere(
    shared: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *args, **options: False)  # as on a read-only file system, for root too
    for home in (shared / "a", shared / "not" / "there"):
        assert locate(home).parent == temporary
    assert locate(shared / "a") != locate(shared / "b")
    monkeypatch.chdir(shared)
    assert locate(Path("a")) == locate(shared / "a")


@as_root
@pytest.mark.parametrize("mode", [0o2775, 0o777, 0o770])
@pytest.mark.parametrize("part", ["shared", "a", "own"])
def test_whoever_may_exchange_a_folder_on_the_way_may_write_it(mode: int, part: str, shared: Path) -> None:
    own = shared / "a" / "own"
    make(own)
    opened({"shared": shared, "a": shared / "a", "own": own}[part], mode)
    assert check(own) == reasons.WritableByOthers(part)
    if part == "own":
        make(own)  # this user's own folder is closed again
        assert check(own) is None and own.stat().st_mode & 0o777 == 0o700
    else:
        with pytest.raises(RefusedError, match=f"other users may write {part}"):
            make(own / "graphs")


@as_root
@pytest.mark.parametrize("mode", [0o755, 0o1777])  # the owner of a sticky folder may rename all that is in it
def test_a_strangers_folder_on_the_way_is_refused(mode: int, shared: Path) -> None:
    make(shared / "a" / "own")
    opened(shared, mode, OTHER)
    assert check(shared / "a" / "own") == reasons.ForeignOwner(str(OTHER))
    assert reasons.ForeignOwner("eve").text == "the folder where graphs are cached belongs to another user (eve)"


def test_roots_folders_are_as_good_as_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    assert (check(tmp_path / "a") is None) == ((tmp_path / "a").stat().st_uid == 0)


@as_root
def test_a_group_of_one_is_nobody_else(shared: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where each user has a group, and a umask of 002 opens all folders to it."""
    monkeypatch.setattr(private_folder, "is_group_of_one", lambda gid: gid == OTHER)
    make(shared / "a" / "own")
    for mode, closed in ((0o775, True), (0o777, False)):
        opened(shared, mode)
        assert (check(shared / "a" / "own") is None) == closed
        assert (locate(shared / "home") == shared / "home") == closed


@needs_posix("Windows' folders have no groups and modes")
def test_who_is_in_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    import grp
    import pwd

    me, more = pwd.getpwuid(os.geteuid()), pwd.struct_passwd(("eve", "x", OTHER, 77, "", "/", ""))
    members: dict[int, list[str]] = {77: [], 78: [me.pw_name], 79: [me.pw_name, "bob"], 80: []}
    monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group(("g", "x", gid, members[gid])))
    monkeypatch.setattr(pwd, "getpwall", lambda: [me, more])
    private_folder.is_group_of_one.cache_clear()
    found = [private_folder.is_group_of_one(gid) for gid in (77, 78, 79, 80, 81)]
    private_folder.is_group_of_one.cache_clear()
    assert found == [False, True, False, False, False]


@pytest.mark.parametrize(("before", "after"), [(0o2775, 0o2755), (0o777, 0o777), (0o755, 0o755)])
@needs_posix("Windows' folders have no groups and modes")
def test_a_group_loses_what_a_umask_gave_it(before: int, after: int, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(before)
    close_to_group(tmp_path / "a")
    assert (tmp_path / "a").stat().st_mode & 0o7777 == after


@as_root
def test_links_on_the_way_count_with_what_they_lead_through(shared: Path, tmp_path: Path) -> None:
    link, way = tmp_path / "link", Path("b") / "own"
    make(shared / "a" / way)
    link.symlink_to(Path("shared") / "a" / ".." / "a")
    assert check(link / way) is None
    opened(shared / "a", 0o775)
    assert check(link / way) == reasons.WritableByOthers("a")
    (shared / "a").chmod(0o755)
    os.chown(link, OTHER, OTHER, follow_symlinks=False)
    assert check(link / way) == reasons.ForeignOwner(str(OTHER))
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(OSError, match="symbolic links"):
        private_folder._check_way(tmp_path / "circle" / "x")


@as_root
def test_root_is_root_in_a_container_that_does_not_know_it() -> None:
    """There its files seem to belong to nobody, and nearly all folders lie in one of its."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)

    def enter() -> None:
        os.setgroups([])
        os.setuid(OTHER)
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: its files in /proc are its own again
        if ctypes.CDLL(None).unshare(0x10000000) == 0:  # CLONE_NEWUSER
            Path("/proc/self/uid_map").write_text(f"{OTHER} {OTHER} 1")
            private_folder._unmapped_uid.cache_clear()
            with tempfile.TemporaryDirectory(dir="/tmp") as own:
                sending.send((Path("/").stat().st_uid, check(Path(own)), locate(Path(own)) == Path(own)))
        sending.close()

    process = context.Process(target=enter)
    process.start()
    sending.close()
    try:
        owner, wrong, itself = receiving.recv()
    except EOFError:
        pytest.skip("this user may make no user namespace")
    finally:
        process.join()
    assert owner == int(Path("/proc/sys/fs/overflowuid").read_text())
    assert wrong is None and itself
