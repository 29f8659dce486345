"""Stores that show another history of a publisher than the publisher wrote, or than they showed before: refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from blake3 import blake3
from support.fleet.push_many import another_machine
from support.fleet.servers import http_server
from support.fleet.stores import Publisher, Worker, remote_of, without_time
from support.store.command import onegraph
from support.store.entries import key

from onegraph.common import reasons
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.key import key_digest
from onegraph.graph_cache.lookup import Hit
from onegraph.graph_cache.sources import published_log, records
from onegraph.graph_cache.sources.published_log import LogWriter
from onegraph.graph_cache.sources.source import Taken
from onegraph.graph_cache.store import Store

DTYPES = ("float32", "float16", "bfloat16")
LATEST = key(dtype=DTYPES[2])


class World:
    """A store with three graphs of a publisher's, and a worker who fetched one when its log had two lines."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "remote"
        self.url = f"file://{self.folder}"
        self.alice = Publisher(Store(root / "alice"))
        self.made = [self.alice.make(key(dtype=dtype), content=dtype.encode()) for dtype in DTYPES]
        self.alice.push(self.url, self.made[0])
        self.oldest = self.log.read_bytes()
        self.alice.push(self.url, self.made[1])
        self.worker = Worker.at(root / "home", self.url, trusts=[self.alice])
        assert isinstance(self.worker.fetch(), Taken)
        self.alice.push(self.url, self.made[2])
        without_time(self.worker)

    @property
    def log(self) -> Path:
        return self.folder / published_log.log_name(self.alice.public)

    @property
    def lines(self) -> list[bytes]:
        return self.log.read_bytes().split(b"\n")

    def show(self, lines: list[bytes]) -> None:
        """Have the store show these lines, and no other."""
        self.log.write_bytes(b"\n".join(lines))
        shutil.rmtree(self.folder / "log" / self.alice.public, ignore_errors=True)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def signed_by(private: bytes, world: World, entry: Entry, number: int, before: str) -> bytes:
    """A line under the publisher's name."""
    wanted, manifest = key_digest(entry.manifest.key), blake3(entry.text).hexdigest()
    line = published_log.LogLine(
        publisher=world.alice.public, number=number, before=before, what="published", key=wanted, manifest=manifest
    )
    return records.signed(private, published_log._PURPOSE, line.model_dump_json())


def a_missing_first_line(world: World) -> None:
    world.show(world.lines[1:])


def a_missing_line(world: World) -> None:
    first, _, third = world.lines
    world.show([first, third])


def two_lines_in_the_other_order(world: World) -> None:
    first, second, third = world.lines
    world.show([second, first, third])


def a_line_twice(world: World) -> None:
    first, second, third = world.lines
    world.show([first, second, second, third])


def a_changed_line(world: World) -> None:
    """That of another graph, with the signature as it was."""
    first, second, third = world.lines
    old, new = (blake3(world.made[number].text).hexdigest().encode() for number in (1, 2))
    world.show([first, second.replace(old, new), third])


def a_changed_last_line(world: World) -> None:
    first, second, third = world.lines
    old, new = (blake3(world.made[number].text).hexdigest().encode() for number in (2, 1))
    world.show([first, second, third.replace(old, new)])


def a_line_of_nonsense(world: World) -> None:
    first, _, third = world.lines
    world.show([first, b"[" * 100_000, third])


def nonsense(world: World) -> None:
    world.log.write_text("<html>It works!</html>")


def an_empty_log(world: World) -> None:
    world.show([b""])


def no_log(world: World) -> None:
    shutil.rmtree(world.folder / "log")


def a_truncated_log(world: World) -> None:
    world.show(world.lines[:1])


def an_older_log(world: World) -> None:
    world.show(world.oldest.split(b"\n"))


def a_fork_without_the_key(world: World) -> None:
    """A stranger goes on from the first line with a graph of his own."""
    stranger = Publisher(Store(world.folder.parent / "mallory"))
    first = json.loads(world.lines[0])["statement"]
    head = blake3(first.encode()).hexdigest()
    evil = stranger.make(LATEST, b"evil")
    world.show([world.lines[0], signed_by(stranger.private, world, evil, 2, head)])


def a_strangers_log(world: World) -> None:
    """The whole log of a stranger, who pushed into the store, at the place of the publisher's."""
    stranger = Publisher(Store(world.folder.parent / "mallory"))
    stranger.push(world.url, stranger.make(LATEST, b"evil"))
    world.log.write_bytes((world.folder / published_log.log_name(stranger.public)).read_bytes())


def a_log_of_her_own_from_another_store(world: World) -> None:
    """Whole and signed, and the graph is in it; it is not what this store showed before."""
    other = world.folder.parent / "other"
    world.alice.push(f"file://{other}", *world.made[::-1])
    world.show((other / published_log.log_name(world.alice.public)).read_bytes().split(b"\n"))


def a_fork_with_the_key(world: World) -> None:
    """Whoever stole the key cannot put a graph in the place of one that others have seen."""
    head = blake3(json.loads(world.lines[0])["statement"].encode()).hexdigest()
    world.show([world.lines[0], signed_by(world.alice.private, world, world.made[2], 2, head)])


ATTACKS: dict[Callable[[World], None], str] = {
    a_missing_first_line: "store_log_broken",
    a_missing_line: "store_log_broken",
    two_lines_in_the_other_order: "store_log_broken",
    a_line_twice: "store_log_broken",
    a_changed_line: "store_log_broken",
    a_changed_last_line: "store_log_not_signed",
    a_line_of_nonsense: "store_log_broken",
    nonsense: "store_log_not_signed",
    an_empty_log: "store_log_not_signed",
    no_log: "store_log_missing",
    a_truncated_log: "store_log_older",
    an_older_log: "store_log_older",
    a_fork_without_the_key: "store_log_not_signed",
    a_strangers_log: "store_log_not_signed",
    a_log_of_her_own_from_another_store: "store_log_forked",
    a_fork_with_the_key: "store_log_forked",
}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_another_history_is_refused_by_its_code(attack: Callable[[World], None], world: World) -> None:
    attack(world)
    found = world.worker.fetch(LATEST)
    assert isinstance(found, reasons.StoreLog), found
    assert found.code == ATTACKS[attack]
    later = Worker.at(world.worker.store.home, world.url)  # a later process of the same user
    refused = later.fetch(LATEST)
    assert isinstance(refused, reasons.StoreLog) and refused.code == ATTACKS[attack]
    assert len([name for name in world.worker.files() if name.endswith(".aoti")]) == 1  # the first one
    assert onegraph(world.worker.store, "log", world.url).exit_code == 1
    pulled = onegraph(world.worker.store, "pull", world.url, "--all")
    assert pulled.exit_code == 1
    assert len([name for name in world.worker.files() if name.endswith(".aoti")]) == 1
    assert isinstance(later.store.find(key()), Hit)  # what is here already is used as before


def test_without_an_attack_the_log_is_believed(world: World) -> None:
    assert isinstance(world.worker.fetch(LATEST), Taken)
    assert onegraph(world.worker.store, "log", world.url).exit_code == 0


def test_a_reader_who_cannot_list_is_told_the_same(world: World) -> None:
    with http_server(world.folder) as server:
        worker = Worker.at(world.folder.parent / "by-http", server.url, trusts=[world.alice])
        assert isinstance(worker.fetch(), Taken)
        a_truncated_log(world)
        later = Worker.at(worker.store.home, server.url)
        assert later.fetch(LATEST) == reasons.StoreLogOlder(remote_of(server.url).label, "fleet", 1, 3)


def test_a_graph_that_is_not_in_the_log_is_refused(world: World) -> None:
    """A thief of the key who signs a graph for one victim, and does not show it to all who read the log."""
    thief = another_machine(world.alice, world.folder.parent / "thief")
    other = world.folder.parent / "other"
    evil = thief.make(LATEST, b"evil")
    thief.push(f"file://{other}", evil)
    for name in ("objects", "records"):
        shutil.copytree(other / name, world.folder / name, dirs_exist_ok=True)
    assert world.worker.fetch(LATEST) == reasons.StoreGraphNotLogged("file:remote", "fleet")
    found = json.loads(onegraph(world.worker.store, "pull", world.url, "--all", "--json").stdout)
    assert sorted(row["code"] for row in found["graphs"]) == ["", "", "store_graph_not_logged"]


def test_a_last_line_written_otherwise_poisons_no_memory(world: World) -> None:
    """Anybody can write a signed statement with more white space. Who saw that still believes the true log later."""
    first, second, third = world.lines
    true = world.log.read_bytes()
    world.log.write_bytes(b"\n".join([first, second, b" " + third]))
    assert isinstance(world.worker.fetch(LATEST), Taken)
    world.log.write_bytes(true)
    world.alice.push(world.url, world.alice.make(key(dtype="float8")))
    later = Worker.at(world.worker.store.home, world.url)
    assert isinstance(later.fetch(key(dtype="float8")), Taken)


def test_a_forged_log_costs_one_signature(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[str]()
    is_signed = records.ed25519.is_signed
    monkeypatch.setattr(records.ed25519, "is_signed", lambda key, *rest: seen.append(key) or is_signed(key, *rest))
    forged = b"\n".join([*world.lines * 100, world.lines[2].replace(b'"number\\":3', b'"number\\":4')])
    publisher = records.Publisher("fleet", world.alice.public)
    assert published_log.read(forged, "store", publisher)[1] == reasons.StoreLogNotSigned("store", "fleet")
    assert len(seen) == 1
    too_long = b"\n".join([*world.lines * 12_000])
    assert len(too_long) > published_log.MOST_BYTES
    assert published_log.read(too_long, "store", publisher)[1] == reasons.StoreLogNotSigned("store", "fleet")
    assert len(seen) == 1


@pytest.mark.parametrize("planted", ["nonsense", "another of her lines"])
def test_a_planted_line_stops_no_publisher(planted: str, world: World) -> None:
    """At the next number."""
    next_line = world.folder / published_log.line_name(world.alice.public, 4)
    next_line.write_bytes(b"planted" if planted == "nonsense" else world.lines[1])
    fourth = world.alice.make(key(dtype="float8"))
    assert world.alice.push(world.url, fourth) == ["pushed"]
    assert len(world.lines) == 4
    writer = LogWriter(remote_of(world.url), world.alice.public)
    assert [one.number for one in writer.current().entries] == [1, 2, 3, 4]
    assert isinstance(world.worker.fetch(key(dtype="float8")), Taken)
