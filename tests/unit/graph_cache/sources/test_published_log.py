"""The log of what was published: who adds lines, at once with others or killed meanwhile; mirrors; what it costs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from blake3 import blake3
from support.fleet.push_many import DIED, another_machine, begin
from support.fleet.servers import FileServer
from support.fleet.stores import Publisher, Worker, remote_of, without_time
from support.store.command import onegraph
from support.store.entries import key, trust

from onegraph.cli.sharing import NOBODY
from onegraph.common import reasons
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.key import key_digest
from onegraph.graph_cache.sources import commands, published_log, pushing, records
from onegraph.graph_cache.sources.published_log import Log, LogWriter
from onegraph.graph_cache.sources.source import Taken
from onegraph.graph_cache.sources.transport import StoreError
from onegraph.graph_cache.store import Store

HALF = key(dtype="float16")


def log_of(alice: Publisher, url: str) -> Log:
    """The log of a store, if it is whole; and its lines are those of the files of one line each."""
    remote, publisher = remote_of(url), records.Publisher("fleet", alice.public)
    log, wrong = published_log.read(
        remote.read(published_log.log_name(alice.public), published_log.MOST_BYTES) or b"", remote.label, publisher
    )
    assert wrong is None, wrong
    names = [published_log.line_name(alice.public, number) for number, _ in enumerate(log.lines, 1)]
    assert sorted(remote.list(f"log/{alice.public}")) == names
    assert [remote.read(name, 4096) for name in names] == log.lines
    return log


def facts(log: Log) -> list[tuple[int, str, str, str]]:
    return [(one.number, one.what, one.key, one.manifest) for one in log.entries]


def digests(entry: Entry) -> tuple[str, str]:
    return key_digest(entry.manifest.key), blake3(entry.text).hexdigest()


def test_what_is_pushed_and_withdrawn_has_a_line_each(alice: Publisher, url: str, made: Entry) -> None:
    other = alice.make(HALF)
    alice.push(url, made, other)
    alice.withdraw(url, made)
    alice.push(url, made, other)  # nothing new
    wanted = [(1, "published", *digests(made)), (2, "published", *digests(other)), (3, "withdrawn", *digests(made))]
    log = log_of(alice, url)
    assert facts(log) == wanted
    assert [one.before for one in log.entries] == log.digests[:-1]


def test_a_store_of_an_older_version_has_a_log_after_the_next_push(
    alice: Publisher, folder: Path, url: str, made: Entry, tmp_path: Path
) -> None:
    shutil.rmtree(folder / "log")
    shutil.rmtree(alice.store.home / published_log.FOLDER)
    assert isinstance(Worker.at(tmp_path / "early", url, trusts=[alice]).fetch(), Taken)  # it works without one
    alice.push(url)
    assert facts(log_of(alice, url)) == [(1, "published", *digests(made))]
    assert isinstance(Worker.at(tmp_path / "late", url, trusts=[alice]).fetch(), Taken)


def test_two_machines_push_at_once(alice: Publisher, url: str, tmp_path: Path) -> None:
    """Processes, whose lines are all there in one chain, and a reader who asks meanwhile sees one history.

    One who makes the file of all lines may write over another's newer one, and then makes it again. A graph of a line
    that is lacking meanwhile is refused.
    """
    machines = [another_machine(alice, tmp_path / name) for name in ("one", "two")]
    processes = [begin(machine.store.home, url, 8) for machine in machines]
    worker, seen = Worker.at(tmp_path / "home", url, trusts=[alice]), list[object]()
    while any(process.poll() is None for process in processes):
        without_time(worker)
        seen.append(worker.fetch(key(architecture=f"one-{len(seen) % 8}")))
    assert [process.wait() for process in processes] == [0, 0]
    assert {type(one) for one in seen} <= {Taken, type(None), reasons.StoreGraphNotLogged}, seen
    assert len(log_of(alice, url).lines) == 16
    for name in ("one", "two"):
        for number in range(8):
            without_time(worker)
            assert isinstance(worker.fetch(key(architecture=f"{name}-{number}")), Taken)


@pytest.mark.parametrize(("dies_at", "lines"), [("log/", 0), (".jsonl", 1), ("graphs/", 1), ("records/", 1)])
def test_the_next_push_mends_what_a_killed_one_left(
    dies_at: str, lines: int, alice: Publisher, folder: Path, url: str, tmp_path: Path
) -> None:
    """Between a graph's files and its line, and after that."""
    machine = another_machine(alice, tmp_path / "one")
    assert begin(machine.store.home, url, 1, dies_at).wait() == DIED
    assert len([*folder.glob("objects/*/*")]) == 3
    assert len([*folder.glob("log/*/*")]) == lines
    wanted = key(architecture="one-0")
    assert Worker.at(tmp_path / "early", url, trusts=[alice]).fetch(wanted) is None
    (entry,) = machine.store.entries()
    assert machine.push(url, entry) == ["there already" if dies_at == "records/" else "pushed"]
    assert facts(log_of(alice, url)) == [(1, "published", *digests(entry))]
    assert isinstance(Worker.at(tmp_path / "late", url, trusts=[alice]).fetch(wanted), Taken)


@pytest.mark.parametrize("lost", ["everything", "the file of all", "the lines", "the last line"])
def test_a_store_that_lost_lines_has_them_again_after_the_next_push(
    lost: str, alice: Publisher, folder: Path, url: str, made: Entry, tmp_path: Path
) -> None:
    """The publisher's graph folder remembers them, so that readers see no other history."""
    before = tmp_path / "before"
    shutil.copytree(folder, before)
    alice.push(url, alice.make(HALF))
    worker = Worker.at(tmp_path / "home", url, trusts=[alice])
    assert isinstance(worker.fetch(), Taken)
    if lost == "everything":  # the store is as it was before
        shutil.rmtree(folder)
        before.rename(folder)
    elif lost == "the file of all":
        (folder / published_log.log_name(alice.public)).unlink()
    elif lost == "the lines":
        shutil.rmtree(folder / "log" / alice.public)
    else:
        (folder / published_log.line_name(alice.public, 2)).unlink()
    third = alice.make(key(dtype="bfloat16"))
    assert alice.push(url, third) == ["pushed"]
    assert facts(log_of(alice, url))[2] == (3, "published", *digests(third))
    without_time(worker)
    assert isinstance(worker.fetch(key(dtype="bfloat16")), Taken)


def test_a_line_that_nobody_signed_is_written_over(alice: Publisher, folder: Path, url: str, made: Entry) -> None:
    (folder / published_log.line_name(alice.public, 2)).write_bytes(b"?")
    other = alice.make(HALF)
    assert alice.push(url, other) == ["pushed"]
    assert facts(log_of(alice, url)) == [(1, "published", *digests(made)), (2, "published", *digests(other))]


def test_a_mirror_goes_on_and_readers_believe_it(
    alice: Publisher, folder: Path, url: str, made: Entry, tmp_path: Path
) -> None:
    copy = (tmp_path / "copy").as_uri()
    worker = Worker.at(tmp_path / "home", copy, trusts=[alice])
    for wanted in (key(), HALF):
        if wanted is HALF:
            alice.push(url, alice.make(HALF, b"other"))
        did = [one.did for one in commands.mirror(remote_of(url), remote_of(copy)) if one.name.startswith("log/")]
        assert did == ["copied"]
        assert log_of(alice, copy).lines == log_of(alice, url).lines
        without_time(worker)
        assert isinstance(worker.fetch(wanted), Taken)
    assert {one.did for one in commands.mirror(remote_of(url), remote_of(copy))} == {"there already"}
    alice.push(copy, alice.make(key(dtype="bfloat16")))  # by now the copy has more, which a mirror leaves
    assert {one.did for one in commands.mirror(remote_of(url), remote_of(copy))} == {"there already"}
    assert len(log_of(alice, copy).lines) == 3


def test_a_mirror_of_another_log_is_left_out(alice: Publisher, url: str, made: Entry, tmp_path: Path) -> None:
    copy = (tmp_path / "copy").as_uri()
    alice.push(copy, alice.make(HALF))
    (left,) = (one for one in commands.mirror(remote_of(url), remote_of(copy)) if one.reason is not None)
    assert left.reason == reasons.StoreLogForked("file:copy", "its publisher")
    worker = Worker.at(tmp_path / "home", copy, trusts=[alice])
    assert worker.fetch() == reasons.StoreGraphNotLogged("file:copy", "fleet")
    alice.push(copy)  # which mends it
    without_time(worker)
    assert isinstance(worker.fetch(), Taken)
    assert len(log_of(alice, copy).lines) == 2


def test_garbage_collection_leaves_the_log(alice: Publisher, folder: Path, url: str, made: Entry) -> None:
    alice.withdraw(url, made)
    before = {path.name: path.read_bytes() for path in folder.glob("log/**/*") if path.is_file()}
    assert len(before) == 3
    assert onegraph(alice.store, "gc", url, "--grace", "0").exit_code == 0
    assert not [*folder.glob("objects/*/*")]
    assert {path.name: path.read_bytes() for path in folder.glob("log/**/*") if path.is_file()} == before


def test_a_log_costs_one_request_for_all_that_a_process_fetches(
    alice: Publisher, url: str, made: Entry, served: FileServer, tmp_path: Path
) -> None:
    alice.push(url, alice.make(HALF))
    worker = Worker.at(tmp_path / "home", served.url, trusts=[alice])
    assert worker.fetch(key(dtype="bfloat16")) is None
    assert [path for path in served.asked if "/log/" in path] == []
    for wanted in (key(), HALF):
        assert isinstance(worker.fetch(wanted), Taken)
    alice.push(url, third := alice.make(key(dtype="float8")))
    assert [path for path in served.asked if "/log/" in path] == [f"/{published_log.log_name(alice.public)}"]
    assert isinstance(worker.fetch(key(dtype="float8")), Taken)  # a graph that is newer than what was seen
    assert len([path for path in served.asked if "/log/" in path]) == 2
    assert facts(
        published_log.remembered(worker.store.home, remote_of(served.url), records.Publisher("", alice.public))
    )[2] == (3, "published", *digests(third))


def test_a_log_tells_of_a_withdrawal_that_the_list_hides(
    alice: Publisher, folder: Path, url: str, made: Entry, tmp_path: Path
) -> None:
    before = tmp_path / "before"
    shutil.copytree(folder, before)
    alice.withdraw(url, made)
    for name in ("graphs", "records"):
        shutil.copytree(before / name, folder / name, dirs_exist_ok=True)
    shutil.rmtree(folder / "withdrawn")
    worker = Worker.at(tmp_path / "home", url, trusts=[alice])
    assert worker.fetch() == reasons.StoreGraphWithdrawn("file:remote", "fleet")
    assert [path.name for path in worker.store.home.glob(".withdrawn/*/*")] == [digests(made)[1]]


def test_each_address_has_a_history_of_its_own(alice: Publisher, url: str, made: Entry, tmp_path: Path) -> None:
    """A publisher may have several stores, and a mirror be behind."""
    second = (tmp_path / "second").as_uri()
    alice.push(second, alice.make(HALF))
    worker = Worker.at(tmp_path / "home", url, second, trusts=[alice])
    assert isinstance(worker.fetch(), Taken) and isinstance(worker.fetch(HALF), Taken)
    assert len([*worker.store.home.glob(f"{published_log.FOLDER}/*/*/00000001.jsonl")]) == 2


def test_a_longer_log_is_remembered_whoever_writes_last(
    alice: Publisher, url: str, made: Entry, tmp_path: Path
) -> None:
    remote, publisher = remote_of(url), records.Publisher("", alice.public)
    short = published_log.look(remote, publisher, tmp_path)
    alice.push(url, alice.make(HALF))
    long = published_log.look(remote, publisher, tmp_path)
    assert short is not None and long is not None
    published_log.remember(tmp_path, remote, alice.public, short)
    assert published_log.remembered(tmp_path, remote, publisher).lines == long.lines
    assert len(long.lines) == 2


def test_a_file_of_all_lines_that_is_behind_is_no_older_log(
    alice: Publisher, folder: Path, url: str, made: Entry, tmp_path: Path
) -> None:
    """As while two machines publish at once. The store still has the last line that was seen."""
    all_lines = folder / published_log.log_name(alice.public)
    older = all_lines.read_bytes()
    alice.push(url, alice.make(HALF))
    worker = Worker.at(tmp_path / "home", url, trusts=[alice])
    assert isinstance(worker.fetch(), Taken)
    all_lines.write_bytes(older)
    later = Worker.at(tmp_path / "home", url)
    assert isinstance(later.fetch(HALF), Taken)
    last = folder / published_log.line_name(alice.public, 2)
    last.rename(last.with_suffix(".gone"))
    shutil.rmtree(worker.store.home / "graphs")
    latest = Worker.at(tmp_path / "home", url)
    assert latest.fetch(HALF) == reasons.StoreLogOlder("file:remote", "fleet", 1, 2)


@pytest.mark.parametrize("lossy", [lambda name: name.startswith("log/"), lambda name: name.endswith(".jsonl")])
def test_a_line_that_cannot_be_read_back_is_no_success(
    lossy: Callable[[str], bool], alice: Publisher, folder: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = remote_of(url)
    write = remote.write
    monkeypatch.setattr(remote, "write", lambda name, data, **mode: None if lossy(name) else write(name, data, **mode))
    pusher = pushing.Pusher(remote, alice.private, alice.store.home)
    with pytest.raises(StoreError) as error:
        [*pushing.push(alice.store, [alice.make()], pusher)]
    assert isinstance(error.value.reason, reasons.StoreReadOnly)
    assert not (folder / "records").exists()


def test_the_command_lists_a_log_and_tells_what_is_wrong(
    alice: Publisher, folder: Path, url: str, made: Entry, tmp_path: Path
) -> None:
    bob = Store(tmp_path / "bob")
    assert onegraph(bob, "log", url).stdout == f"{NOBODY}\n"
    assert onegraph(bob, "log", url, "--publisher", "fleet").exit_code == 1
    trust(bob, alice.public)
    alice.push(url, alice.make(HALF))
    wanted, manifest = digests(made)
    done = onegraph(bob, "log", url)
    assert done.exit_code == 0
    whole = f"2 lines, whole, head {log_of(alice, url).digests[-1]}"
    assert done.stdout.splitlines()[::2] == [f"1  published  {wanted[:12]}  {manifest[:12]}", f"fleet: {whole}"]
    by_key = onegraph(Store(tmp_path / "carol"), "log", url, "--publisher", alice.public)
    assert by_key.stdout.splitlines()[-1] == f"{alice.public[:12]}: {whole}"
    shutil.rmtree(folder / "log")
    done = onegraph(bob, "log", url, "--json")
    assert done.exit_code == 1 and '"code": "store_log_missing"' in done.stdout and '"lines": []' in done.stdout
    accepted = onegraph(bob, "log", url, "--accept")
    assert (accepted.exit_code, accepted.stdout) == (0, "fleet: no log\n")
    assert onegraph(bob, "log", url).exit_code == 0


def test_a_writer_that_knows_another_history_writes_nothing(
    alice: Publisher, folder: Path, url: str, made: Entry, tmp_path: Path
) -> None:
    machine = another_machine(alice, tmp_path / "machine")
    machine.push(url)
    shutil.rmtree(folder)
    third = another_machine(alice, tmp_path / "third")
    third.push(url, third.make(HALF))
    before = sorted(path.name for path in folder.glob("log/**/*"))
    with pytest.raises(StoreError) as error:
        LogWriter(remote_of(url), alice.public, machine.store.home).current()
    assert error.value.reason == reasons.StoreLogForked("file:remote", "its publisher")
    assert sorted(path.name for path in folder.glob("log/**/*")) == before
