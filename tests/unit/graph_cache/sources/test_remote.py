"""Look-ups in remote stores, on real servers: what is taken and kept, who is trusted, and what each fault costs."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import fsspec
import pytest
from blake3 import blake3
from support.fleet import servers
from support.fleet.servers import BUCKET, Fault, FileServer, http_server, s3_server
from support.fleet.stores import Publisher, Worker, remote_of, without_time
from support.store.entries import key, quarantine

from onegraph.common import reasons
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.key import key_digest
from onegraph.graph_cache.layout import BROKEN_PREFIX
from onegraph.graph_cache.lookup import Hit, Miss
from onegraph.graph_cache.manifest import Manifest
from onegraph.graph_cache.sources import published_log, records, remote, transport
from onegraph.graph_cache.sources.published_log import LogWriter
from onegraph.graph_cache.sources.remote import Layers
from onegraph.graph_cache.sources.source import Taken
from onegraph.graph_cache.sources.transport import Remote
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust.signing import Trusted


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    pytest.importorskip("boto3")
    with pytest.MonkeyPatch.context() as patch, s3_server() as url:
        for name, value in (
            ("AWS_ENDPOINT_URL", url), ("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test"),
            ("AWS_DEFAULT_REGION", "us-east-1"),
        ):  # fmt: skip
            patch.setenv(name, value)
        yield url


@pytest.fixture(params=["folder", "http", "hub", "s3"])
def urls(request: pytest.FixtureRequest, url: str, tmp_path: Path) -> tuple[str, str]:
    """Where a publisher writes, and where workers read."""
    if request.param == "http":
        return url, request.getfixturevalue("served").url
    if request.param == "hub":
        if os.name != "posix":
            pytest.skip("the Hub's cache is of links")
        return url, f"file://{tmp_path / 'hub' / 'models--site--graphs' / 'snapshots' / 'main'}"
    if request.param == "s3":
        request.getfixturevalue("s3")
        url = f"s3://{BUCKET}/{tmp_path.name}"
    return url, url


def as_the_hub_keeps_it(folder: Path, snapshot: str) -> None:
    """Put a store into the shape of the Hub's cache: names are links to blobs."""
    if "models--" not in snapshot:
        return
    blobs = Path(snapshot.removeprefix("file://")).parents[1] / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)
    for path in (path for path in folder.rglob("*") if path.is_file()):
        blob = blobs / blake3(path.read_bytes()).hexdigest()
        blob.write_bytes(path.read_bytes())
        link = Path(snapshot.removeprefix("file://")) / path.relative_to(folder)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read in any store."""
    names, read = list[str](), Remote.read

    def noted(self: Remote, name: str, *rest: Any) -> bytes | None:
        names.append(name)
        return read(self, name, *rest)

    monkeypatch.setattr(Remote, "read", noted)
    return names


def test_a_graph_is_fetched_once_and_used_offline(
    urls: tuple[str, str], alice: Publisher, folder: Path, tmp_path: Path, asked: list[str]
) -> None:
    made, other = alice.make(content=b"theirs"), alice.make(key(dtype="float16"))
    assert alice.push(urls[0], made, other) == ["pushed", "pushed"]
    as_the_hub_keeps_it(folder, urls[1])
    worker = Worker.at(tmp_path / "home", urls[1], trusts=[alice])
    asked.clear()
    found = worker.fetch()
    assert isinstance(found, Taken), found
    assert (found.entry.folder / "graph.aoti").read_bytes() == b"theirs"
    assert found.entry.text == made.text
    assert worker.store.signer.provenance(found.entry) == Trusted("fleet")
    assert [name.split("/")[0] for name in asked] == ["records", "withdrawn", "log", "objects", "objects", "objects"]
    for _ in range(2):  # what was not there is not asked for again at once
        assert worker.fetch(key(dtype="bfloat16")) is None
        assert len(asked) == 8  # for graphs made here, and for those made for all machines of the kind
    offline = Worker.at(tmp_path / "home")
    assert offline.store.find(key()) == Hit(found.entry)
    assert not list((tmp_path / "home" / ".staging").iterdir())
    # As for a server that restores graphs before any model asks.
    server = Worker.at(tmp_path / "server", urls[1], trusts=[alice]).store
    digests = [key_digest(entry.manifest.key) for entry in (made, other)]
    assert server.remotes.keys() == sorted(digests)
    taken = server.take_named(digests[0])
    assert isinstance(taken, Taken) and taken.entry.folder.parents[1] == server.graphs
    assert server.find(key()) == Hit(taken.entry) and server.take_named(64 * "0") is None


@pytest.mark.parametrize("where", ["folder", "s3"])
def test_a_line_of_a_log_is_written_once(
    where: str, alice: Publisher, url: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """By the first of two machines that would write the same number; the other's line follows it."""
    if where == "s3":
        request.getfixturevalue("s3")
        url = f"s3://{BUCKET}/{tmp_path.name}"
    writers = [LogWriter(remote_of(url), alice.public) for _ in range(2)]
    for writer in writers:
        assert writer.current().lines == []  # by now both would write the first
    for writer, digit in zip(writers, "ab", strict=True):
        writer.append(alice.private, [("published", 64 * digit, 64 * digit)])
    log = LogWriter(remote_of(url), alice.public).current()
    assert [(one.number, one.manifest[0]) for one in log.entries] == [(1, "a"), (2, "b")]


def test_nothing_is_asked_without_a_trusted_publisher(served: FileServer, made: Entry, tmp_path: Path) -> None:
    found = Worker.at(tmp_path / "home", served.url).fetch()
    assert isinstance(found, reasons.StoreWithoutPublisher) and served.asked == []


def test_a_publisher_who_is_trusted_no_longer(alice: Publisher, made: Entry, worker: Worker) -> None:
    assert isinstance(worker.fetch(), Taken)
    (worker.store.home / "trusted-publishers.json").unlink()
    assert worker.store.find(key()) == Miss(reasons.UnknownPublisher(alice.public))
    assert isinstance(worker.fetch(key(dtype="float16")), reasons.StoreWithoutPublisher)


def test_a_withdrawn_graph_is_not_used_even_where_it_is_kept(
    alice: Publisher, url: str, made: Entry, worker: Worker
) -> None:
    assert isinstance(worker.fetch(), Taken)
    assert alice.withdraw(url, made) == 1
    without_time(worker)
    worker.store.remotes.refresh()
    assert worker.store.find(key()) == Miss(reasons.GraphWithdrawn("fleet"))
    assert worker.fetch() is None  # the record does not name it any more
    assert alice.push(url, made) == ["left out"]
    again = Worker.at(worker.store.home)  # remembered by later processes, offline too
    assert again.store.find(key()) == Miss(reasons.GraphWithdrawn("fleet"))


def test_the_budget_removes_what_was_fetched(
    alice: Publisher, url: str, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtypes = ("float32", "float16", "bfloat16")
    alice.push(url, *(alice.make(key(dtype=dtype), content=dtype.encode() * 20_000) for dtype in dtypes))
    monkeypatch.setenv("ONEGRAPH_DISK_BUDGET", "400KB")
    for dtype in dtypes:
        assert isinstance(worker.fetch(key(dtype=dtype)), Taken)
    assert [entry.manifest.key["dtype"] for entry in worker.store.entries()] == ["bfloat16", "float16"]
    without_time(worker)
    assert isinstance(worker.fetch(), Taken)  # what was removed is fetched anew


def test_of_several_graphs_of_a_key_the_one_that_fits_is_taken(
    alice: Publisher, url: str, made: Entry, served: FileServer, worker: Worker, tmp_path: Path
) -> None:
    """As for two versions of the host, whose code differs."""
    second = alice.make(content=b"second", version="2")
    alice.push(url, second)
    wrong = reasons.FunctionReplaced("f")

    def differs(manifest: Manifest) -> reasons.Reason | None:
        return None if manifest.files == second.manifest.files else wrong

    found = worker.fetch(differs=differs)
    assert isinstance(found, Taken) and (found.entry.folder / "graph.aoti").read_bytes() == b"second"
    other = Worker.at(tmp_path / "other", served.url, trusts=[alice])
    assert other.fetch(differs=lambda manifest: wrong) == wrong


def test_what_was_quarantined_here_is_not_fetched_again(made: Entry, worker: Worker) -> None:
    found = worker.fetch()
    assert isinstance(found, Taken)
    quarantine(worker.store, found.entry.folder)
    without_time(worker)
    assert worker.fetch() is None
    assert [path.name.startswith(BROKEN_PREFIX) for path in found.entry.folder.parent.iterdir()] == [True]


def test_stores_are_asked_in_order(served: FileServer, made: Entry, alice: Publisher, tmp_path: Path) -> None:
    """The first that has the graph gives it; a first one that is empty costs a request."""
    (tmp_path / "empty").mkdir()
    with http_server(tmp_path / "empty") as first:
        worker = Worker.at(tmp_path / "home", first.url, served.url, trusts=[alice])
        assert isinstance(worker.fetch(), Taken)
        assert len(first.asked) == 1 and len(served.asked) == 6


def test_two_publishers(served: FileServer, url: str, made: Entry, alice: Publisher, tmp_path: Path) -> None:
    bob = Publisher(Store(tmp_path / "bob"))
    bob.push(url, bob.make(key(dtype="float16"), content=b"bob's"))
    worker = Worker.at(tmp_path / "home", served.url, trusts=[alice, bob])
    for wanted, content in ((key(), b"theirs" * 1000), (key(dtype="float16"), b"bob's")):
        found = worker.fetch(wanted)
        assert isinstance(found, Taken) and (found.entry.folder / "graph.aoti").read_bytes() == content


def test_a_folder_that_cannot_be_written(made: Entry, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.store.private, "staging", Mock(side_effect=PermissionError(13, "Permission denied")))
    assert isinstance(worker.fetch(), reasons.StoreGraphNotKept)
    assert [name for name in worker.files() if name.endswith("manifest.json")] == []


def test_addresses_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEGRAPH_STORES", f" s3://a/b, {(tmp_path / 'x').as_uri()}\nnothing")
    layers = Layers(tmp_path)
    labels = [layer.remote.label for layer in layers._layers if layer.remote is not None]
    assert labels == ["s3://a/b", "file:x"]
    assert layers._layers[2].fault == reasons.StoreBadAddress("nothing")
    monkeypatch.delenv("ONEGRAPH_STORES")
    assert Store(tmp_path).remotes._layers == []


def test_names_in_a_store_are_made_of_digests(alice: Publisher, folder: Path, made: Entry) -> None:
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    digest, wanted = blake3(made.text).hexdigest(), key_digest(made.manifest.key)
    files = {records.object_name(file.blake3) for file in made.manifest.files.values()}
    assert names == files | {
        records.object_name(digest), records.record_name(alice.public, wanted), records.index_name(alice.public),
        records.graph_name(alice.public, wanted, digest),
        published_log.line_name(alice.public, 1), published_log.log_name(alice.public),
    }  # fmt: skip


# Faults: one bounded wait, one reason code, and nothing that was not signed -----------------------------------------

RECORDS, OBJECTS, WITHDRAWN = "records/", "objects/", "withdrawn/"
SHORT = 0.3  # seconds, where a test waits them out


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


@pytest.mark.usefixtures("made")
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


@pytest.mark.usefixtures("made")
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


@pytest.mark.usefixtures("made")
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


@pytest.mark.usefixtures("made")
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


@pytest.mark.usefixtures("made")
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
    worker = Worker.at(tmp_path / "home", tmp_path.as_uri(), trusts=[alice], wait=SHORT)
    monkeypatch.setattr(transport.Folder, "find", silent)
    assert worker.store.remotes.keys() == []
    monkeypatch.undo()
    assert worker.store.remotes._layers[0].fault == reasons.StoreTooSlow(f"file:{tmp_path.name}", SHORT)
