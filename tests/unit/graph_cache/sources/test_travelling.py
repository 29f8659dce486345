"""Graphs that were made for any machine of a kind: who finds them, who is refused, and what stands beside them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from support.fleet.servers import FileServer
from support.fleet.stores import Publisher, Worker
from support.store.entries import NOWHERE, key, new_entry, publish, quarantine

from onegraph.common.reasons import MadeForAnother, NoGraph
from onegraph.graph_cache.disk.listing import made_for_another
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.key import AT_LEAST, GraphKey, key_digest
from onegraph.graph_cache.lookup import Hit, Miss
from onegraph.graph_cache.sources.commands import fits_here
from onegraph.graph_cache.sources.source import Taken
from onegraph.graph_cache.store import Store

HERE = {
    "torch": "2.14.1+cu130", "platform": "linux", "machine": "x86_64", "device": "cuda", "cuda": "13.0",
    "capability": "9.0",
}  # fmt: skip


def wanted(**target: str) -> GraphKey:
    return key(target={**HERE, **target})


def travelling(store: Store, asked: GraphKey, at_least: str = "2.9", content: bytes = b"theirs") -> Entry:
    new = dataclasses.replace(new_entry(), at_least={"torch": at_least}, unmeasured=True)
    return publish(store, NOWHERE, asked.alternatives[-1], content, new)


def test_a_key_and_the_one_that_travels() -> None:
    own, travels = wanted().alternatives
    assert own == wanted()
    assert travels.target == {**HERE, "torch": AT_LEAST, "cuda": "13"}
    assert travels.alternatives == (travels,)
    of_oneflow = key(backend="oneflow", target={"oneflow": "1.0", "device": "cpu"})
    assert of_oneflow.alternatives == (of_oneflow,)


@pytest.mark.parametrize("torch", ["2.9.0+cu130", "2.14.1+cu130", "2.99.0"])
@pytest.mark.parametrize("cuda", ["13.0", "13.2"])
def test_each_torch_of_the_cuda_major_finds_it(torch: str, cuda: str, store: Store) -> None:
    entry = travelling(store, wanted())
    assert store.find(wanted(torch=torch, cuda=cuda)) == Hit(entry)
    assert store.take(wanted(torch=torch, cuda=cuda), NOWHERE) is None  # nobody else has it


@pytest.mark.parametrize(
    "other", [{"cuda": "12.8"}, {"capability": "8.6"}, {"platform": "windows", "machine": "AMD64"}, {"device": "cpu"}]
)
def test_no_other_machine_finds_it(other: dict[str, str], store: Store) -> None:
    travelling(store, wanted())
    judged = store.find(wanted(**other))
    assert isinstance(judged, Miss) and isinstance(judged.reason, NoGraph)


@pytest.mark.parametrize("at_least", ["99.0", "2.99"])
def test_an_older_torch_is_refused(at_least: str, store: Store) -> None:
    entry = travelling(store, wanted(), at_least)
    judged = store.find(wanted())
    assert isinstance(judged, Miss) and isinstance(judged.reason, MadeForAnother)
    assert (judged.reason.what, judged.reason.made_for) == ("torch", f"{at_least} or newer")
    assert not fits_here(entry.manifest)
    here = {name: entry.manifest.key["target"][name] for name in ("torch", "device", "cuda", "capability")}
    assert made_for_another(entry.manifest.key["format"], here, {"torch": "2.9"}) is None
    unknown = made_for_another(entry.manifest.key["format"], here, {"magic": "1.0"})
    assert unknown is not None and unknown.what == "magic"


def test_what_this_machine_compiled_comes_first(store: Store) -> None:
    travelling(store, wanted())
    own = publish(store, NOWHERE, wanted(), b"own")
    assert store.find(wanted()) == Hit(own)
    assert store.find(wanted(torch="2.13.0")) != Hit(own)


def test_those_of_several_versions_stand_beside_each_other(store: Store) -> None:
    newer, older = travelling(store, wanted(), "99.0", b"newer"), travelling(store, wanted(), "2.9", b"older")
    assert newer.folder != older.folder
    assert store.find(wanted()) == Hit(older)


def test_it_is_fetched_from_a_store(served: FileServer, url: str, alice: Publisher, tmp_path: Path) -> None:
    entry = travelling(alice.store, wanted())
    assert alice.push(url, entry) == ["pushed"]
    worker = Worker.at(tmp_path / "home", served.url, trusts=[alice])
    found = worker.fetch(wanted(torch="2.14.0", cuda="13.1"))
    assert isinstance(found, Taken) and found.entry.text == entry.text
    asked = [name for name in served.asked if "records" in Path(name).parts]
    assert [Path(name).stem for name in asked] == [
        key_digest(one.fields()) for one in wanted(torch="2.14.0", cuda="13.1").alternatives
    ]
    too_new = travelling(alice.store, wanted(capability="8.6"), "99.0")
    assert alice.push(url, too_new) == ["pushed"]
    assert isinstance(worker.fetch(wanted(capability="8.6")), MadeForAnother)


def test_a_graph_that_was_wrong_is_not_fetched_again(url: str, alice: Publisher, tmp_path: Path) -> None:
    assert alice.push(url, travelling(alice.store, wanted())) == ["pushed"]
    worker = Worker.at(tmp_path / "home", url, trusts=[alice])
    found = worker.fetch(wanted())
    assert isinstance(found, Taken)
    quarantine(worker.store, found.entry.folder)
    assert not isinstance(worker.fetch(wanted()), Taken)
    assert isinstance(worker.store.find(wanted()), Miss)
