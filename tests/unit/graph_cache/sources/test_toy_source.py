"""One more source is one file: a toy one gives signed graphs from memory, which are verified on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.fleet.stores import Publisher, Worker
from support.store.entries import key
from support.store.toy_source import Held, MemorySource

from onegraph.common import reasons
from onegraph.common.reasons import Reason
from onegraph.graph_cache.integrity import Sound
from onegraph.graph_cache.key import key_digest
from onegraph.graph_cache.lookup import Hit, Miss
from onegraph.graph_cache.sources import records
from onegraph.graph_cache.sources.source import Taken

FILE = "graph.aoti"


@pytest.fixture
def source(alice: Publisher) -> MemorySource:
    """A source that has one graph of hers."""
    made = MemorySource(records.Publisher("fleet", alice.public))
    made.add(alice.make(content=b"theirs"), alice.private)
    return made


@pytest.fixture
def user(alice: Publisher, source: MemorySource, tmp_path: Path) -> Worker:
    """Who trusts her and asks the source, and no remote store."""
    worker = Worker.at(tmp_path / "home", trusts=[alice])
    worker.store.sources.append(source)
    return worker


def graphs_of(user: Worker) -> list[str]:
    return [name for name in user.files() if name.startswith(("graphs/", "staging/"))]


def test_a_graph_comes_into_the_home_once(user: Worker, source: MemorySource) -> None:
    taken = user.fetch()
    assert isinstance(taken, Taken) and (taken.entry.folder / FILE).read_bytes() == b"theirs"
    assert isinstance(user.store.check(taken.entry.folder), Sound)
    source.graphs.clear()
    assert user.store.find(key()) == Hit(taken.entry)


def test_a_graph_comes_by_the_digest_of_its_key(user: Worker) -> None:
    assert isinstance(user.store.take_named(key_digest(key().fields())), Taken)


def test_a_source_without_the_graph_is_passed_over(user: Worker) -> None:
    assert user.fetch(key(architecture="bb")) is None


def test_a_source_that_raises_is_passed_over(user: Worker, caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def take(self, wanted: object, home: object) -> None:
            raise TimeoutError("the catalogue is away")

    user.store.sources.insert(0, Broken())
    assert isinstance(user.fetch(), Taken)
    assert "a source of graphs failed: Broken" in caplog.text


Change = Callable[[Held], Held]


def of_a_file(held: Held) -> Held:
    return replace(held, files={**held.files, FILE: b"Theirs"})


def of_the_length(held: Held) -> Held:
    return replace(held, files={**held.files, FILE: b"theirs and more"})


def of_the_manifest(held: Held) -> Held:
    return replace(held, text=held.text.replace(b"any size", b"all size"))


REFUSED: list[tuple[Change, Reason]] = [
    (of_a_file, reasons.DigestDiffers(FILE)),
    (of_the_length, reasons.WrongSize(FILE, 15, 6)),
    (of_the_manifest, reasons.WrongPublisherSignature("fleet")),
]


@pytest.mark.parametrize(("change", "reason"), REFUSED)
def test_a_changed_byte_is_the_reason_and_leaves_nothing(
    user: Worker, source: MemorySource, change: Change, reason: Reason
) -> None:
    source.graphs.update({digest: change(held) for digest, held in source.graphs.items()})
    assert user.fetch() == reason
    assert graphs_of(user) == []
    assert isinstance(user.store.find(key()), Miss)


def test_the_key_of_another_is_no_use(user: Worker, source: MemorySource) -> None:
    """A right graph under the digest of another key is not what was asked for."""
    wanted = key(architecture="bb")
    (held,) = source.graphs.values()
    source.graphs[key_digest(wanted.fields())] = held
    assert user.fetch(wanted) is None
    assert graphs_of(user) == []
