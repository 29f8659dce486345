"""What a network and its servers do to look-ups: one bounded wait, one reason code, and nothing that was not signed."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import fsspec
import pytest
from support.fleet import servers
from support.fleet.servers import Fault, FileServer
from support.fleet.stores import Publisher, Worker, without_time
from support.store.entries import key

from onegraph.common import reasons
from onegraph.graph_cache.sources import remote, transport
from onegraph.graph_cache.sources.source import Taken
from onegraph.graph_cache.store import Store

RECORDS, OBJECTS, WITHDRAWN = "records/", "objects/", "withdrawn/"
SHORT = 0.3  # seconds, where a test waits them out


@pytest.fixture(scope="module")
def alice(tmp_path_factory: pytest.TempPathFactory) -> Publisher:
    return Publisher(Store(tmp_path_factory.mktemp("alice")))


@pytest.fixture(scope="module")
def folder(alice: Publisher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one graph."""
    folder = tmp_path_factory.mktemp("remote")
    alice.push(f"file://{folder}", alice.make(content=b"theirs" * 1000))
    return folder


def kept(worker: Worker) -> list[str]:
    return [name for name in worker.files() if name.startswith(("graphs/", ".staging/"))]


CASES: dict[str, tuple[Fault, str]] = {
    "500": (servers.status(500), "store_unreachable"),
    "500 for a file": (servers.only(OBJECTS, servers.status(500)), "store_unreachable"),
    "403": (servers.status(403), "store_forbidden"),
    "reset": (servers.reset, "store_unreachable"),
    "reset in a file": (servers.only(OBJECTS, servers.reset), "store_unreachable"),
    "truncated record": (servers.only(RECORDS, servers.truncated), "store_bad_record"),
    "truncated file": (servers.only(OBJECTS, servers.truncated), "store_wrong_bytes"),
    "wrong bytes of a record": (servers.only(RECORDS, servers.wrong_bytes), "store_bad_record"),
    "wrong bytes of a file": (servers.only(OBJECTS, servers.wrong_bytes), "store_wrong_bytes"),
    "wrong withdrawals": (servers.only(WITHDRAWN, servers.nonsense), "store_wrong_signature"),
    "endless record": (servers.only(RECORDS, servers.too_much), "store_bad_record"),
    "endless file": (servers.only(OBJECTS, servers.too_much), "store_wrong_bytes"),
    "missing file": (servers.only(OBJECTS, servers.status(404)), "store_incomplete"),
    "redirect": (servers.redirect("http://127.0.0.1:9"), "store_redirects"),
    "redirect of a file": (servers.only(OBJECTS, servers.redirect("http://127.0.0.1:9")), "store_redirects"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_fault_is_one_reason_and_nothing_is_kept(name: str, served: FileServer, worker: Worker) -> None:
    served.fault, code = CASES[name]
    found = worker.fetch()
    assert isinstance(found, reasons.Reason), found
    assert found.code == code
    assert kept(worker) == []
    served.fault = None
    without_time(worker)
    assert isinstance(worker.fetch(), Taken)  # it costs nothing later


@pytest.mark.parametrize(
    "fault",
    [servers.silence, servers.trickle, servers.only(RECORDS, servers.silence), servers.only(OBJECTS, servers.trickle)],
    ids=["silence", "trickle", "a silent record", "a file byte by byte"],
)
def test_nobody_waits_longer_than_was_said(fault: Fault, alice: Publisher, served: FileServer, tmp_path: Path) -> None:
    served.fault = fault
    worker = Worker.at(tmp_path / "home", served.url, trusts=[alice], wait=SHORT)
    began = time.monotonic()
    assert isinstance(worker.fetch(), reasons.StoreTooSlow)
    assert time.monotonic() - began >= SHORT  # that it is no more than that a busy machine cannot show
    assert kept(worker) == []


def test_a_store_that_failed_is_left_alone_for_a_while(
    served: FileServer, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(remote.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(transport.Patience, "left", property(lambda self: 60.0))
    served.fault = servers.status(500)
    asked = []
    for step in (0.0, 30.0, 31.0, 60.0, 61.0, 119.0, 241.0):  # rests of 60, 120 and 240 s
        now[0] += step
        found = worker.fetch(key(dtype="float16"))
        assert isinstance(found, reasons.StoreUnreachable)  # the same reason while it rests
        asked.append(len(served.asked))
    assert asked == [1, 1, 2, 2, 3, 3, 4]
    served.fault = None
    now[0] += 481.0
    assert isinstance(worker.fetch(), Taken)


def test_the_next_store_is_asked_where_a_server_is_not_there(
    alice: Publisher, served: FileServer, tmp_path: Path
) -> None:
    worker = Worker.at(tmp_path / "home", f"http://127.0.0.1:{servers.free_port()}", served.url, trusts=[alice])
    assert isinstance(worker.fetch(), Taken)
    assert isinstance(worker.fetch(key(dtype="float16")), reasons.StoreUnreachable)


BAD = {
    "http://nowhere.invalid/graphs": "store_unreachable",
    "s3://bucket/x": "store_needs_package",
    **dict.fromkeys(("ftpx://host/x", "https://", "../x", "file://relative", "http://h/x?y=1", "zip::s3://a"),
                    "store_bad_address"),
}  # fmt: skip


@pytest.mark.parametrize("url", BAD)
def test_an_address_that_leads_nowhere(
    url: str, alice: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    found = Worker.at(tmp_path / "home", url, trusts=[alice]).fetch()
    assert isinstance(found, reasons.Reason) and found.code == BAD[url]
    if isinstance(found, reasons.StoreNeedsPackage):
        assert found == reasons.StoreNeedsPackage(url, "s3fs")


def test_a_password_is_never_told(alice: Publisher, tmp_path: Path) -> None:
    port = servers.free_port()
    found = Worker.at(tmp_path / "home", f"http://me:secret@127.0.0.1:{port}/x", trusts=[alice]).fetch()
    assert isinstance(found, reasons.StoreUnreachable)
    assert found.store == f"http://127.0.0.1:{port}/x" and "secret" not in found.text


def test_sixty_look_ups_leave_no_threads(worker: Worker) -> None:
    for number in range(60):
        assert worker.fetch(key(architecture=str(number))) is None
    assert [one.name for one in threading.enumerate() if one.name == "onegraph-store"] == []


def test_two_threads_fetch_one_graph(alice: Publisher, served: FileServer, tmp_path: Path) -> None:
    workers = [Worker.at(tmp_path / "home", served.url, trusts=[alice]) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert [isinstance(one, Taken) for one in pool.map(Worker.fetch, workers)] == [True] * 4
    assert len([name for name in kept(workers[0]) if name.endswith("manifest.json")]) == 1


@pytest.fixture
def silent() -> Iterator[Callable[..., object]]:
    """What asks a server that is silent until the test is over."""
    over = threading.Event()

    def ask(*args: object, **options: object) -> object:
        over.wait(3.0)
        raise OSError

    yield ask
    over.set()


def test_opening_a_file_system_is_within_the_wait(
    alice: Publisher, silent: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As gcsfs does, which asks a server for credentials and tries for half a minute."""
    monkeypatch.setitem(sys.modules, "gcsfs", ModuleType("gcsfs"))
    monkeypatch.setattr(fsspec, "get_filesystem_class", lambda scheme: silent)
    monkeypatch.setattr(fsspec, "filesystem", silent)
    worker = Worker.at(tmp_path / "home", "gs://bucket/x", trusts=[alice], wait=SHORT)
    assert worker.fetch() == reasons.StoreTooSlow("gs://bucket/x", SHORT)
    without_time(worker)
    worker.store.remotes.refresh()
    assert worker.store.remotes._layers[0].fault == reasons.StoreTooSlow("gs://bucket/x", SHORT)


def test_listing_keys_is_within_the_wait(
    alice: Publisher, silent: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server asks for them when it starts."""
    worker = Worker.at(tmp_path / "home", f"file://{tmp_path}", trusts=[alice], wait=SHORT)
    monkeypatch.setattr(transport.Folder, "find", silent)
    assert worker.store.remotes.keys() == []
    monkeypatch.undo()
    assert worker.store.remotes._layers[0].fault == reasons.StoreTooSlow(f"file:{tmp_path.name}", SHORT)
