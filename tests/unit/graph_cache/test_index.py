"""The index narrows what a look-up reads. Whatever happens to it, look-ups find what they find without one."""

from __future__ import annotations

import errno
import fcntl
import json
import multiprocessing
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.store.entries import key, publish, quarantine, rewrite, snapshot

from onegraph.common.reasons import NoGraph
from onegraph.graph_cache import index, index_file, signing
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.index import INDEX_FOLDER, Index
from onegraph.graph_cache.key import GraphKey, Summary, difference
from onegraph.graph_cache.layout import Layout
from onegraph.graph_cache.lookup import Hit, Lookup, Miss, no_objection
from onegraph.graph_cache.markers import Markers
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.signing import Signer
from onegraph.graph_cache.store import Store

MISSED = key(target={"device": "cpu", "cpu": "f00", "torch": "2.15"})
FAR = "target (torch 2.14 instead of 2.15)"


class Clock(SimpleNamespace):
    """What the index takes for the time: `later`, and the files of this test are old enough to rely on."""

    ahead = 0.0

    def time(self) -> float:
        return time.time() + self.ahead

    def later(self) -> None:
        self.ahead = 10.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(index, "time", made)
    return made


def numbered(number: int, **changes: object) -> GraphKey:
    """One of several keys, of which none is near `MISSED`."""
    return key(shapes={"dims": {"height": [number, number, 1]}}, architecture=f"{number:04}", **changes)


def publish_many(store: Store, source: ModelSource, count: int = 9) -> list[Entry]:
    return [publish(store, source, numbered(number)) for number in range(count)]


def without_index(store: Store, tmp_path: Path) -> Lookup:
    """Look-ups that read every manifest."""
    nowhere = tmp_path / "nowhere"
    return Lookup(Layout(store.home), Markers(store.home), Signer(store.home), Index(nowhere, Signer(store.home)))


def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of entries whose manifests are read for the index from now on."""
    really, names = index.read_trusted, list[str]()

    def read(folder: Path, signer: Signer) -> object:
        names.append(folder.name)
        return really(folder, signer)

    monkeypatch.setattr(index, "read_trusted", read)
    return names


def indexed(store: Store, checkpoint: ModelSource, clock: Clock) -> Path:
    """Write the index of nine entries; its file."""
    publish_many(store, checkpoint)
    clock.later()
    store.lookup(MISSED, checkpoint)
    store.save_index()
    (file,) = (store.home / INDEX_FOLDER).iterdir()
    return file


def test_a_second_miss_reads_no_manifests(
    store: Store, checkpoint: ModelSource, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = publish_many(store, checkpoint)
    clock.later()
    names = reads(monkeypatch)
    first = store.lookup(MISSED, checkpoint)
    assert sorted(names) == sorted(entry.folder.name for entry in entries)
    names.clear()
    assert store.lookup(MISSED, checkpoint) == first == Miss(NoGraph(f"architecture, shapes, {FAR}"))
    assert store.sibling(MISSED, checkpoint) is None
    assert store.sibling(key(architecture="0003"), checkpoint) == entries[3]
    assert names == []


def test_another_process_reads_no_manifests(
    store: Store, checkpoint: ModelSource, tuned: ModelSource, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    indexed(store, checkpoint, clock)
    found = store.lookup(MISSED, checkpoint)
    names, other = reads(monkeypatch), Store(store.home)
    assert other.lookup(MISSED, checkpoint) == found
    assert isinstance(other.sibling(key(architecture="0003"), tuned), Entry)
    assert names == []


def test_a_miss_reads_only_what_is_new(
    store: Store, checkpoint: ModelSource, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    indexed(store, checkpoint, clock)
    names, other = reads(monkeypatch), Store(store.home)
    entry = publish(store, checkpoint)
    assert other.lookup(MISSED, checkpoint) == Miss(NoGraph(FAR))
    assert names == [entry.folder.name]


def test_a_hit_needs_no_index(
    store: Store, checkpoint: ModelSource, tuned: ModelSource, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    indexed(store, checkpoint, clock)
    names = reads(monkeypatch)
    monkeypatch.setattr(index_file, "read", lambda *args: pytest.fail("the index was asked"))
    other = Store(store.home)
    assert isinstance(other.lookup(numbered(1), checkpoint), Hit)
    assert isinstance(other.lookup(numbered(1), tuned), Hit)
    assert names == []


def test_few_entries_have_no_file(store: Store, checkpoint: ModelSource, clock: Clock) -> None:
    publish_many(store, checkpoint, 3)
    clock.later()
    store.lookup(MISSED, checkpoint)
    store.save_index()
    assert not (store.home / INDEX_FOLDER).exists()


def test_the_file_is_the_users_alone(store: Store, checkpoint: ModelSource, clock: Clock) -> None:
    file = indexed(store, checkpoint, clock)
    assert file.parent.stat().st_mode & 0o777 == 0o700
    before = snapshot(store.home)
    store.lookup(MISSED, checkpoint)
    store.save_index()  # nothing is new
    assert snapshot(store.home) == before


def test_lookups_leave_the_file_as_it_is(store: Store, checkpoint: ModelSource, clock: Clock, models: Path) -> None:
    indexed(store, checkpoint, clock)
    publish(store, checkpoint, key(architecture="bb"))
    before = snapshot(models, store.home)
    for found in (store, Store(store.home)):
        found.lookup(MISSED, checkpoint)
        found.sibling(MISSED, checkpoint)
    assert snapshot(models, store.home) == before


# What may be wrong with the file --------------------------------------------------------------------------------


def deleted(file: Path) -> None:
    file.unlink()


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def garbage(file: Path) -> None:
    file.write_bytes(bytes(range(256)) * 40)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def flipped(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data.replace(b'"torch\\":\\"2.14', b'"torch\\":\\"2.15'))
    assert file.read_bytes() != data


def piped(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def endless(file: Path) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")


def huge(file: Path) -> None:
    os.truncate(file, 1 << 30)


def locked(file: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=_hold, args=(file,), daemon=True)
    process.start()
    time.sleep(0.1)


def _hold(file: Path) -> None:
    with file.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        time.sleep(1.0)


def unreadable(file: Path) -> None:
    file.parent.rename(file.parent.with_name("moved"))
    file.parent.write_text("no folder")


def resigned(file: Path, change: Callable[[bytes], bytes]) -> None:
    """Write other contents, as this user's own processes would."""
    _, _, data = file.read_bytes().partition(b"\n")
    data = change(data)
    mac = Signer(file.parents[1]).mac(data)
    assert mac is not None
    file.write_bytes(mac.encode() + b"\n" + data)


def of_another_version(file: Path) -> None:
    resigned(file, lambda data: data.replace(b'"version":1', b'"version":2'))


def of_another_component(file: Path) -> None:
    resigned(file, lambda data: data.replace(b"/unet", b"/vae_"))


def with_numbers_out_of_range(file: Path) -> None:
    resigned(file, lambda data: data.replace(b'"texts":[', b'"texts":[],"was":['))


def without_texts(file: Path) -> None:
    def change(data: bytes) -> bytes:
        first, _, rest = data.partition(b"\n")
        return first + b"\n" + json.dumps({**json.loads(rest), "texts": []}).encode()

    resigned(file, change)


def signed_by_another_user(file: Path) -> None:
    key_file = file.parents[1] / signing.KEY_FILE
    mine = key_file.read_bytes()
    key_file.write_bytes(bytes(32))
    flipped(file)
    resigned(file, lambda data: data)
    key_file.write_bytes(mine)


def rows_are_those_of_others(file: Path) -> None:
    """Every name has what the next one says."""

    def change(data: bytes) -> bytes:
        first, _, rest = data.partition(b"\n")
        body = json.loads(rest)
        names = list(body["rows"])
        rows = {name: body["rows"][other] for name, other in zip(names, names[1:] + names[:1], strict=True)}
        return first + b"\n" + json.dumps({**body, "rows": rows}).encode()

    resigned(file, change)


def rows_are_missing(file: Path) -> None:
    def change(data: bytes) -> bytes:
        first, _, rest = data.partition(b"\n")
        body = json.loads(rest)
        return first + b"\n" + json.dumps({**body, "rows": dict(list(body["rows"].items())[:3])}).encode()

    resigned(file, change)


WRONG = [
    deleted, emptied, garbage, cut, flipped, piped, folder, endless, huge, locked, unreadable, of_another_version,
    of_another_component, with_numbers_out_of_range, without_texts, signed_by_another_user, rows_are_those_of_others,
    rows_are_missing,
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_file_costs_time_only(
    wrong: Callable[[Path], None], store: Store, checkpoint: ModelSource, tuned: ModelSource, clock: Clock
) -> None:
    file = indexed(store, checkpoint, clock)
    nearest = publish(store, checkpoint, key(shapes={}))
    clock.later()
    wrong(file)
    other = Store(store.home)
    assert other.lookup(MISSED, checkpoint) == Miss(NoGraph(f"shapes, {FAR}"))
    assert other.lookup(key(shapes={}), checkpoint) == Hit(nearest)
    assert other.lookup(key(shapes={}), tuned) == Hit(nearest, foreign=True)
    assert other.sibling(key(), checkpoint) == nearest
    other.save_index()
    other.sweep([])
    assert Store(store.home).lookup(MISSED, checkpoint) == Miss(NoGraph(f"shapes, {FAR}"))


@pytest.mark.parametrize("wrong", [emptied, garbage, cut, flipped, of_another_version, signed_by_another_user])
def test_a_wrong_file_is_written_anew(
    wrong: Callable[[Path], None], store: Store, checkpoint: ModelSource, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = indexed(store, checkpoint, clock)
    wrong(file)
    other, names = Store(store.home), reads(monkeypatch)
    other.lookup(MISSED, checkpoint)
    assert len(names) == 9  # nothing of it is believed
    other.save_index()
    names.clear()
    Store(store.home).lookup(MISSED, checkpoint)
    assert names == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.ESTALE, errno.EDQUOT])
def test_a_disk_that_takes_nothing(
    number: int, store: Store, checkpoint: ModelSource, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_many(store, checkpoint)
    clock.later()
    found = store.lookup(MISSED, checkpoint)

    def fails(path: Path, target: Path) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fails)
        store.save_index()
    assert list((store.home / INDEX_FOLDER).iterdir()) == []
    assert store.lookup(MISSED, checkpoint) == found
    store.save_index()
    assert len(list((store.home / INDEX_FOLDER).iterdir())) == 1


def test_no_index_where_others_may_write(store: Store, checkpoint: ModelSource, clock: Clock) -> None:
    publish_many(store, checkpoint)
    clock.later()
    store.home.chmod(0o777)
    store.lookup(MISSED, checkpoint)
    store.save_index()
    assert not (store.home / INDEX_FOLDER).exists()


def test_no_key_is_made_for_an_index(store: Store, checkpoint: ModelSource, clock: Clock, tmp_path: Path) -> None:
    publish_many(store, checkpoint)
    clock.later()
    other = Store(tmp_path / "other")
    assert isinstance(other.lookup(MISSED, checkpoint), Miss)
    other.save_index()
    assert not (other.home / signing.KEY_FILE).exists()
    assert list(other.home.rglob("*.json")) == []


def test_processes_write_at_once(store: Store, checkpoint: ModelSource, clock: Clock) -> None:
    publish_many(store, checkpoint)
    clock.later()

    def write() -> None:
        for _ in range(10):
            mine = Store(store.home)
            assert mine.lookup(MISSED, checkpoint) == Miss(NoGraph(f"architecture, shapes, {FAR}"))
            shutil.rmtree(store.home / INDEX_FOLDER, ignore_errors=True)
            mine.save_index()

    processes = [multiprocessing.get_context("fork").Process(target=write) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == 4 * [0]
    left = list((store.home / INDEX_FOLDER).iterdir()) if (store.home / INDEX_FOLDER).exists() else []
    assert [path for path in left if path.suffix != ".json"] == []


def test_files_of_gone_components_go(store: Store, checkpoint: ModelSource, clock: Clock) -> None:
    file = indexed(store, checkpoint, clock)
    temporary = file.with_name(f".{file.name}.4194305")  # of a process that died
    stray = file.with_name("stray.json")
    for path in (temporary, stray):
        path.write_text("")
    old = time.time() - 40 * 24 * 3600
    for path in (file, temporary, stray):
        os.utime(path, (old, old))
    store.sweep([])
    assert list(file.parent.iterdir()) == [file]  # its component is there
    shutil.rmtree(store.locations(checkpoint)[0])
    store.sweep([])
    assert list(file.parent.iterdir()) == []


# What may happen to entries -------------------------------------------------------------------------------------


def test_an_entry_is_found_without_new_times(
    store: Store, checkpoint: ModelSource, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the clock of the file system stands still: names are listed all the same."""
    indexed(store, checkpoint, clock)
    real = index._folder_stamp(store.locations(checkpoint)[0] / "unet")
    monkeypatch.setattr(index, "_folder_stamp", lambda path: real)
    other = Store(store.home)
    assert other.lookup(MISSED, checkpoint) == Miss(NoGraph(f"architecture, shapes, {FAR}"))
    entry = publish(store, checkpoint)
    assert other.lookup(MISSED, checkpoint) == Miss(NoGraph(FAR))
    assert other.lookup(key(), checkpoint) == Hit(entry)
    renamed = entry.folder.rename(entry.folder.with_name(f"copy-{key().digest}"))
    assert other.lookup(key(), checkpoint) == Hit(Entry(renamed, entry.manifest))
    assert other.lookup(MISSED, checkpoint) == Miss(NoGraph(FAR))
    shutil.rmtree(renamed)
    assert other.lookup(MISSED, checkpoint) == Miss(NoGraph(f"architecture, shapes, {FAR}"))


def replace(store: Store, entry: Entry, other: Entry) -> None:
    """Put another entry in the place of one."""
    shutil.rmtree(entry.folder)
    other.folder.rename(entry.folder)


def test_an_entry_replaced_under_its_name(
    store: Store, checkpoint: ModelSource, tuned: ModelSource, clock: Clock
) -> None:
    indexed(store, checkpoint, clock)
    publish(store, checkpoint, key(architecture="bb"))
    clock.later()
    far = store.lookup(numbered(3), checkpoint)
    assert isinstance(far, Hit)
    assert store.lookup(MISSED, checkpoint) == Miss(NoGraph(f"architecture, {FAR}"))
    replace(store, far.entry, publish(store, tuned, key(shapes={})))
    assert store.lookup(MISSED, checkpoint) == Miss(NoGraph(f"shapes, {FAR}"))


@pytest.mark.parametrize("ahead", [0.0, -3600.0])
def test_an_entry_replaced_within_one_tick(
    ahead: float,
    store: Store,
    checkpoint: ModelSource,
    tuned: ModelSource,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Times of the last seconds, or of a clock that was turned back since, are not relied on."""
    clock.ahead = ahead
    publish_many(store, checkpoint)
    old = publish(store, checkpoint, key(architecture="bb"))
    assert store.lookup(MISSED, checkpoint) == Miss(NoGraph(f"architecture, {FAR}"))
    really = index._stamp

    def coarse(found: os.stat_result) -> tuple[int, int, int, int] | None:
        return really(found) and (0, 0, 0, 0)

    monkeypatch.setattr(index, "_stamp", coarse)
    assert store.lookup(MISSED, checkpoint) == Miss(NoGraph(f"architecture, {FAR}"))
    replace(store, old, publish(store, tuned, key(shapes={})))
    assert store.lookup(MISSED, checkpoint) == Miss(NoGraph(f"shapes, {FAR}"))


def test_a_clock_that_was_turned_back(store: Store, checkpoint: ModelSource, tuned: ModelSource, clock: Clock) -> None:
    indexed(store, checkpoint, clock)
    clock.ahead = -3600.0  # all times are in the future
    other = Store(store.home)
    old = publish(store, checkpoint, key(architecture="bb"))
    assert other.lookup(MISSED, checkpoint) == Miss(NoGraph(f"architecture, {FAR}"))
    component = old.folder.parent
    replace(store, old, publish(store, tuned, key(shapes={})))
    os.utime(component, (0, 0))
    assert other.lookup(MISSED, checkpoint) == Miss(NoGraph(f"shapes, {FAR}"))
    other.save_index()
    assert Store(store.home).lookup(MISSED, checkpoint) == Miss(NoGraph(f"shapes, {FAR}"))


def test_the_nearest_entry_is_looked_at(store: Store, checkpoint: ModelSource, clock: Clock) -> None:
    """A manifest that changed in its place, which the store never does, tells nothing old."""
    indexed(store, checkpoint, clock)
    entry = publish(store, checkpoint)
    clock.later()
    assert store.lookup(MISSED, checkpoint) == Miss(NoGraph(FAR))
    changed = {**entry.manifest.key, "architecture": "bb"}
    rewrite(store, entry, entry.manifest.model_copy(update={"key": changed}))
    assert store.lookup(MISSED, checkpoint) == Miss(NoGraph(f"architecture, {FAR}"))


def test_a_manifest_that_becomes_readable(store: Store, checkpoint: ModelSource, clock: Clock) -> None:
    """Somebody copies an entry: its folder is there first, then half of its manifest, then all of it."""
    indexed(store, checkpoint, clock)
    entry = publish(store, checkpoint)
    manifest = entry.folder / "manifest.json"
    data = manifest.read_bytes()
    far = Miss(NoGraph(f"architecture, shapes, {FAR}"))
    for left in (None, b"", data[:100]):
        manifest.unlink(missing_ok=True)
        if left is not None:
            manifest.write_bytes(left)
        clock.later()
        for _ in range(2):
            assert store.lookup(MISSED, checkpoint) == far
    manifest.write_bytes(data)
    assert store.lookup(MISSED, checkpoint) == Miss(NoGraph(FAR))


def test_a_passing_failure_is_not_remembered(
    store: Store, checkpoint: ModelSource, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_many(store, checkpoint)
    clock.later()
    really = os.open

    def fails(path: Path, *args: int, **more: int) -> int:
        if Path(path).name == "manifest.json":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return really(path, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fails)
        assert store.lookup(MISSED, checkpoint) == Miss(NoGraph())
        store.save_index()
    assert store.lookup(MISSED, checkpoint) == Miss(NoGraph(f"architecture, shapes, {FAR}"))


KEYS = [
    {}, {"component": "unet"}, key().fields(), key(dtype="float16").fields(), {"target": {}, "shapes": None},
    {"target": "x", "more": [1, None]}, key(target={"device": "cuda"}, shapes={"dims": {"height": 8}}).fields(),
    {**key().fields(), "format": True}, {**key().fields(), "architecture": ["aa"]},
]  # fmt: skip


@pytest.mark.parametrize("wanted", [key().fields(), MISSED.fields(), numbered(1).fields()])
@pytest.mark.parametrize("found", KEYS)
def test_a_summary_tells_the_same(wanted: dict[str, object], found: dict[str, object]) -> None:
    wanted, found = (json.loads(json.dumps(fields, sort_keys=True)) for fields in (wanted, found))
    a, b = Summary.of(wanted), Summary.of(found)
    assert a.difference(b.others, a.architecture == b.architecture, a.shapes == b.shapes) == difference(wanted, found)


# Anything in any order ------------------------------------------------------------------------------------------


class Disorder:
    """A store to whose entries anything happens."""

    def __init__(self, seed: int, store: Store, source: ModelSource, clock: Clock) -> None:
        self.random = random.Random(seed)
        self.store, self.source, self.clock = store, source, clock
        self.component = store.locations(source)[0] / "unet"
        self.copies = store.home.parent / "copies"
        self.copies.mkdir()

    def pick(self) -> Path | None:
        folders = sorted(self.component.glob("*"))
        return self.random.choice(folders) if folders else None

    def pick_file(self) -> Path | None:
        files = sorted(self.component.glob("*/*.*"))
        return self.random.choice(files) if files else None

    def any_key(self) -> GraphKey:
        draw = self.random
        torch = draw.choice(["2.14", "2.15", "2.16"])
        return key(
            architecture=draw.choice(["aa", "bb"]), shapes={"dims": {"h": draw.randrange(5)}},
            dtype=draw.choice(["float16", "float32"]), target={"device": "cpu", "cpu": "f00", "torch": torch},
        )  # fmt: skip

    def publish(self) -> None:
        publish(self.store, self.source, self.any_key(), content=self.random.randbytes(4))

    def quarantine(self) -> None:
        if folder := self.pick():
            quarantine(self.store, folder)

    def remove(self) -> None:
        if folder := self.pick():
            if folder.is_dir():
                shutil.rmtree(folder)
            else:
                folder.unlink()

    def rename(self) -> None:
        if folder := self.pick():
            folder.rename(folder.with_name(f"{self.random.randrange(1000)}-{self.any_key().digest}"))

    def copy(self) -> None:
        if (folder := self.pick()) and folder.is_dir():
            shutil.copytree(
                folder, self.component / f"{self.random.randrange(1000)}-{folder.name[-12:]}", dirs_exist_ok=True
            )

    def swap(self) -> None:
        first, second = self.pick(), self.pick()
        if first is not None and second is not None and first != second:
            aside = first.rename(self.copies / "aside")
            second.rename(first)
            aside.rename(second)

    def damage(self) -> None:
        if file := self.pick_file():
            data = file.read_bytes()
            file.write_bytes(data[: self.random.randrange(len(data) + 1)])

    def stray(self) -> None:
        self.component.mkdir(parents=True, exist_ok=True)
        path = self.component / f"stray-{time.time_ns()}"
        self.random.choice([path.mkdir, path.touch])()

    def save(self) -> None:
        self.store.save_index()

    def forget(self) -> None:
        shutil.rmtree(self.store.home / INDEX_FOLDER, ignore_errors=True)

    def list(self) -> None:
        assert self.source.path is not None
        list(self.store.listing([self.source.path.parent]))

    def restart(self) -> None:
        self.store = Store(self.store.home)

    def step(self) -> None:
        time.sleep(0.02)  # a tick of the file system: the clock of this test says that seconds have passed
        self.clock.ahead = 0.0
        changes = [
            self.publish, self.publish, self.publish, self.quarantine, self.remove, self.rename, self.copy, self.swap,
            self.damage, self.stray, self.save, self.save, self.forget, self.list, self.restart,
        ]  # fmt: skip
        self.random.choice(changes)()
        if self.random.random() < 0.6:
            self.clock.later()


@pytest.mark.parametrize("seed", range(6))
def test_lookups_are_as_without_an_index(
    seed: int, store: Store, checkpoint: ModelSource, tuned: ModelSource, clock: Clock, tmp_path: Path
) -> None:
    scene = Disorder(seed, store, checkpoint, clock)
    for _ in range(10):
        scene.publish()
    for _ in range(60):
        scene.step()
        wanted, source = scene.any_key(), scene.random.choice([checkpoint, tuned])
        plain = without_index(store, tmp_path)
        assert scene.store.lookup(wanted, source) == plain.lookup(wanted, source, [], no_objection)
        assert scene.store.sibling(wanted, source) == plain.sibling(wanted, source, [], no_objection)
