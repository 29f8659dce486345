"""Folders that another user may write: links, folders and locks of theirs lead this user nowhere and block nothing.

As root, the other member is a process of another user; otherwise these tests cannot tell the two apart and are skipped.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import pickle
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.models import toy
from support.store.entries import give_away, key, publish, snapshot
from support.store.users import as_root, as_user, meanwhile

from onegraph.backends.inductor import InductorBackend
from onegraph.common import reasons
from onegraph.common.refused import Refused
from onegraph.compiler.process.job import ClientModule, Job, write_job
from onegraph.compiler.process.progress import Progress
from onegraph.graph_cache.copies import remove_copy
from onegraph.graph_cache.crash import leftovers
from onegraph.graph_cache.crash.liveness import owning
from onegraph.graph_cache.disk.inventory import over
from onegraph.graph_cache.disk.leases import Lease
from onegraph.graph_cache.lookup import Hit, Miss
from onegraph.graph_cache.manifest import MANIFEST_FILE, Manifest
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.sources.source import Taken
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust import private_folder
from onegraph.runtime.obtain.registry import Registry

MEMBER = 65534
pytestmark = as_root


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of checkpoints with mode 2775, whose group the other user belongs to, and one for temporary files."""
    for above in tmp_path.parents[:2]:
        above.chmod(0o755)  # pytest's are closed to others
    tmp_path.chmod(0o755)
    folder, temporary = tmp_path / "models", tmp_path / "tmp"
    folder.mkdir()
    temporary.mkdir()
    temporary.chmod(0o1777)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    os.chown(folder, 0, MEMBER)
    folder.chmod(0o2775)
    (folder / "photo.safetensors").write_bytes(b"x")
    yield folder
    for above in tmp_path.parents[:2]:
        above.chmod(0o700)


@pytest.fixture
def source(models: Path) -> ModelSource:
    return ModelSource(models / "photo.safetensors", "0123456789ab")


@pytest.fixture
def store(models: Path, tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


member = functools.partial(meanwhile, uid=MEMBER)
as_member = functools.partial(as_user, uid=MEMBER)


class Payload:
    """What runs when somebody unpickles it."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("home", ["home", "models/home"])
def test_a_member_brings_no_code_into_a_compile(home: str, models: Path, source: ModelSource, tmp_path: Path) -> None:
    """The job and the skeleton, a pickle, are what this process wrote, whatever folder a member puts in place."""
    store, stolen, marker = Store(tmp_path / home), models / "stolen", models / "ran-as-root"
    crafted = tmp_path / "crafted"
    crafted.mkdir()
    shapes, evil = toy.shapes(), pickle.dumps(Payload(marker))
    write_job(Job("toy", "inductor", "cpu", shapes, shapes, {}, evil, ClientModule("support.models.toy", {})), crafted)

    def swap() -> None:
        for job in models.rglob("job.json"):
            job.parent.rename(stolen)
            job.parent.mkdir()
            for file in crafted.iterdir():
                (job.parent / file.name).write_bytes(file.read_bytes())

    class Enough(Exception):
        pass

    seen: list[Path] = []

    def watch(progress: Progress) -> None:
        for job in store.private.folder.glob(".staging/*/job.json"):
            seen.append(job.parent)
            assert job.parent.stat().st_mode & 0o777 == 0o700 and private_folder.check(job.parent) is None
        if marker.exists() or progress.stage == "compiling":
            raise Enough

    with member(swap), contextlib.suppress(Enough):
        refused = Registry(store).obtain(toy.request(toy.Toy(), source), "wait", watch)
        assert not isinstance(refused, Refused), refused
    assert seen
    assert not marker.exists() and not stolen.exists()  # nothing of a compile lies where a member can reach it


def modes(folder: Path) -> dict[str, tuple[int, object]]:
    return {name: (Path(name).lstat().st_mode, found) for name, found in snapshot(folder).items()}


LINKS = ["photo.graphs", "photo.graphs/0123456789ab", "photo.graphs/0123456789ab/unet"]


@pytest.mark.parametrize("name", LINKS)
def test_nothing_is_written_through_anothers_link(
    name: str, models: Path, source: ModelSource, store: Store, tmp_path: Path
) -> None:
    """Nor is a mode changed, or anything swept or removed, in the folders of this user that it leads to."""
    entry = publish(store, ModelSource(None, "0123456789ab"))
    precious = tmp_path / "precious"
    target = precious.joinpath(*Path(name).parts)
    for below in (".writing-1", f".writing-1-old/{entry.folder.name}", entry.folder.name):
        component = precious / "photo.graphs" / source.digest / "unet"
        (component / below).mkdir(parents=True)
        (component / below / ".outcome.json.999999999").touch()
    for name_of_file in ("manifest.json", "signature.json"):  # as if it were a copy
        shutil.copy(entry.folder / name_of_file, component / entry.folder.name)
    for path in (precious, *precious.rglob("*")):
        path.chmod(0o700)
        os.utime(path, (0, 0))
    before = modes(precious)

    def plant() -> None:
        (models / name).parent.mkdir(parents=True, exist_ok=True)
        (models / name).symlink_to(target)

    as_member(plant)
    store.keep_beside(entry, source)
    with pytest.raises(OSError, match="link"):
        store.save(entry, models / LINKS[1])
    store.sweep()
    assert not remove_copy(models / LINKS[2] / entry.folder.name, store.signer)
    assert isinstance(store.find(key()), Hit)
    assert modes(precious) == before
    (models / name).unlink()
    (models / name).symlink_to(target)
    store.keep_beside(entry, source)  # through one of this user's own, as to another disk
    assert modes(precious) != before


def test_a_home_in_a_shared_folder_is_not_used(models: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a member could exchange the graph folder, all that is loaded goes to the system's temporary files."""
    shared = Store(models / "home")
    entry = publish(shared, ModelSource(None, "0"))
    for folder in (entry.folder.parents[1], shared.private.make_compiler_cache(), shared.private.folder):
        assert folder is not None and private_folder.check(folder) is None and not folder.is_relative_to(models)
        assert folder.stat().st_mode & 0o777 == 0o700
    open_to_members = models / "tmp"
    open_to_members.mkdir()
    open_to_members.chmod(0o775)
    monkeypatch.setattr("tempfile.tempdir", str(open_to_members))
    left = open_to_members / "onegraph-left"
    left.mkdir(mode=0o700)

    def die() -> None:
        with owning(left / leftovers.OWNER_FILE):
            os._exit(0)

    as_user(die, 0)
    nowhere = Store(models / "home")
    with pytest.raises(OSError, match="other users may write"), nowhere.staging():
        raise AssertionError("not reached")
    assert nowhere.private.make_compiler_cache() is None
    assert isinstance(nowhere.find(key()), Miss)
    publish(store, ModelSource(None, "0"))
    store.sweep()
    assert left.exists()  # a member may put any other folder of this user's in its place


@pytest.mark.parametrize("shape", ["folder", "link"])
def test_a_home_that_another_made_is_refused(
    shape: str, models: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name among the temporary files can be told in advance. What lies there is not read, signed or not."""
    (models / "home").mkdir(mode=0o777)
    named = private_folder.locate(models / "home")
    assert named.parent == tmp_path / "tmp"
    own = publish(Store(models / "home"), ModelSource(None, "0"), toy.request(toy.Toy(), ModelSource(None, "0")).key)
    named.rename(tmp_path / "copied")  # all of it is right, but for who made the folder
    give_away(tmp_path / "copied", MEMBER)
    if shape == "link":
        as_member(lambda: named.symlink_to(tmp_path / "copied"))
        give_away(tmp_path / "copied", 0)
    else:
        (tmp_path / "copied").rename(named)
    shutil.rmtree(models / "home" / "graphs", ignore_errors=True)

    def load(*args: object) -> None:
        raise AssertionError("native code was loaded")

    monkeypatch.setattr(InductorBackend, "load", load)
    before = modes(named)
    mine = Store(models / "home")
    request = toy.request(toy.Toy(), ModelSource(None, "0"))
    assert isinstance(mine.find(request.key), Miss) and [*mine.entries()] == []
    refused = Registry(mine).obtain(request, "wait", lambda progress: None)
    assert isinstance(refused, Refused) and refused.reason.code == "not_saved", refused
    with pytest.raises(private_folder.RefusedError):
        publish(mine, ModelSource(None, "0"))
    assert modes(named) == before and own.folder.exists()


def test_locks_of_others_block_nothing(
    models: Path, source: ModelSource, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may lock a file that all may read, such as a manifest beside the checkpoint. Nothing waits for that."""
    entry = publish(store, source)
    beside = models / LINKS[2] / entry.folder.name
    ready, done = os.pipe()
    manifest = os.open(beside / MANIFEST_FILE, os.O_RDONLY)

    def lock() -> None:
        held = [os.open(path, os.O_RDONLY) for path in (*beside.iterdir(), beside)]
        for handle in held:
            fcntl.flock(handle, fcntl.LOCK_EX)
        for path in (store.home, *store.home.rglob("*")):
            with contextlib.suppress(OSError):  # what it can open is nothing that a lock means anything for
                fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(done, b"x")
        signal.pause()

    with store.markers.loading(entry.folder), member(lock):
        assert os.read(ready, 1) == b"x"
        monkeypatch.setattr(time, "sleep", Mock(side_effect=AssertionError("it waits")))
        assert isinstance(store.lookup(key(), source), Hit)
        assert store.disk.delete(next(iter(store.disk.entries()))) == "removed"
        assert isinstance(store.take(key(), source), Taken)
        other = publish(store, source, content=b"another")
        assert isinstance(store.lease(other), Lease) and isinstance(store.find(key()), Hit)
        store.disk.prune(over(0))
        assert [copy.path for copy in store.disk.copies([models])] == [beside]
        assert store.disk.prune_copies(over(0), [models], dry_run=False).removed and not beside.exists()
        with pytest.raises(BlockingIOError):  # they hold it still
            fcntl.flock(manifest, fcntl.LOCK_SH | fcntl.LOCK_NB)
    os.close(manifest)


# One planted folder ---------------------------------------------------------------------------------------------


def closed_folder(place: Path) -> None:
    place.mkdir(mode=0o700, parents=True)
    (place / "inside").touch()


def closed_manifest(place: Path) -> None:
    place.mkdir(parents=True)
    (place / "manifest.json").touch(mode=0o600)


def closed_signature(place: Path) -> None:
    place.mkdir(parents=True)
    (place / "manifest.json").write_text("{}")
    for name in ("signature.json", "publisher.json"):
        (place / name).touch(mode=0o600)


USER = 12345  # a user who is not root, whom permissions hold back


@pytest.mark.parametrize("plant", [closed_folder, closed_manifest, closed_signature])
def test_a_planted_entry_that_cannot_be_read_blocks_nothing(
    plant: Callable[[Path], None], models: Path, source: ModelSource, store: Store, tmp_path: Path
) -> None:
    """Nobody can read it, now or later: it is as none, and a copy is made and found beside it."""
    own = publish(store, source)
    shutil.rmtree(models / "photo.graphs")
    as_member(lambda: (models / LINKS[2]).mkdir(mode=0o777, parents=True))
    as_member(lambda: plant(models / LINKS[2] / own.folder.name))
    for path in (models / "photo.graphs", *(models / LINKS[0]).glob("*"), *(models / LINKS[1]).glob("*")):
        path.chmod(0o777)
    for path in (tmp_path, *tmp_path.rglob("*")):
        if path.lstat().st_uid != MEMBER:
            os.chown(path, USER, -1, follow_symlinks=False)

    def use() -> None:
        mine = Store(store.home)
        assert mine.take(key(), source) is None
        mine.keep_beside(own, source)
        shutil.rmtree(own.folder)
        assert isinstance(mine.take(key(), source), Taken)
        assert isinstance(mine.find(key()), Hit)

    as_user(use, USER)


def test_texts_of_strangers_are_never_shown(models: Path, source: ModelSource, store: Store) -> None:
    """What a manifest claims reaches the node only if this user or a trusted publisher signed it."""
    own = publish(store, source, key(dtype="float16"))
    claims = json.loads(own.text)
    claims["key"] = {**claims["key"], "dtype": "\x1b[31mvisit evil.example", "more": {"x": 1}}
    for number in range(9):
        planted = models / LINKS[2] / f"planted-{number}-{key().digest}"
        planted.mkdir()
        (planted / "manifest.json").write_text(json.dumps(claims))
        (planted / "signature.json").write_bytes((own.folder / "signature.json").read_bytes())
    assert store.lookup(key(), source) == Miss(reasons.NoGraph("dtype float16 instead of float32"))
    assert store.take(key(), source) == reasons.WrongSignature()
    shutil.rmtree(own.folder)
    assert store.keys("unet", ["aa"], source) == [key(dtype="float16").fields()]  # of the copy
    assert Store(store.home).lookup(key(), source) == Miss(reasons.NoGraph())


def test_a_huge_manifest_is_not_parsed_unsigned(
    models: Path, source: ModelSource, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = publish(store, source)
    beside = models / LINKS[2] / own.folder.name
    padded = own.text.rstrip()[:-1] + b" " * (3 << 20) + b"}"
    (beside / "manifest.json").write_bytes(padded)
    for number in range(9):
        planted = beside.with_name(f"planted-{number}-{key().digest}")
        planted.mkdir()
        (planted / "manifest.json").write_bytes(padded)
        (planted / "signature.json").write_bytes((own.folder / "signature.json").read_bytes())
    shutil.rmtree(own.folder)
    parsed: list[int] = []
    really = Manifest.model_validate_json

    def parse(text: bytes, *args: object) -> Manifest:
        parsed.append(len(text))
        return really(text)

    monkeypatch.setattr(Manifest, "model_validate_json", parse)
    assert store.take(key(), source) == reasons.WrongSignature()
    assert store.keys("unet", ["aa"], source) == []
    publish(store, source, content=b"another")
    assert [size for size in parsed if size > 1 << 20] == []
