"""Leases: what a process has loaded stays until it lets go or ends, and nobody else can hold it."""

from __future__ import annotations

import multiprocessing
import os
import threading
from pathlib import Path

import pytest
from support.store.entries import NOWHERE, publish
from support.store.sized import left, listed, usable
from support.store.users import as_root, as_user
from support.windows.absent import needs_posix

from onegraph.common.reasons import GraphRemoved
from onegraph.graph_cache.disk import leases
from onegraph.graph_cache.disk.inventory import over
from onegraph.graph_cache.disk.leases import Lease
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.store import Store


def hold(folder: Path, ready: multiprocessing.synchronize.Event) -> None:
    lease = leases.take(folder)
    assert isinstance(lease, Lease)
    ready.set()
    multiprocessing.Event().wait()


def test_graphs_in_use_stay_until_their_process_ends(store: Store, three: list[Entry]) -> None:
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=hold, args=(three[0].folder, ready))
    process.start()
    assert ready.wait(60)
    done = store.disk.prune(over(1))
    assert [one.path for one in done.used] == [three[0].folder]
    assert [one.path for one in store.disk.entries() if one.in_use] == [three[0].folder]
    assert store.disk.delete(listed(store, three[0])) == "used"
    assert store.private.remove(three[0].folder, 0.0) == "used"
    process.kill()
    process.join()
    assert store.disk.delete(listed(store, three[0])) == "removed"
    assert left(store) == []


@needs_posix("under wine a folder goes although one of its files is open, which Windows refuses")
def test_a_lease_ends_with_its_object(three: list[Entry]) -> None:
    lease = leases.take(three[0].folder)
    assert leases.use_of(three[0].folder) == "used"
    del lease
    assert leases.use_of(three[0].folder) == "free"


@needs_posix("under wine a folder goes although one of its files is open, which Windows refuses")
def test_a_lease_may_be_let_go_of_twice(three: list[Entry]) -> None:
    lease = leases.take(three[0].folder)
    assert isinstance(lease, Lease)
    for _ in range(2):
        lease.release()
        assert leases.use_of(three[0].folder) == "free"
    Lease().release()  # of a folder that takes no locks


@needs_posix("under wine a folder goes although one of its files is open, which Windows refuses")
def test_either_the_graph_is_removed_or_it_is_loaded(store: Store) -> None:
    """Never both, whoever comes first."""
    for number in range(30):
        entry = publish(store, NOWHERE, usable(number))
        start, found = threading.Barrier(2), list[object]()

        def load(entry: Entry = entry, start: threading.Barrier = start, found: list[object] = found) -> None:
            start.wait()
            found.append(leases.take(entry.folder))

        thread = threading.Thread(target=load)
        thread.start()
        start.wait()
        removed = store.private.remove(entry.folder, 0.0)
        thread.join()
        assert (removed, type(found[0])) in (("removed", GraphRemoved), ("used", Lease))
        assert entry.folder.exists() == (removed == "used")


@as_root
def test_another_user_cannot_hold_a_lock_on_what_is_loaded(store: Store, three: list[Entry], reachable: Path) -> None:
    """Not even where all may look into the graph folder: removals and publishing never wait for others."""

    def attack() -> None:
        for path in (three[0].folder / "manifest.json", store.graphs, store.home / ".staging"):
            with pytest.raises(PermissionError):
                os.open(path, os.O_RDONLY)
        with pytest.raises(PermissionError):
            os.open(store.home / "budget.lock", os.O_RDONLY)

    assert store.home.is_relative_to(reachable)
    store.home.chmod(0o755)
    as_user(attack)


def test_a_file_system_without_locks(store: Store, three: list[Entry], monkeypatch: pytest.MonkeyPatch) -> None:
    """What was used within a day may be in use."""

    def fails(*args: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(pytest.importorskip("fcntl"), "flock", fails)
    assert leases.use_of(three[0].folder) == "unknown"
    assert isinstance(leases.take(three[0].folder), Lease)
    recent = publish(store, NOWHERE, usable(7))
    assert len(store.disk.prune(over(1)).removed) == 3
    assert left(store) == [str(recent.folder)]


def test_lists_do_not_take_each_others_questions_for_a_use(store: Store, three: list[Entry]) -> None:
    """Two pages ask for the same entries at once, while one is to be deleted."""
    found: list[str] = []

    def ask() -> None:
        found.extend(leases.use_of(three[0].folder) for _ in range(300))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    done = store.disk.delete(listed(store, three[1]))
    for thread in threads:
        thread.join()
    assert done == "removed" and {*found} == {"free"}
