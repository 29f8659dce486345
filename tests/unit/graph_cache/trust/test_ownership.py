"""Folders and files that others may write or own are refused, and the store makes none such."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.store.entries import key, publish, snapshot

from onegraph.common import reasons
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.first_use_results import FirstUse
from onegraph.graph_cache.lookup import Hit, Miss
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust import ownership

OTHER = 12345  # nobody's number
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
PARTS = ["graph.aoti", "manifest.json", "signature.json", "outcome.json", ".", "..", "../..", "../../.."]


@pytest.fixture
def entry(store: Store, checkpoint: ModelSource) -> Entry:
    made = publish(store, checkpoint)
    store.remember(made, FirstUse(eager_ms=1.0))
    return made


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0o002)
    yield
    os.umask(before)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("bit", [0o020, 0o002])
def test_what_others_may_write_is_loaded_and_not_believed(
    part: str, bit: int, store: Store, checkpoint: ModelSource, tuned: ModelSource, entry: Entry
) -> None:
    """A signature covers the files, and the copy that is loaded is compared with it. Nothing else there counts."""
    path = (entry.folder / part).resolve()
    path.chmod(path.stat().st_mode | bit)
    before = snapshot(entry.folder)
    assert store.lookup(key(), checkpoint) == Hit(entry)
    assert store.lookup(key(), tuned) == Hit(entry, foreign=True)
    with store.private(entry) as copy:
        assert isinstance(copy, Path) and (copy / "graph.aoti").read_bytes() == b"code"
    assert store.sibling(key(shapes={}), checkpoint) is None
    assert store.first_use(entry) == FirstUse()
    store.remember(entry, FirstUse(eager_ms=2.0))
    assert snapshot(entry.folder) == before
    assert ownership.check(entry.folder) == reasons.WritableByOthers(path.name)
    assert reasons.WritableByOthers("x.graphs").text == "other users may write x.graphs, where graphs are cached"


@as_root
@pytest.mark.parametrize("part", PARTS)
def test_what_another_user_owns_is_loaded_and_not_believed(
    part: str, store: Store, checkpoint: ModelSource, entry: Entry
) -> None:
    os.chown(entry.folder / part, OTHER, OTHER)
    assert store.lookup(key(), checkpoint) == Hit(entry)
    assert store.sibling(key(shapes={}), checkpoint) is None
    assert store.first_use(entry) == FirstUse()
    (entry.folder / "signature.json").unlink()
    os.chown(entry.folder, OTHER, OTHER)
    assert store.lookup(key(), checkpoint) == Miss(reasons.ForeignOwner(str(OTHER)))
    assert reasons.ForeignOwner("eve").text == "the cached graph belongs to another user (eve)"


def test_roots_files_are_as_good_as_own(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    wrong = ownership.check(entry.folder)
    assert wrong is None if entry.folder.stat().st_uid == 0 else isinstance(wrong, reasons.ForeignOwner)


@as_root
def test_a_link_of_another_user_is_seen(store: Store, checkpoint: ModelSource, entry: Entry, tmp_path: Path) -> None:
    graphs = entry.folder.parents[2]
    graphs.rename(tmp_path / "moved")
    graphs.symlink_to(tmp_path / "moved")
    assert isinstance(store.lookup(key(), checkpoint), Hit)
    assert ownership.check(entry.folder) is None  # this user's own link
    os.chown(graphs, OTHER, OTHER, follow_symlinks=False)
    assert ownership.check(entry.folder) == reasons.ForeignOwner(str(OTHER))


@pytest.mark.usefixtures("open_umask")
def test_a_loose_umask_leaves_the_store_closed(
    store: Store, checkpoint: ModelSource, tuned: ModelSource, models: Path
) -> None:
    assert ownership.check(publish(store, checkpoint).folder) is None
    found = store.lookup(key(), tuned)
    assert isinstance(found, Hit)
    adopted = store.share_with_model(found, key(), tuned)
    with store.loading(adopted):
        pass
    at_home = publish(store, ModelSource(None, "aaaaaaaaaaaa"))
    for made in (adopted, at_home):
        store.remember(made, FirstUse(eager_ms=1.0))
    assert store.lookup(key(), tuned) == Hit(adopted)
    assert store.lookup(key(), ModelSource(None, "aaaaaaaaaaaa")) == Hit(at_home)


def test_an_old_folder_is_closed_to_its_group(store: Store, checkpoint: ModelSource, models: Path) -> None:
    (models / "photo.graphs").mkdir()
    (models / "photo.graphs").chmod(0o775)
    entry = publish(store, checkpoint)
    assert entry.folder.is_relative_to(models)
    assert store.lookup(key(), checkpoint) == Hit(entry)


def test_a_folder_open_to_all_is_not_used(store: Store, checkpoint: ModelSource, models: Path) -> None:
    """As on file systems without modes: graphs go to the user's folder instead."""
    (models / "photo.graphs").mkdir()
    (models / "photo.graphs").chmod(0o777)
    entry = publish(store, checkpoint)
    assert entry.folder.is_relative_to(store.home)
    assert store.lookup(key(), checkpoint) == Hit(entry)
    assert (models / "photo.graphs").stat().st_mode & 0o777 == 0o777


def test_no_folder_but_open_ones(store: Store) -> None:
    store.home.mkdir()
    store.home.chmod(0o777)
    with pytest.raises(OSError, match="other users may write home, where graphs are cached"):
        publish(store, ModelSource(None, "aaaaaaaaaaaa"))


def test_what_compiles_share_is_closed_to_others(store: Store) -> None:
    store.home.mkdir()
    (store.home / "compiler-cache").mkdir(mode=0o755)
    cache = store.make_compiler_cache()
    assert cache == store.home / "compiler-cache"
    assert cache.stat().st_mode & 0o777 == 0o700
    cache.chmod(0o777)
    assert store.make_compiler_cache() is None  # whatever is in it
    cache.chmod(0o755)
    store.home.chmod(0o777)
    assert store.make_compiler_cache() is None


@as_root
def test_a_strangers_compiler_cache_is_not_used(store: Store) -> None:
    cache = store.make_compiler_cache()
    assert cache is not None
    os.chown(cache, OTHER, OTHER)
    assert store.make_compiler_cache() is None


# The way to a folder ----------------------------------------------------------------------------------------------


@pytest.fixture
def way(tmp_path: Path) -> Path:
    """A folder that is this user's alone, five folders below one that a test opens: `tmp_path / "shared"`."""
    folder = tmp_path / "shared" / "a" / "b" / "c" / "d" / "own"
    folder.mkdir(mode=0o700, parents=True)
    return folder


def open_up(folder: Path, mode: int, gid: int = OTHER) -> None:
    os.chown(folder, -1, gid)
    folder.chmod(mode)


@as_root
@pytest.mark.parametrize("mode", [0o2775, 0o777, 0o770])
def test_whoever_may_exchange_a_folder_on_the_way_may_write_what_is_in_it(
    mode: int, way: Path, tmp_path: Path, entry: Entry
) -> None:
    open_up(tmp_path / "shared", mode)
    assert ownership.check_folder(way) == reasons.WritableByOthers("shared")
    with pytest.raises(OSError, match="other users may write shared"):
        ownership.make_private(way / "copies")
    open_up(entry.folder.parents[3], mode)
    assert ownership.check(entry.folder) == reasons.WritableByOthers(entry.folder.parents[3].name)


@as_root
def test_a_stranger_on_the_way_may_write_what_is_in_it(way: Path, tmp_path: Path) -> None:
    for mode in (0o755, 0o1777):  # the owner of a sticky folder may rename all that is in it
        (tmp_path / "shared").chmod(mode)
        os.chown(tmp_path / "shared", OTHER, OTHER)
        assert ownership.check_folder(way) == reasons.ForeignOwner(str(OTHER))


@as_root
def test_a_sticky_folder_on_the_way_is_closed_enough(way: Path, tmp_path: Path) -> None:
    open_up(tmp_path / "shared", 0o1777)
    assert ownership.check_folder(way) is None
    ownership.make_private(way / "copies")


@as_root
def test_a_group_of_one_on_the_way_is_nobody_else(way: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where each user has a group, and a umask of 002 opens all folders to it."""
    monkeypatch.setattr(ownership, "is_group_of_one", lambda gid: gid == OTHER)
    open_up(tmp_path / "shared", 0o775)
    assert ownership.check_folder(way) is None
    open_up(tmp_path / "shared", 0o777)
    assert ownership.check_folder(way) == reasons.WritableByOthers("shared")


def test_who_is_in_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    import grp
    import pwd

    me, more = pwd.getpwuid(os.geteuid()), pwd.struct_passwd(("eve", "x", OTHER, 77, "", "/", ""))
    members: dict[int, list[str]] = {77: [], 78: [me.pw_name], 79: [me.pw_name, "bob"], 80: []}
    monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group(("g", "x", gid, members[gid])))
    monkeypatch.setattr(pwd, "getpwall", lambda: [me, more])
    ownership.is_group_of_one.cache_clear()
    assert [ownership.is_group_of_one(gid) for gid in (77, 78, 79, 80, 81)] == [False, True, False, False, False]
    ownership.is_group_of_one.cache_clear()


@as_root
def test_links_on_the_way_count_with_what_they_lead_through(way: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(Path("shared") / "a" / ".." / "a" / "b")
    assert ownership.check_folder(link / "c" / "d" / "own") is None
    open_up(tmp_path / "shared" / "a", 0o775)
    assert ownership.check_folder(link / "c" / "d" / "own") == reasons.WritableByOthers("a")
    (tmp_path / "shared" / "a").chmod(0o755)
    os.chown(link, OTHER, OTHER, follow_symlinks=False)
    assert ownership.check_folder(link / "c" / "d" / "own") == reasons.ForeignOwner(str(OTHER))
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(OSError, match="symbolic links"):
        ownership._judge_way(str(tmp_path / "circle" / "x"))


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
            ownership._unmapped_uid.cache_clear()
            with tempfile.TemporaryDirectory(dir="/tmp") as own:
                sending.send((Path("/").stat().st_uid, ownership.check_folder(Path(own))))
        sending.close()

    process = context.Process(target=enter)
    process.start()
    sending.close()
    try:
        owner, wrong = receiving.recv()
    except EOFError:
        pytest.skip("this user may make no user namespace")
    finally:
        process.join()
    assert owner == int(Path("/proc/sys/fs/overflowuid").read_text())
    assert wrong is None
