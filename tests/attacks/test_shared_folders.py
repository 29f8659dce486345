"""A models folder that a group may write: another member swaps folders while this user compiles, sweeps or publishes.

As root, the other member is a process of another user; otherwise these tests cannot tell the two apart and are skipped.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.models import toy
from support.store.entries import key, publish, snapshot

from onegraph.common import reasons
from onegraph.common.shapes import Refused
from onegraph.compiler.process.job import Client, Job, write_job
from onegraph.compiler.process.progress import Progress
from onegraph.graph_cache.lookup import Hit, Miss
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust.open_folder import is_closed
from onegraph.runtime.obtain.registry import Registry

MEMBER = 65534
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")


@pytest.fixture
def models(tmp_path: Path) -> Iterator[Path]:
    """A folder of checkpoints with mode 2775, whose group the other user belongs to."""
    for above in tmp_path.parents[:2]:
        above.chmod(0o755)  # pytest's are closed to others
    tmp_path.chmod(0o755)
    folder = tmp_path / "models"
    folder.mkdir()
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
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


@contextlib.contextmanager
def member(act: Callable[[], None]) -> Iterator[None]:
    """As the other user, act again and again meanwhile."""
    process = os.fork()
    if process == 0:
        try:
            os.setgroups([])
            os.setgid(MEMBER)
            os.setuid(MEMBER)
            while True:
                with contextlib.suppress(OSError):
                    act()
                time.sleep(0.002)
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.kill(process, 9)
        os.waitpid(process, 0)


def as_member(act: Callable[[], None]) -> None:
    """As the other user, act once."""
    process = os.fork()
    if process == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(MEMBER)
            os.setuid(MEMBER)
            act()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(process, 0)[1] == 0


class Payload:
    """What runs when somebody unpickles it."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.marker}",)


def test_a_member_brings_no_code_into_a_compile(
    models: Path, source: ModelSource, store: Store, tmp_path: Path
) -> None:
    """The job and the skeleton, a pickle, are what this process wrote, whatever folder has the graphs' name."""
    graphs, stolen, marker = models / "photo.graphs", models / "stolen", models / "ran-as-root"
    crafted = tmp_path / "crafted"
    crafted.mkdir()
    shapes, evil = toy.shapes(), pickle.dumps(Payload(marker))
    write_job(Job("toy", "inductor", "cpu", shapes, shapes, {}, evil, Client("support.models.toy", {})), crafted)

    def swap() -> None:
        for staging in graphs.glob("*/.staging-*"):
            graphs.rename(stolen)
            staging.mkdir(parents=True)
            for file in crafted.iterdir():
                (staging / file.name).write_bytes(file.read_bytes())

    class Enough(Exception):
        pass

    seen: list[Path] = []

    def watch(progress: Progress) -> None:
        for job in store.home.glob(".compiling/*/job.json"):
            seen.append(job.parent)
            assert job.parent.stat().st_mode & 0o777 == 0o700
        if marker.exists() or progress.stage == "compiling":
            raise Enough

    with member(swap), contextlib.suppress(Enough):
        refused = Registry(store).obtain(toy.request(toy.Toy(), source), "wait", watch)
        assert not isinstance(refused, Refused), refused
    assert not marker.exists()
    assert seen
    assert not stolen.exists()  # nothing of a compile lies where a member can reach it


def test_a_swept_folder_is_never_anothers(models: Path, source: ModelSource, store: Store, tmp_path: Path) -> None:
    """What dead processes left is removed in this user's own folders, never through a member's link."""
    precious = tmp_path / "elsewhere" / source.digest / ".staging-old" / "precious"
    precious.parent.mkdir(parents=True)
    precious.touch()
    temporary = tmp_path / "elsewhere" / source.digest / "unet" / "entry" / ".outcome.json.999999999"
    temporary.parent.mkdir(parents=True)
    temporary.touch()
    for path in (precious, precious.parent, temporary):
        os.utime(path, (0, 0))
    as_member(lambda: (models / "photo.graphs").symlink_to(tmp_path / "elsewhere"))
    store.sweep(store.locations(source))
    publish(store, source)
    assert precious.exists() and temporary.exists()


@pytest.mark.parametrize("moment", ["names", "below"])
def test_a_link_put_in_place_during_a_sweep(
    moment: str, source: ModelSource, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the check of the owner and the removal, the folder is exchanged: the one that was checked is swept."""
    from onegraph.graph_cache.trust.open_folder import OpenFolder

    location = store.home / source.digest
    for folder in (location, tmp_path / "elsewhere"):
        (folder / ".staging-old").mkdir(parents=True)
        (folder / ".staging-old" / "file").touch()
        os.utime(folder / ".staging-old", (0, 0))
    really = getattr(OpenFolder, moment)

    def exchanged(folder: OpenFolder, *name: str) -> object:
        if folder.path == location and not location.is_symlink():
            location.rename(tmp_path / "moved")
            location.symlink_to(tmp_path / "elsewhere")
        return really(folder, *name)

    monkeypatch.setattr(OpenFolder, moment, exchanged)
    store.sweep([location])
    assert (tmp_path / "elsewhere" / ".staging-old" / "file").exists()
    assert not (tmp_path / "moved" / ".staging-old").exists()


def test_an_own_folder_in_an_open_one_is_not_swept(models: Path, source: ModelSource, store: Store) -> None:
    """A member may put any other folder of this user's in its place."""
    left = models / "photo.graphs" / source.digest / ".staging-old" / "manifest.json"
    left.parent.mkdir(parents=True)
    left.touch()
    os.utime(left.parent, (0, 0))
    store.sweep(store.locations(source))
    assert left.exists()
    models.chmod(0o755)
    store.sweep(store.locations(source))
    assert not left.exists()


def test_what_waits_for_loading_lies_in_closed_folders_only(
    models: Path, source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a member could exchange the graph folder, compiles and copies go to the system's temporary files."""
    shared = Store(models / "home")
    with shared.staging(source) as folder:
        assert is_closed(folder) and not folder.is_relative_to(models)
    assert shared.make_compiler_cache() is None
    entry = publish(shared, source)
    with shared.private(entry) as copy:
        assert isinstance(copy, Path | reasons.Reason)
        assert not isinstance(copy, Path) or (is_closed(copy) and not copy.is_relative_to(models))
    open_to_members = models / "tmp"
    open_to_members.mkdir()
    open_to_members.chmod(0o775)
    monkeypatch.setattr("tempfile.tempdir", str(open_to_members))
    monkeypatch.setenv("ONEGRAPH_HOME", str(models / "home"))
    with pytest.raises(OSError, match="other users may write"), shared.staging(source):
        raise AssertionError("not reached")


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
    """Nobody can read it, now or later: it is as none, and a graph is made and found beside it."""
    models.chmod(0o755)  # so that what this user makes in it counts
    own = publish(store, source)
    assert own.folder.is_relative_to(models)
    name = own.folder.name
    own.folder.rename(own.folder.with_name("away"))
    own.folder.parent.chmod(0o777)
    as_member(lambda: plant(own.folder))
    own.folder.parent.chmod(0o755)
    for path in (tmp_path, *tmp_path.rglob("*")):
        if path.lstat().st_uid != MEMBER:
            os.chown(path, USER, USER, follow_symlinks=False)
    process = os.fork()
    if process == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(USER)
            os.setuid(USER)
            mine = Store(store.home)
            assert mine.lookup(key(), source) == Miss(reasons.ForeignOwner("nobody"))
            made = publish(mine, source)
            assert made.folder.name.startswith(name + "-")
            assert mine.lookup(key(), source) == Hit(made)
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitpid(process, 0)[1] == 0


def test_texts_of_strangers_are_never_shown(models: Path, source: ModelSource, store: Store) -> None:
    """What a manifest claims reaches the node only if this user or a trusted publisher signed it."""
    models.chmod(0o755)
    own = publish(store, source, key(dtype="float16"))
    claims = json.loads(own.text)
    claims["key"] = {**claims["key"], "dtype": "\x1b[31mvisit evil.example", "more": {"x": 1}}
    for number in range(9):
        planted = own.folder.with_name(f"planted-{number}")
        planted.mkdir()
        (planted / "manifest.json").write_text(json.dumps(claims))
        (planted / "signature.json").write_bytes((own.folder / "signature.json").read_bytes())
    before = snapshot(models)
    found = store.lookup(key(), source)
    assert found == Miss(reasons.NoGraph("dtype float16 instead of float32"))
    own.folder.rename(models / "away")
    assert Store(store.home).lookup(key(), source) == Miss(reasons.NoGraph())
    assert {*before} >= {str(models / "photo.graphs")}


def test_a_huge_manifest_is_not_parsed_unsigned(
    models: Path, source: ModelSource, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onegraph.graph_cache.manifest import Manifest

    models.chmod(0o755)
    own = publish(store, source)
    signature = (own.folder / "signature.json").read_bytes()
    padded = own.text.rstrip()[:-1] + b" " * (3 << 20) + b"}"
    (own.folder / "manifest.json").write_bytes(padded)
    for number in range(9):
        planted = own.folder.with_name(f"planted-{number}-{key().digest}")
        planted.mkdir()
        (planted / "manifest.json").write_bytes(padded)
        (planted / "signature.json").write_bytes(signature)
    parsed: list[int] = []
    really = Manifest.model_validate_json

    def parse(text: bytes, *args: object) -> Manifest:
        parsed.append(len(text))
        return really(text)

    monkeypatch.setattr(Manifest, "model_validate_json", parse)
    assert store.lookup(key(), source) == Miss(reasons.WrongSignature())
    assert store.sibling(key(shapes={}), source) is None
    publish(store, source, content=b"another")
    assert [size for size in parsed if size > 1 << 20] == []
