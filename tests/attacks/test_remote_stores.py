"""Stores that lie: none has a worker load what was not meant for it, and each attempt has a reason code."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from blake3 import blake3
from support.fleet.servers import http_server
from support.fleet.stores import Publisher, Worker, remote_of, without_time
from support.store.entries import CONSTANTS, key

from onegraph.common import reasons
from onegraph.graph_cache import integrity
from onegraph.graph_cache.entry import Entry, constants_of
from onegraph.graph_cache.key import key_digest
from onegraph.graph_cache.lookup import Broken, Miss
from onegraph.graph_cache.manifest import Manifest
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.sources import commands, records
from onegraph.graph_cache.sources.published_log import LogWriter
from onegraph.graph_cache.sources.records import Record, RemoteGraph
from onegraph.graph_cache.sources.remote import Shelf
from onegraph.graph_cache.sources.source import Taken
from onegraph.graph_cache.sources.transport import StoreError
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust import publishers

KEY = key_digest(key().fields())
OTHER = key(dtype="float16")


class World:
    """A publisher whom a worker trusts, a stranger, and a store that the stranger may change as he likes."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "remote"
        self.url = f"file://{self.folder}"
        self.alice = Publisher(Store(root / "alice"))
        self.mallory = Publisher(Store(root / "mallory"))
        self.made = self.alice.make(content=b"hers")
        self.other = self.alice.make(OTHER, content=b"hers too")
        assert self.alice.push(self.url, self.made, self.other) == ["pushed", "pushed"]
        self.worker = Worker.at(root / "home", self.url, trusts=[self.alice])

    def path(self, name: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def record(self) -> Path:
        return self.path(records.record_name(self.alice.public, KEY))

    def swap_object(self, entry: Entry, file: str, data: bytes) -> None:
        self.path(records.object_name(entry.manifest.files[file].blake3)).write_bytes(data)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def another_keys_record(world: World) -> None:
    """The publisher's own record, at the place of another key."""
    shutil.copy(world.path(records.record_name(world.alice.public, key_digest(OTHER.fields()))), world.record)


def another_keys_graph_beside_a_log(world: World) -> None:
    """A record that the publisher signed in error, of a graph of another key, under which the log has it."""
    graph = RemoteGraph(
        manifest=blake3(world.other.text).hexdigest(),
        bytes=len(world.other.text),
        signature=publishers.sign(world.alice.private, world.other.text).value,
    )
    record = Record(publisher=world.alice.public, key=KEY, graphs=(graph,))
    world.record.write_bytes(records.sign(world.alice.private, record))


def another_keys_graph(world: World) -> None:
    """The same in a store without a log, as older versions made them."""
    another_keys_graph_beside_a_log(world)
    shutil.rmtree(world.folder / "log")


def strangers_record(world: World) -> None:
    """A whole graph of the stranger's, at the place of the publisher's."""
    world.mallory.push(world.url, world.mallory.make(content=b"evil"))
    shutil.copy(world.path(records.record_name(world.mallory.public, KEY)), world.record)


def strangers_record_under_her_name(world: World) -> None:
    """The same, and the record claims to be the publisher's."""
    text = json.loads(world.record.read_bytes())
    record = Record(publisher=world.alice.public, key=KEY, graphs=())
    text["value"] = json.loads(records.sign(world.mallory.private, record))["value"]
    world.record.write_text(json.dumps(text))


def a_swapped_file(world: World) -> None:
    world.swap_object(world.made, "graph.aoti", b"evil")


def a_swapped_manifest(world: World) -> None:
    world.path(records.object_name(blake3(world.made.text).hexdigest())).write_bytes(world.other.text)


def a_manifest_of_the_strangers(world: World) -> None:
    """A record with the publisher's signature over another manifest, which no forger can make: one of the digests."""
    data = json.loads(world.record.read_bytes())
    data["statement"] = data["statement"].replace(blake3(world.made.text).hexdigest(), 64 * "0")
    world.record.write_text(json.dumps(data))


def a_path_in_a_digest(world: World) -> None:
    """Signed by the publisher, whose key somebody has."""
    record = Record(publisher=world.alice.public, key=KEY, graphs=())
    graph = {"manifest": "../../../etc/passwd", "bytes": 9, "signature": 128 * "a"}
    text = json.dumps({**record.model_dump(mode="json"), "graphs": [graph]})
    world.record.write_bytes(records.signed(world.alice.private, records._PURPOSE, text))


def signed_with(world: World, manifest: Manifest) -> None:
    """A graph whose manifest the publisher's key signed, whatever is in it."""
    text = manifest.model_dump_json().encode()
    graph = RemoteGraph(
        manifest=blake3(text).hexdigest(),
        bytes=len(text),
        signature=publishers.sign(world.alice.private, text).value,
    )
    world.path(records.object_name(graph.manifest)).write_bytes(text)
    writer = LogWriter(remote_of(world.url), world.alice.public)
    writer.append(world.alice.private, [("published", KEY, graph.manifest)])
    record = Record(publisher=world.alice.public, key=KEY, graphs=(graph,))
    world.record.write_bytes(records.sign(world.alice.private, record))


def a_path_in_a_file_name(world: World) -> None:
    files = {**world.made.manifest.files, "../../../.bashrc": world.made.manifest.files["graph.aoti"]}
    signed_with(world, world.made.manifest.model_copy(update={"files": files}))


def a_file_of_the_stores_own(world: World) -> None:
    files = {**world.made.manifest.files, "signature.json": world.made.manifest.files["graph.aoti"]}
    signed_with(world, world.made.manifest.model_copy(update={"files": files}))


def no_record_at_all(world: World) -> None:
    world.record.write_text("<html>It works!</html>")


def a_deep_record(world: World) -> None:
    world.record.write_text(100_000 * "[")


ATTACKS: dict[Callable[[World], None], str] = {
    another_keys_record: "store_other_key",
    another_keys_graph: "store_other_key",
    another_keys_graph_beside_a_log: "store_graph_not_logged",
    strangers_record: "store_unknown_publisher",
    strangers_record_under_her_name: "store_wrong_signature",
    a_swapped_file: "store_wrong_bytes",
    a_swapped_manifest: "store_wrong_bytes",
    a_manifest_of_the_strangers: "store_wrong_signature",
    a_path_in_a_digest: "store_bad_record",
    a_path_in_a_file_name: "store_graph_refused",
    a_file_of_the_stores_own: "store_graph_refused",
    no_record_at_all: "store_bad_record",
    a_deep_record: "store_bad_record",
}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_a_lie_is_refused_by_its_code(attack: Callable[[World], None], world: World) -> None:
    attack(world)
    found = world.worker.fetch()
    assert isinstance(found, reasons.Reason), found
    assert found.code == ATTACKS[attack]
    assert [name for name in world.worker.files() if name.endswith(".aoti")] == []
    assert not list(world.folder.parent.glob("**/.bashrc"))


def test_an_older_record_brings_no_withdrawn_graph_back(world: World, tmp_path: Path) -> None:
    """The store shows all that it had before the graph was taken back, to a worker who has heard of that."""
    before = tmp_path / "before"
    shutil.copytree(world.folder, before)
    world.alice.withdraw(world.url, world.made)
    world.worker.store.remotes.refresh()
    shutil.rmtree(world.folder)
    before.rename(world.folder)
    without_time(world.worker)
    for _ in range(2):  # the second time the store is not asked
        assert world.worker.fetch() == reasons.StoreGraphWithdrawn("file:remote", "fleet")
    later = Worker.at(world.worker.store.home, world.url)  # a later process, of the same user
    assert later.fetch() == reasons.StoreGraphWithdrawn("file:remote", "fleet")


def test_an_older_list_takes_nothing_off(world: World) -> None:
    """Withdrawals only add up: an older list, as of a cache before the store, or none, changes nothing."""
    first = world.alice.withdraw(world.url, world.other)
    name = world.path(records.withdrawn_name(world.alice.public))
    older = name.read_bytes()
    assert world.alice.withdraw(world.url, world.made) == first + 1
    name.write_bytes(older)
    world.worker.store.remotes.refresh()  # finds the file that the list lacks
    shutil.rmtree(world.folder / "withdrawn" / world.alice.public)
    without_time(world.worker)
    world.worker.store.remotes.refresh()
    without_time(world.worker)
    for path in (world.folder / "withdrawn", world.alice.store.home / ".withdrawn"):
        shutil.rmtree(path)
    assert world.alice.push(world.url, world.made) == ["pushed"]  # by a publisher who forgot
    assert world.worker.fetch() == reasons.StoreGraphWithdrawn("file:remote", "fleet")
    with http_server(world.folder) as server:  # by a later process, which reads the store where nothing can be listed
        later = Worker.at(world.worker.store.home, server.url)
        assert later.fetch() == reasons.StoreGraphWithdrawn(server.url, "fleet")


def test_a_list_of_the_strangers_takes_nothing_back(world: World) -> None:
    """Else whoever can write the store could stop a fleet for good."""
    assert isinstance(world.worker.fetch(), Taken)
    world.mallory.push(world.url, world.mallory.make())
    world.mallory.pusher(world.url).withdraw([blake3(world.made.text).hexdigest()])
    shutil.copy(
        world.path(records.withdrawn_name(world.mallory.public)), world.path(records.withdrawn_name(world.alice.public))
    )
    without_time(world.worker)
    world.worker.store.remotes.refresh()
    assert not isinstance(world.worker.store.lookup(key(), ModelSource(None, "0123456789ab")), Miss)
    assert not (world.worker.store.home / ".withdrawn").exists()


def test_what_is_kept_is_checked_like_any_other(world: World) -> None:
    """Once it is here, the publisher's signature covers it as long as it is used."""
    found = world.worker.fetch()
    assert isinstance(found, Taken)
    (found.entry.folder / "graph.aoti").write_bytes(b"evil")
    judged = world.worker.store.find(key())
    assert isinstance(judged, Broken) and isinstance(judged.reason, reasons.Damaged)


def test_an_index_with_a_path_is_refused(world: World) -> None:
    index = world.path(records.index_name(world.alice.public))
    index.write_text(json.dumps({"version": 1, "keys": ["../../../../etc/passwd"]}))
    with http_server(world.folder) as server:
        shelf = Shelf(remote_of(server.url), records.Publisher("fleet", world.alice.public))
        with pytest.raises(StoreError) as refused:
            shelf.listed()
    assert refused.value.reason == reasons.StoreBadName(remote_of(server.url).label, "../../../../etc/passwd")


def test_a_mirror_copies_no_odd_names_and_no_wrong_objects(world: World, tmp_path: Path) -> None:
    world.path("objects/zz/evil.so").write_bytes(b"evil")
    a_swapped_file(world)
    target = tmp_path / "target"
    done = [*commands.mirror(remote_of(world.url), remote_of(f"file://{target}"))]
    codes = sorted(one.reason.code for one in done if one.reason is not None)
    assert codes == ["store_bad_name", "store_wrong_bytes"]
    assert not (target / "objects" / "zz").exists()


def test_files_are_what_the_helpers_say(world: World) -> None:
    """The graphs of these tests are whole: without an attack they are fetched."""
    assert isinstance(world.worker.fetch(), Taken)
    assert isinstance(integrity.check(world.made), integrity.Sound)
    assert constants_of(world.made) == CONSTANTS
