"""`onegraph push`, `pull`, `mirror`, `withdraw` and `gc`, as a user runs them."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import pytest
from support.fleet.servers import http_server
from support.fleet.stores import Publisher, Worker, remote_of
from support.store.command import onegraph
from support.store.entries import key, trust
from typer.testing import Result

from onegraph.graph_cache.key import key_digest
from onegraph.graph_cache.lookup import Hit
from onegraph.graph_cache.sources import commands, records
from onegraph.graph_cache.sources.source import Taken
from onegraph.graph_cache.sources.transport import Remote, StoreError
from onegraph.graph_cache.store import Store

DTYPES = ("float32", "float16", "bfloat16")


def last(done: Result) -> str:
    return done.stdout.splitlines()[-1]


def test_push_pull_and_use(alice: Publisher, bob: Store, tmp_path: Path) -> None:
    for dtype in DTYPES:
        alice.make(key(dtype=dtype))
    url = (tmp_path / "remote").as_uri()
    done = onegraph(alice.store, "push", url)
    assert done.exit_code == 0
    (public,) = re.findall(r"onegraph trust add NAME ([0-9a-f]{64})$", done.stdout, re.MULTILINE)
    assert last(done).startswith("3 graphs pushed, 0 there already")
    assert last(onegraph(alice.store, "push", url)) == "0 graphs pushed, 3 there already, 0.0 MiB"
    assert onegraph(bob, "pull", url).exit_code == 1  # nobody is trusted
    trust(bob, public)
    with http_server(tmp_path / "remote") as server:  # by the index, since nothing can be listed
        done = onegraph(bob, "pull", server.url, "--all")
    assert (done.exit_code, last(done)) == (0, "3 graphs pulled, 0 there already, 0 for other machines, 0.0 MiB")
    done = onegraph(bob, "pull", url, "--all", "--trust", "fleet")
    assert last(done) == "0 graphs pulled, 3 there already, 0 for other machines, 0.0 MiB"
    assert isinstance(bob.find(key()), Hit)
    again = onegraph(bob, "pull", url)  # the target of these graphs is no machine's
    assert last(again).endswith("3 for other machines, 0.0 MiB")


def test_a_push_that_was_stopped_goes_on(alice: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever write it was stopped at, the next push ends with a whole store, and workers saw nothing half written."""
    write, left = Remote.write, 0

    def counted(self: Remote, name: str, data: bytes, **mode: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        write(self, name, data, **mode)

    monkeypatch.setattr(Remote, "write", counted)
    entries = [alice.make(key(dtype=dtype), content=dtype.encode()) for dtype in DTYPES[:2]]
    for stop in range(14):  # three files, two manifests, two lines and twice the log, two graphs, two records, an index
        url, left = (tmp_path / f"remote-{stop}").as_uri(), stop
        with pytest.raises(KeyboardInterrupt):
            alice.push(url, *entries)
        worker = Worker.at(tmp_path / f"early-{stop}", url, trusts=[alice])
        assert isinstance(worker.fetch(), Taken if stop > 6 else type(None))
        left = 100
        alice.push(url, *entries)
        assert left == 100 - (14 - stop)
        worker = Worker.at(tmp_path / f"late-{stop}", url, trusts=[alice])
        assert [isinstance(worker.fetch(key(dtype=dtype)), Taken) for dtype in DTYPES[:2]] == [True, True]


def test_pushers_at_the_same_time_lose_nothing(alice: Publisher, tmp_path: Path) -> None:
    """Twelve graphs of one key, as for twelve versions of the host, by twelve machines of the publisher's."""
    url = (tmp_path / "remote").as_uri()
    entries = [alice.make(content=f"{number}".encode(), version=f"{number}") for number in range(12)]
    threads = [threading.Thread(target=alice.push, args=(url, entry)) for entry in entries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    name = records.record_name(alice.public, key_digest(key().fields()))
    found = records.read(
        (tmp_path / "remote" / name).read_bytes(), "", records.Publisher("", alice.public), name[-69:-5]
    )
    assert isinstance(found, records.Record)
    assert len(found.graphs) == 12


def test_a_mirror_is_whole_and_goes_on(alice: Publisher, tmp_path: Path) -> None:
    url, copy = (tmp_path / "remote").as_uri(), (tmp_path / "copy").as_uri()
    alice.push(url, *(alice.make(key(dtype=dtype), content=dtype.encode()) for dtype in DTYPES))
    done = onegraph(alice.store, "mirror", url, copy)
    assert done.exit_code == 0 and re.match(r"\d+ files copied", last(done))
    assert last(onegraph(alice.store, "mirror", url, copy)) == "0 files copied, 0.0 MiB"
    lost = next((tmp_path / "copy" / "objects").glob("*/*"))
    lost.unlink()
    assert last(onegraph(alice.store, "mirror", url, copy)).startswith("1 file copied")
    worker = Worker.at(tmp_path / "home", copy, trusts=[alice])
    assert isinstance(worker.fetch(), Taken)


def test_garbage_is_what_nobody_names(alice: Publisher, tmp_path: Path) -> None:
    url, folder = (tmp_path / "remote").as_uri(), tmp_path / "remote"
    first, second = (alice.make(key(dtype=dtype), content=dtype.encode() * 100) for dtype in DTYPES[:2])
    alice.push(url, first, second)
    before = {path for path in folder.rglob("*") if path.is_file()}
    assert last(onegraph(alice.store, "gc", url, "--grace", "0")).startswith("0 files removed")
    done = onegraph(alice.store, "withdraw", url, first.manifest.key["dtype"])
    assert done.exit_code == 1  # no graph has that name
    listed = json.loads(onegraph(alice.store, "ls", "--json").stdout)["graphs"]
    (name,) = [row["id"] for row in listed if row["dtype"] == "float32"]
    done = onegraph(alice.store, "withdraw", url, name)
    assert done.exit_code == 0 and last(done) == "1 graph withdrawn; 1 so far"
    young = onegraph(alice.store, "gc", url)
    assert last(young) == "0 files removed, 0.0 MiB; 2 files too young"
    dry = json.loads(onegraph(alice.store, "gc", url, "--grace", "0", "--dry-run", "--json").stdout)
    assert len(dry["files"]) == 2  # its manifest and its file; the weights' list is the other's, too
    assert all((folder / path).exists() for path in dry["files"])
    done = onegraph(alice.store, "gc", url, "--grace", "0")
    assert last(done).startswith("2 files removed")
    assert not any((folder / path).exists() for path in dry["files"])
    worker = Worker.at(tmp_path / "home", url, trusts=[alice])
    assert isinstance(worker.fetch(key(dtype="float16")), Taken)
    assert worker.fetch() is None
    assert len(before) - len([path for path in before if path.exists()]) == 3  # and the graph's own statement


def test_garbage_is_not_collected_where_a_record_cannot_be_read(alice: Publisher, tmp_path: Path) -> None:
    url = (tmp_path / "remote").as_uri()
    alice.push(url, alice.make())
    next((tmp_path / "remote" / "records").glob("*/*/*")).write_text("?")
    with pytest.raises(StoreError):
        commands.garbage(remote_of(url), 0.0)
    done = onegraph(alice.store, "gc", url, "--grace", "0")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)


def test_a_name_that_no_graph_has_withdraws_nothing(alice: Publisher, tmp_path: Path) -> None:
    made, url = alice.make(), (tmp_path / "remote").as_uri()
    alice.push(url, made)
    done = onegraph(alice.store, "withdraw", url, made.folder.name[-12:], "0123456789ab")
    assert done.exit_code == 1
    assert not (tmp_path / "remote" / "withdrawn").exists()


def test_a_store_that_cannot_be_written_is_one_line(alice: Publisher, tmp_path: Path) -> None:
    alice.make()
    (tmp_path / "remote").write_text("a file")
    done = onegraph(alice.store, "push", (tmp_path / "remote").as_uri())
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1), done.stderr
    with http_server(tmp_path) as server:
        assert onegraph(alice.store, "push", server.url).exit_code == 1
        assert onegraph(alice.store, "mirror", server.url, (tmp_path / "x").as_uri()).exit_code == 1
    assert onegraph(alice.store, "push", "nothing").exit_code == 1


def test_a_withdrawal_that_a_store_loses_is_one_line(
    alice: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, url = alice.make(), (tmp_path / "remote").as_uri()
    alice.push(url, made)
    monkeypatch.setattr(Remote, "write", lambda *args, **mode: None)
    done = onegraph(alice.store, "withdraw", url, made.folder.name[-12:])
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1), done.stderr


def test_what_is_not_sound_is_not_pushed(alice: Publisher, tmp_path: Path) -> None:
    entry = alice.make()
    (entry.folder / "graph.aoti").write_bytes(b"evil")
    done = json.loads(onegraph(alice.store, "push", (tmp_path / "remote").as_uri(), "--json").stdout)
    assert [row["code"] for row in done["graphs"]] == ["digest_differs"]
    assert not (tmp_path / "remote" / "records").exists()


@pytest.mark.parametrize("address", ["ftp://x", "ssh://x", "abfs://x", "memory://x", "reference://x", "s3://", "x", ""])
def test_an_address_that_is_none_is_one_line(address: str, alice: Publisher, bob: Store, tmp_path: Path) -> None:
    """The protocols are those of the documentation: nobody installs a package of any other's name."""
    entry, url, copy = alice.make(), (tmp_path / "remote").as_uri(), (tmp_path / "copy").as_uri()
    alice.push(url, entry)
    trust(bob, alice.public)
    for store, arguments in (
        (alice.store, ["push", address]), (bob, ["pull", address]), (bob, ["gc", address]),
        (bob, ["mirror", address, copy]), (bob, ["mirror", url, address]),
        (alice.store, ["withdraw", address, entry.folder.name[-12:]]),
    ):  # fmt: skip
        done = onegraph(store, *arguments)
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1), arguments
        assert "is no address of a store" in done.stderr


def test_a_folder_that_is_not_there_is_no_empty_store(alice: Publisher, bob: Store, tmp_path: Path) -> None:
    entry = alice.make()
    alice.push((tmp_path / "remote").as_uri(), entry)
    trust(bob, alice.public)
    typo = (tmp_path / "typo").as_uri()
    for store, arguments in (
        (bob, ["pull", typo]), (bob, ["gc", typo]), (bob, ["mirror", typo, (tmp_path / "copy").as_uri()]),
        (alice.store, ["withdraw", typo, entry.folder.name[-12:]]),
    ):  # fmt: skip
        done = onegraph(store, *arguments)
        assert (done.exit_code, done.stdout) == (2, "")
        assert f"{(tmp_path / 'typo').as_posix()} does not exist" in done.stderr
    assert not (tmp_path / "typo").exists() and not (tmp_path / "copy").exists()
