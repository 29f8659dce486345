"""Look-ups in remote stores, on real servers: hit, miss, what is kept, who is trusted, what is taken back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from blake3 import blake3
from support.fleet.servers import BUCKET, FileServer, http_server, s3_server
from support.fleet.stores import Publisher, Worker, without_time
from support.store.entries import key, quarantine

from onegraph.common import reasons
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.layout import BROKEN_PREFIX
from onegraph.graph_cache.lookup import Hit, Miss
from onegraph.graph_cache.manifest import Manifest
from onegraph.graph_cache.remote import records
from onegraph.graph_cache.remote.layers import Layers
from onegraph.graph_cache.sources.source import Taken
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust.signing import Trusted


@pytest.fixture
def alice(tmp_path: Path) -> Publisher:
    return Publisher(Store(tmp_path / "alice"))


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch, s3_server() as url:
        for name, value in (
            ("AWS_ENDPOINT_URL", url), ("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test"),
            ("AWS_DEFAULT_REGION", "us-east-1"),
        ):  # fmt: skip
            patch.setenv(name, value)
        yield url


@pytest.fixture(params=["folder", "http", "hub", "s3"])
def urls(request: pytest.FixtureRequest, folder: Path, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Where a publisher writes, and where workers read."""
    written = f"file://{folder}"
    if request.param == "folder":
        yield written, written
    elif request.param == "http":
        server = request.getfixturevalue("served")
        yield written, server.url
    elif request.param == "hub":
        yield written, f"file://{tmp_path / 'hub' / 'models--site--graphs' / 'snapshots' / 'main'}"
    else:
        request.getfixturevalue("s3")
        address = f"s3://{BUCKET}/{tmp_path.name}"
        yield address, address


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


def test_a_graph_is_fetched_once_and_used_offline(
    urls: tuple[str, str], alice: Publisher, folder: Path, tmp_path: Path
) -> None:
    made = alice.make(content=b"theirs")
    assert alice.push(urls[0], made) == ["pushed"]
    as_the_hub_keeps_it(folder, urls[1])
    worker = Worker.at(tmp_path / "home", urls[1], trusts=[alice])
    found = worker.fetch()
    assert isinstance(found, Taken), found
    assert (found.entry.folder / "graph.aoti").read_bytes() == b"theirs"
    assert found.entry.text == made.text
    assert worker.store.signer.provenance(found.entry) == Trusted("fleet")
    # A record, what is taken back, a manifest, and two files.
    assert worker.store.remotes.requests == 5
    assert isinstance(worker.fetch(key(dtype="float16")), type(None))
    assert worker.store.remotes.requests == 6
    assert worker.fetch(key(dtype="float16")) is None
    assert worker.store.remotes.requests == 6  # what was not there is not asked for again at once
    offline = Worker.at(tmp_path / "home")
    assert offline.store.find(key()) == Hit(found.entry)
    assert not list((tmp_path / "home" / ".staging").iterdir())


def test_nothing_is_asked_without_a_trusted_publisher(
    served: FileServer, folder: Path, alice: Publisher, tmp_path: Path
) -> None:
    alice.push(f"file://{folder}", alice.make())
    worker = Worker.at(tmp_path / "home", served.url)
    found = worker.fetch()
    assert isinstance(found, reasons.StoreWithoutPublisher) and served.asked == []


def test_a_publisher_who_is_trusted_no_longer(
    served: FileServer, folder: Path, alice: Publisher, tmp_path: Path
) -> None:
    alice.push(f"file://{folder}", alice.make())
    worker = Worker.at(tmp_path / "home", served.url, trusts=[alice])
    found = worker.fetch()
    assert isinstance(found, Taken)
    (worker.store.home / "trusted-publishers.json").unlink()
    assert worker.store.find(key()) == Miss(reasons.UnknownPublisher(alice.public))
    assert isinstance(worker.fetch(key(dtype="float16")), reasons.StoreWithoutPublisher)


def test_a_withdrawn_graph_is_not_used_even_where_it_is_kept(
    served: FileServer, folder: Path, alice: Publisher, tmp_path: Path
) -> None:
    made = alice.make()
    alice.push(f"file://{folder}", made)
    worker = Worker.at(tmp_path / "home", served.url, trusts=[alice])
    assert isinstance(worker.fetch(), Taken)
    assert alice.withdraw(f"file://{folder}", made) == 1
    without_time(worker)
    worker.store.remotes.refresh()
    assert worker.store.find(key()) == Miss(reasons.GraphWithdrawn("fleet"))
    assert worker.fetch() is None  # the record does not name it any more
    assert alice.push(f"file://{folder}", made) == ["left out"]
    again = Worker.at(tmp_path / "home")  # remembered by later processes, offline too
    assert again.store.find(key()) == Miss(reasons.GraphWithdrawn("fleet"))


def test_the_budget_removes_what_was_fetched(
    served: FileServer, folder: Path, alice: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for dtype in ("float32", "float16", "bfloat16"):
        alice.push(f"file://{folder}", alice.make(key(dtype=dtype), content=dtype.encode() * 20_000))
    monkeypatch.setenv("ONEGRAPH_DISK_BUDGET", "400KB")
    worker = Worker.at(tmp_path / "home", served.url, trusts=[alice])
    for dtype in ("float32", "float16", "bfloat16"):
        assert isinstance(worker.fetch(key(dtype=dtype)), Taken)
    assert [entry.manifest.key["dtype"] for entry in worker.store.entries()] == ["bfloat16", "float16"]
    without_time(worker)
    assert isinstance(worker.fetch(), Taken)  # what was removed is fetched anew


def test_of_several_graphs_of_a_key_the_one_that_fits_is_taken(
    served: FileServer, folder: Path, alice: Publisher, tmp_path: Path
) -> None:
    """As for two versions of the host, whose code differs."""
    alice.push(f"file://{folder}", alice.make(content=b"first"))
    second = alice.make(content=b"second", version="2")
    alice.push(f"file://{folder}", second)
    worker = Worker.at(tmp_path / "home", served.url, trusts=[alice])
    wrong = reasons.FunctionReplaced("f")

    def differs(manifest: Manifest) -> reasons.Reason | None:
        return None if manifest.files == second.manifest.files else wrong

    found = worker.fetch(differs=differs)
    assert isinstance(found, Taken) and (found.entry.folder / "graph.aoti").read_bytes() == b"second"
    other = Worker.at(tmp_path / "other", served.url, trusts=[alice])
    assert other.fetch(differs=lambda manifest: wrong) == wrong


def test_what_was_quarantined_here_is_not_fetched_again(
    served: FileServer, folder: Path, alice: Publisher, tmp_path: Path
) -> None:
    alice.push(f"file://{folder}", alice.make())
    worker = Worker.at(tmp_path / "home", served.url, trusts=[alice])
    found = worker.fetch()
    assert isinstance(found, Taken)
    quarantine(worker.store, found.entry.folder)
    without_time(worker)
    assert worker.fetch() is None
    assert [path.name.startswith(BROKEN_PREFIX) for path in found.entry.folder.parent.iterdir()] == [True]


def test_stores_are_asked_in_order(served: FileServer, folder: Path, alice: Publisher, tmp_path: Path) -> None:
    """The first that has the graph gives it; a first one that is empty costs a request."""
    alice.push(f"file://{folder}", alice.make())
    empty = tmp_path / "empty"
    empty.mkdir()
    with http_server(empty) as first:
        worker = Worker.at(tmp_path / "home", first.url, served.url, trusts=[alice])
        assert isinstance(worker.fetch(), Taken)
        assert len(first.asked) == 1 and len(served.asked) == 5


def test_two_publishers(served: FileServer, folder: Path, alice: Publisher, tmp_path: Path) -> None:
    bob = Publisher(Store(tmp_path / "bob"))
    bob.push(f"file://{folder}", bob.make(content=b"bob's"))
    alice.push(f"file://{folder}", alice.make(key(dtype="float16"), content=b"alice's"))
    worker = Worker.at(tmp_path / "home", served.url, trusts=[alice, bob])
    for wanted, content in ((key(), b"bob's"), (key(dtype="float16"), b"alice's")):
        found = worker.fetch(wanted)
        assert isinstance(found, Taken) and (found.entry.folder / "graph.aoti").read_bytes() == content


def test_a_folder_that_cannot_be_written(
    served: FileServer, folder: Path, alice: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice.push(f"file://{folder}", alice.make())
    worker = Worker.at(tmp_path / "home", served.url, trusts=[alice])
    monkeypatch.setattr(worker.store.private, "staging", _refuse)
    found = worker.fetch()
    assert isinstance(found, reasons.StoreGraphNotKept)
    assert [name for name in worker.files() if name.endswith("manifest.json")] == []


def _refuse() -> object:
    raise PermissionError(13, "Permission denied")


def test_addresses_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEGRAPH_STORES", f" s3://a/b, file://{tmp_path}/x\nnothing")
    layers = Layers(tmp_path)
    labels = [layer.remote.label for layer in layers._layers if layer.remote is not None]
    assert labels == ["s3://a/b", "file:x"]
    assert layers._layers[2].fault == reasons.StoreBadAddress("nothing")
    monkeypatch.delenv("ONEGRAPH_STORES")
    assert not Store(tmp_path).remotes


def test_names_in_a_store_are_made_of_digests(alice: Publisher, folder: Path) -> None:
    made = alice.make()
    alice.push(f"file://{folder}", made)
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    digest, wanted = blake3(made.text).hexdigest(), records.key_digest(made.manifest.key)
    files = {records.object_name(file.blake3) for file in made.manifest.files.values()}
    assert names == files | {
        records.object_name(digest), records.record_name(alice.public, wanted), records.index_name(alice.public),
        records.graph_name(alice.public, wanted, digest),
    }  # fmt: skip
    assert isinstance(made, Entry)


def test_a_graph_is_fetched_by_the_digest_of_its_key(urls: tuple[str, str], alice: Publisher, tmp_path: Path) -> None:
    """As for a server that restores graphs before any model asks."""
    if "models--" in urls[1]:
        pytest.skip("the same as a folder")
    alice.push(urls[0], alice.make(), alice.make(key(dtype="float16")))
    worker = Worker.at(tmp_path / "home", urls[1], trusts=[alice])
    digests = [records.key_digest(key(dtype=dtype).fields()) for dtype in ("float32", "float16")]
    assert worker.store.remotes.keys() == sorted(digests)
    found = worker.store.take_named(digests[0])
    assert isinstance(found, Taken) and found.entry.folder.parents[1] == worker.store.graphs
    assert worker.store.find(key()) == Hit(found.entry)
    assert worker.store.take_named(64 * "0") is None
