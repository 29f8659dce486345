"""Withdrawals only add up: over stores, machines that withdraw at once, rolled back stores and mirrors."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from blake3 import blake3
from support.fleet.servers import FileServer, http_server
from support.fleet.stores import Publisher, Worker, remote_of, without_time
from support.store.entries import key
from typer.testing import CliRunner, Result

from onegraph.cli.app import app
from onegraph.common import reasons
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.sources import commands, records
from onegraph.graph_cache.sources.source import Taken
from onegraph.graph_cache.sources.transport import Remote
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust import withdrawals

TEXTS = [f"graph {number}".encode() for number in range(20)]


@pytest.fixture
def alice(tmp_path: Path) -> Publisher:
    return Publisher(Store(tmp_path / "alice"))


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


def onegraph(store: Store, *arguments: object) -> Result:
    runner = CliRunner(env={"ONEGRAPH_HOME": str(store.home), "COLUMNS": "240"})
    return runner.invoke(app, list(map(str, arguments)), catch_exceptions=False)


def test_what_two_stores_tell_adds_up(alice: Publisher, tmp_path: Path) -> None:
    urls = [f"file://{tmp_path / name}" for name in ("one", "two")]
    for number, url in enumerate(urls):
        take_back(machine(alice, tmp_path / f"machine-{number}"), url, TEXTS[number])
    assert known(alice, tmp_path / "home", *urls) == TEXTS[:2]


def test_a_publisher_takes_withdrawals_to_every_store(alice: Publisher, tmp_path: Path) -> None:
    first, second = (f"file://{tmp_path / name}" for name in ("one", "two"))
    take_back(alice, first, TEXTS[0])
    take_back(alice, second, TEXTS[1])
    assert known(alice, tmp_path / "home-2", second) == TEXTS[:2]
    alice.push(first, alice.make())
    assert known(alice, tmp_path / "home-1", first) == TEXTS[:2]


@pytest.mark.parametrize("lost", ["everything", "the list", "the files"])
def test_the_next_push_mends_a_store_that_lost_withdrawals(
    lost: str, alice: Publisher, folder: Path, served: FileServer, tmp_path: Path
) -> None:
    url, made = f"file://{folder}", alice.make()
    alice.push(url, made)
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


def test_twenty_machines_withdraw_at_once(alice: Publisher, folder: Path, served: FileServer, tmp_path: Path) -> None:
    url = f"file://{folder}"
    machines = [machine(alice, tmp_path / f"machine-{number}") for number in range(20)]
    threads = [
        threading.Thread(target=take_back, args=(one, url, text)) for one, text in zip(machines, TEXTS, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([*(folder / "withdrawn" / alice.public).iterdir()]) == 20
    assert known(alice, tmp_path / "by-http", served.url) == TEXTS
    assert known(alice, tmp_path / "by-list", url) == TEXTS


def drop_all(name: str) -> bool:
    return name.startswith("withdrawn/")


def drop_the_list(name: str) -> bool:
    return name.startswith("withdrawn/") and name.count("/") == 1


def drop_the_file(name: str) -> bool:
    return name.startswith("withdrawn/") and name.count("/") == 2


@pytest.mark.parametrize("drops", [drop_all, drop_the_list, drop_the_file])
def test_a_withdrawal_that_cannot_be_read_back_is_no_success(
    drops: Callable[[str], bool], alice: Publisher, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, write = alice.make(), Remote.write
    alice.push(f"file://{folder}", made)

    def lossy(self: Remote, name: str, data: bytes) -> None:
        if not drops(name):
            write(self, name, data)

    monkeypatch.setattr(Remote, "write", lossy)
    done = onegraph(alice.store, "withdraw", f"file://{folder}", made.folder.name[-12:])
    assert (done.exit_code, done.stdout.count("\n")) == (1, 1), done.stdout
    monkeypatch.undo()
    alice.push(f"file://{folder}")  # it is not forgotten
    assert (folder / records.withdrawn_name(alice.public)).exists()


def test_a_name_that_no_graph_has_withdraws_nothing(alice: Publisher, folder: Path) -> None:
    made = alice.make()
    alice.push(f"file://{folder}", made)
    done = onegraph(alice.store, "withdraw", f"file://{folder}", made.folder.name[-12:], "0123456789ab")
    assert done.exit_code == 1
    assert not (folder / "withdrawn").exists()


def test_a_mirror_takes_no_withdrawal_off(alice: Publisher, folder: Path, tmp_path: Path) -> None:
    url, copy = f"file://{folder}", f"file://{tmp_path / 'copy'}"
    take_back(alice, copy, TEXTS[0])
    take_back(machine(alice, tmp_path / "machine"), url, TEXTS[1])
    for did in ("copied", "there already"):
        assert {one.did for one in commands.mirror(remote_of(url), remote_of(copy))} == {did}
        with http_server(tmp_path / "copy") as server:
            assert known(alice, tmp_path / f"home-{did}", server.url) == TEXTS[:2]


def test_what_was_learnt_of_one_store_counts_for_all(alice: Publisher, tmp_path: Path) -> None:
    """Also within the hour in which the other store is not asked anew, and where nothing can be kept."""
    first, second = (f"file://{tmp_path / name}" for name in ("one", "two"))
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


def test_an_older_list_of_a_web_server_takes_nothing_off(
    alice: Publisher, folder: Path, served: FileServer, tmp_path: Path
) -> None:
    """A cache before the store may keep an old list, and the worker has read the store itself."""
    url = f"file://{folder}"
    made, other = alice.make(), alice.make(key(dtype="float16"))
    alice.push(url, made, other)
    record = folder / records.record_name(alice.public, records.key_digest(key().fields()))
    list_name = folder / records.withdrawn_name(alice.public)
    alice.withdraw(url, other)
    before, older = record.read_bytes(), list_name.read_bytes()
    alice.withdraw(url, made)
    worker = Worker.at(tmp_path / "home", url, trusts=[alice])
    list_name.write_bytes(older)
    worker.store.remotes.refresh()  # finds the file that the list lacks
    shutil.rmtree(folder / "withdrawn" / alice.public)
    record.write_bytes(before)
    later = Worker.at(tmp_path / "home", served.url)
    assert later.fetch() == reasons.StoreGraphWithdrawn(f"{served.url}", "fleet")


def test_a_publisher_takes_back_no_graph_of_another(alice: Publisher, folder: Path, tmp_path: Path) -> None:
    """A withdrawal is of the publisher who signed it, trusted or not."""
    url, made = f"file://{folder}", alice.make()
    mallory = Publisher(Store(tmp_path / "mallory"))
    alice.push(url, made)
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
    name: str, takes_back: int, alice: Publisher, folder: Path, served: FileServer, tmp_path: Path
) -> None:
    """Whoever can write the store may stop a fleet that reads it, until the publisher pushes again."""
    url, made = f"file://{folder}", alice.make()
    alice.push(url, made)
    take_back(alice, url, *TEXTS[:takes_back])
    forged = (
        folder
        / {
            "list": records.withdrawn_name(alice.public),
            "file": records.withdrawal_name(alice.public, blake3(made.text).hexdigest()),
        }[name]
    )
    forged.parent.mkdir(parents=True, exist_ok=True)
    Publisher(Store(tmp_path / "mallory")).withdraw(f"file://{tmp_path / 'other'}", made)
    forged.write_bytes(next((tmp_path / "other" / "withdrawn").glob("*.json")).read_bytes())
    worker = Worker.at(tmp_path / "home", url, trusts=[alice])
    assert worker.fetch() == reasons.StoreWrongSignature("file:remote", "fleet")
    alice.push(url, made)
    without_time(worker)
    assert isinstance(worker.fetch(), Taken)
    assert known(alice, tmp_path / "by-http", served.url) == TEXTS[:takes_back]


def test_a_forged_list_costs_one_signature(alice: Publisher, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, seen = f"file://{folder}", list[str]()
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
