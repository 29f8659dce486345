"""Withdrawals only add up: over stores, machines that withdraw at once, rolled back stores and mirrors."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

import pytest
from blake3 import blake3
from support.fleet.servers import FileServer, http_server
from support.fleet.stores import Publisher, Worker, remote_of, without_time
from support.store.entries import key

from onegraph.common import reasons
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.sources import commands, records
from onegraph.graph_cache.sources.source import Taken
from onegraph.graph_cache.sources.transport import Remote, StoreError
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust import withdrawals

TEXTS = [f"graph {number}".encode() for number in range(20)]


def machine(alice: Publisher, home: Path) -> Publisher:
    """Another machine of the publisher's: the same key, and a graph folder that knows nothing."""
    home.mkdir()
    home.joinpath("publisher.key").write_bytes(alice.private)
    home.joinpath("publisher.key").chmod(0o600)
    return Publisher(Store(home))


def take_back(publisher: Publisher, url: str, *texts: bytes) -> None:
    publisher.pusher(url).withdraw(blake3(text).hexdigest() for text in texts)


def known(alice: Publisher, home: Path, *urls: str) -> list[bytes]:
    """Which of the graphs a new worker knows as withdrawn after its start."""
    worker = Worker.at(home, *urls, trusts=[alice])
    worker.store.remotes.refresh()
    return [text for text in TEXTS if withdrawals.is_withdrawn(home, alice.public, text)]


def test_withdrawals_of_all_stores_add_up(alice: Publisher, tmp_path: Path) -> None:
    """A worker learns of those in any; and a publisher takes them to each store that she pushes to."""
    first, second = urls = [(tmp_path / name).as_uri() for name in ("one", "two")]
    for number, url in enumerate(urls):
        take_back(machine(alice, tmp_path / f"machine-{number}"), url, TEXTS[number])
    assert known(alice, tmp_path / "home", *urls) == TEXTS[:2]
    take_back(alice, first, TEXTS[2])
    take_back(alice, second, TEXTS[3])
    assert known(alice, tmp_path / "home-2", second) == TEXTS[:4]
    alice.push(first, alice.make())
    assert known(alice, tmp_path / "home-1", first) == TEXTS[:4]


@pytest.mark.parametrize("lost", ["everything", "the list", "the files"])
def test_the_next_push_mends_a_store_that_lost_withdrawals(
    lost: str, alice: Publisher, folder: Path, url: str, made: Entry, served: FileServer, tmp_path: Path
) -> None:
    before = tmp_path / "before"
    shutil.copytree(folder, before)
    take_back(alice, url, *TEXTS[:3])
    alice.withdraw(url, made)
    if lost == "everything":  # the store is as it was before
        shutil.rmtree(folder)
        before.rename(folder)
    elif lost == "the list":
        (folder / records.withdrawn_name(alice.public)).unlink()
    else:
        shutil.rmtree(folder / "withdrawn" / alice.public)
    assert alice.push(url, alice.make(key(dtype="float16"))) == ["pushed"]
    assert (folder / "withdrawn" / alice.public).is_dir()
    assert known(alice, tmp_path / "by-http", served.url) == TEXTS[:3]
    assert known(alice, tmp_path / "by-list", url) == TEXTS[:3]
    assert Worker.at(tmp_path / "by-list", url).fetch() is None  # no record names it any more
    assert alice.push(url, made) == ["left out"]


def test_twenty_machines_withdraw_at_once(
    alice: Publisher, folder: Path, url: str, served: FileServer, tmp_path: Path
) -> None:
    machines = [machine(alice, tmp_path / f"machine-{number}") for number in range(20)]
    with ThreadPoolExecutor(20) as pool:
        assert len([*pool.map(take_back, machines, repeat(url), TEXTS)]) == 20
    assert len([*(folder / "withdrawn" / alice.public).iterdir()]) == 20
    assert known(alice, tmp_path / "by-http", served.url) == TEXTS
    assert known(alice, tmp_path / "by-list", url) == TEXTS


@pytest.mark.parametrize("slashes", [(1, 2), (1,), (2,)], ids=["all", "the list", "the files"])
def test_a_withdrawal_that_cannot_be_read_back_is_no_success(
    slashes: tuple[int, ...], alice: Publisher, folder: Path, url: str, made: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Remote.write

    def lossy(self: Remote, name: str, data: bytes, **mode: str) -> None:
        if not (name.startswith("withdrawn/") and name.count("/") in slashes):
            write(self, name, data, **mode)

    monkeypatch.setattr(Remote, "write", lossy)
    with pytest.raises(StoreError) as error:
        alice.withdraw(url, made)
    assert isinstance(error.value.reason, reasons.StoreReadOnly)
    monkeypatch.undo()
    alice.push(url)  # it is not forgotten
    assert (folder / records.withdrawn_name(alice.public)).exists()


def test_a_mirror_takes_no_withdrawal_off(alice: Publisher, url: str, tmp_path: Path) -> None:
    copy = (tmp_path / "copy").as_uri()
    take_back(alice, copy, TEXTS[0])
    take_back(machine(alice, tmp_path / "machine"), url, TEXTS[1])
    for did in ("copied", "there already"):
        assert {one.did for one in commands.mirror(remote_of(url), remote_of(copy))} == {did}
        with http_server(tmp_path / "copy") as server:
            assert known(alice, tmp_path / f"home-{did}", server.url) == TEXTS[:2]


def test_what_was_learnt_of_one_store_counts_for_all(alice: Publisher, tmp_path: Path) -> None:
    """Also within the hour in which the other store is not asked anew, and where nothing can be kept."""
    first, second = ((tmp_path / name).as_uri() for name in ("one", "two"))
    made: Entry = alice.make()
    alice.push(first, alice.make(key(dtype="float16")))
    alice.push(second, made)
    worker = Worker.at(tmp_path / "home", first, second, trusts=[alice])
    worker.store.remotes.refresh()
    (worker.store.home / ".withdrawn").write_text("in the way")
    alice.withdraw(first, made)
    worker.store.remotes._layers[0].withdrawn.clear()
    worker.store.remotes.refresh()
    assert worker.fetch() == reasons.StoreGraphWithdrawn("file:two", "fleet")


def test_a_publisher_takes_back_no_graph_of_another(
    alice: Publisher, folder: Path, url: str, made: Entry, tmp_path: Path
) -> None:
    """A withdrawal is of the publisher who signed it, trusted or not."""
    mallory = Publisher(Store(tmp_path / "mallory"))
    mallory.push(url, mallory.make(key(dtype="float16")))
    take_back(mallory, url, made.text)
    worker = Worker.at(tmp_path / "home", url, trusts=[alice, mallory])
    worker.store.remotes.refresh()
    assert isinstance(worker.fetch(), Taken)
    assert withdrawals.is_withdrawn(worker.store.home, mallory.public, made.text)
    assert not withdrawals.is_withdrawn(worker.store.home, alice.public, made.text)
    without_time(worker)
    mallory_file = folder / records.withdrawn_name(mallory.public)
    shutil.copy(mallory_file, folder / records.withdrawn_name(alice.public))
    with pytest.raises(AssertionError):
        assert known(alice, tmp_path / "other", url)


@pytest.mark.parametrize("name", ["list", "file"])
@pytest.mark.parametrize("takes_back", [0, 2])
def test_the_next_push_mends_what_nobody_signed(
    name: str,
    takes_back: int,
    alice: Publisher,
    folder: Path,
    url: str,
    made: Entry,
    served: FileServer,
    tmp_path: Path,
) -> None:
    """Whoever can write the store may stop a fleet that reads it, until the publisher pushes again."""
    url = folder.as_uri()
    take_back(alice, url, *TEXTS[:takes_back])
    file = records.withdrawal_name(alice.public, blake3(made.text).hexdigest())
    forged = folder / (file if name == "file" else records.withdrawn_name(alice.public))
    forged.parent.mkdir(parents=True, exist_ok=True)
    Publisher(Store(tmp_path / "mallory")).withdraw((tmp_path / "other").as_uri(), made)
    forged.write_bytes(next((tmp_path / "other" / "withdrawn").glob("*.json")).read_bytes())
    worker = Worker.at(tmp_path / "home", url, trusts=[alice])
    assert worker.fetch() == reasons.StoreWrongSignature("file:remote", "fleet")
    alice.push(url, made)
    without_time(worker)
    assert isinstance(worker.fetch(), Taken)
    assert known(alice, tmp_path / "by-http", served.url) == TEXTS[:takes_back]


def test_a_forged_list_costs_one_signature(
    alice: Publisher, folder: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[str]()
    mallory = Publisher(Store(folder.parent / "mallory"))
    take_back(mallory, url, *TEXTS)
    data = (folder / records.withdrawn_name(mallory.public)).read_bytes()
    is_signed = withdrawals.ed25519.is_signed
    monkeypatch.setattr(withdrawals.ed25519, "is_signed", lambda key, *rest: seen.append(key) or is_signed(key, *rest))
    forged = data.replace(mallory.public.encode(), alice.public.encode())
    assert withdrawals.read(forged, alice.public) == ({}, False)
    assert withdrawals.read(data.splitlines()[0] + b"\n" + data, mallory.public)[1] is False  # a line twice
    assert len(seen) == 2
    assert len(withdrawals.read(data, mallory.public)[0]) == 20
    assert len(seen) == 22
    first, *rest = data.splitlines()
    for line in (b"{}", b"not JSON", rest[0][:-2]):
        lines, right = withdrawals.read(b"\n".join([first, line, *rest]), mallory.public)
        assert ([*lines.values()], right) == ([first], False)
