"""Stores that offer graphs of other machines: of another architecture, system or torch. None is ever loaded."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from blake3 import blake3
from support.fleet.stores import Publisher, Worker, remote_of
from support.store.command import onegraph
from support.store.entries import key, new_entry, publish

from onegraph.common import reasons
from onegraph.common.installed import torch_version
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.key import FORMAT, GraphKey, key_digest, travelling
from onegraph.graph_cache.lookup import Hit, Miss
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.sources import records
from onegraph.graph_cache.sources.published_log import LogWriter
from onegraph.graph_cache.sources.records import Record, RemoteGraph
from onegraph.graph_cache.sources.source import Taken
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust import publishers

HERE = {
    "device": "cuda", "capability": "9.0", "cuda": "13", "torch": "at least", "platform": "linux", "machine": "x86_64",
}  # fmt: skip
WANTED = key(target=HERE)
OTHERS = {
    "sm_86": {"capability": "8.6"},
    "windows": {"platform": "windows"},
    "aarch64": {"machine": "aarch64"},
    "cuda 12": {"cuda": "12"},
    "one torch": {"torch": "2.14.1+cu130"},
}


class World:
    """A store with a graph for another machine, by a publisher whom the worker of this machine trusts."""

    def __init__(self, root: Path, other: GraphKey) -> None:
        self.folder = root / "remote"
        self.url = f"file://{self.folder}"
        self.alice = Publisher(Store(root / "alice"))
        self.other = other
        self.made: Entry = self.alice.make(other, b"machine code of another")
        self.alice.push(self.url, self.made)
        self.worker = Worker.at(root / "home", self.url, trusts=[self.alice])

    def path(self, name: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def offer(self) -> str:
        """Have the publisher sign, in error or by a thief, that the graph is one of the wanted key; its manifest."""
        manifest = blake3(self.made.text).hexdigest()
        signature = publishers.sign(self.alice.private, self.made.text).value
        graph = RemoteGraph(manifest=manifest, bytes=len(self.made.text), signature=signature)
        record = Record(publisher=self.alice.public, key=key_digest(WANTED.fields()), graphs=(graph,))
        name = records.record_name(self.alice.public, record.key)
        self.path(name).write_bytes(records.sign(self.alice.private, record))
        return manifest


def its_record_at_the_other_place(world: World) -> None:
    """What whoever can write the store can do."""
    places = [records.record_name(world.alice.public, key_digest(one.fields())) for one in (world.other, WANTED)]
    shutil.copy(world.path(places[0]), world.path(places[1]))


def a_record_for_the_other_key(world: World) -> None:
    """Signed, of a graph that the log has under its own key."""
    world.offer()


def a_record_and_a_log_for_the_other_key(world: World) -> None:
    """Signed, and in the log under the wanted key: its manifest still tells what it is for."""
    manifest = world.offer()
    shutil.rmtree(world.folder / "log")
    writer = LogWriter(remote_of(world.url), world.alice.public)
    writer.append(world.alice.private, [("published", key_digest(WANTED.fields()), manifest)])


def a_record_where_there_is_no_log(world: World) -> None:
    world.offer()
    shutil.rmtree(world.folder / "log")


def a_manifest_that_claims_to_be_wanted(world: World) -> None:
    """The other machine's manifest with the wanted target in it, at the place of the one that was signed."""
    manifest = world.offer()
    shutil.rmtree(world.folder / "log")
    text = json.loads(world.made.text)
    text["key"]["target"] = HERE
    world.path(records.object_name(manifest)).write_text(json.dumps(text))


ATTACKS: dict[Callable[[World], None], str] = {
    its_record_at_the_other_place: "store_other_key",
    a_record_for_the_other_key: "store_graph_not_logged",
    a_record_and_a_log_for_the_other_key: "store_other_key",
    a_record_where_there_is_no_log: "store_other_key",
    a_manifest_that_claims_to_be_wanted: "store_wrong_bytes",
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_a_graph_of_another_machine_is_refused_by_its_code(
    attack: Callable[[World], None], other: str, tmp_path: Path
) -> None:
    world = World(tmp_path, key(target={**HERE, **OTHERS[other]}))
    assert world.worker.fetch(WANTED) is None  # it is not asked for by its own key
    attack(world)
    later = Worker.at(world.worker.store.home, world.url)
    found = later.fetch(WANTED)
    assert isinstance(found, reasons.Reason), found
    assert found.code == ATTACKS[attack]
    assert [name for name in later.files() if name.endswith(".aoti")] == []


def test_the_same_graph_is_fetched_where_it_fits(tmp_path: Path) -> None:
    """So it is for nothing else that the others are refused."""
    world = World(tmp_path, WANTED)
    assert isinstance(world.worker.fetch(WANTED), Taken)


def for_this_installation(**changes: str) -> GraphKey:
    target = {**HERE, "torch": torch_version(), **changes}
    return dataclasses.replace(key(target=target), format=FORMAT)


def test_pull_leaves_graphs_for_windows_where_they_are(tmp_path: Path) -> None:
    """A store offers them to Linux; and with --all, as for a mirror, they are here and no look-up finds one."""
    world = World(tmp_path, for_this_installation(platform="windows"))
    done = json.loads(onegraph(world.worker.store, "pull", world.url, "--json").stdout)
    assert [row["did"] for row in done["graphs"]] == ["for another machine"]
    assert [name for name in world.worker.files() if name.endswith(".aoti")] == []
    assert onegraph(world.worker.store, "pull", world.url, "--all").exit_code == 0
    here = for_this_installation()
    assert isinstance(world.worker.store.find(world.other), Hit)
    missed = world.worker.store.find(here)
    assert isinstance(missed, Miss) and isinstance(missed.reason, reasons.NoGraph)
    (row,) = json.loads(onegraph(world.worker.store, "ls", "--json").stdout)["graphs"]
    assert row["state"] == "stale"


def test_a_graph_that_asks_for_a_newer_torch_is_refused(tmp_path: Path) -> None:
    """Under the key of graphs that serve any torch from theirs on."""
    alice = Publisher(Store(tmp_path / "alice"))
    target = travelling(for_this_installation().target)
    assert target is not None and target["torch"] == "at least"
    wanted = key(target=target)
    new = dataclasses.replace(new_entry(), at_least={"torch": "99.0"})
    made = publish(alice.store, ModelSource(None, "666666666666"), wanted, b"code", new)
    url = f"file://{tmp_path / 'remote'}"
    assert alice.push(url, made) == ["pushed"]
    worker = Worker.at(tmp_path / "home", url, trusts=[alice])
    assert worker.fetch(wanted) == reasons.MadeForAnother("torch", "99.0 or newer", torch_version())
    assert [name for name in worker.files() if name.endswith(".aoti")] == []
