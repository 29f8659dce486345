"""The home: who may write it, what an entry replaces there, and what an older version kept."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.store.entries import NOWHERE, key, new_entry, publish, quarantine, snapshot
from support.windows.absent import needs_posix

from onegraph.common import reasons
from onegraph.graph_cache import home
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.integrity import Sound, check
from onegraph.graph_cache.lookup import Hit, Miss
from onegraph.graph_cache.manifest import CodeRecord
from onegraph.graph_cache.publish import NotPublishedError
from onegraph.graph_cache.sources.source import Taken
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust.private_folder import RefusedError
from onegraph.graph_cache.trust.signing import KEY_FILE, Signer


def code(**references: str) -> CodeRecord:
    return CodeRecord(python="3.10", functions={"m:f": ("b", "s")}, references=references, methods={})


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def open_home(tmp_path: Path) -> Path:
    """A graph folder that all may write."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    return tmp_path / "open"


# Whose it is ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("open_umask")
def test_what_is_loaded_is_closed_to_others(store: Store) -> None:
    entry = publish(store, NOWHERE)
    cache = store.private.make_compiler_cache()
    assert cache == store.home / "compiler-cache"
    for folder in (store.graphs, store.home / ".staging", cache):
        assert folder.stat().st_mode & 0o777 == 0o700, folder
    assert store.home.stat().st_mode & 0o022 == 0
    assert entry.folder.parent == store.graphs / "unet"
    with store.staging() as folder:
        assert folder.parent == store.home / ".staging" and folder.stat().st_mode & 0o777 == 0o700


@needs_posix("Windows' folders have no modes")
def test_what_lay_open_is_not_read_until_it_is_closed(store: Store) -> None:
    """Somebody may have put files there that no signature is over."""
    entry = publish(store, NOWHERE)
    assert store.private.make_compiler_cache() is not None
    store.graphs.chmod(0o777)
    later = Store(store.home)
    assert later.find(key()) == Miss(reasons.NoGraph())
    assert [*later.entries()] == [] and later.sibling(key(shapes={})) is None
    with later.staging():
        assert store.graphs.stat().st_mode & 0o777 == 0o700
    assert later.find(key()) == Hit(entry)


@pytest.mark.parametrize("mode", [0o777, 0o1777])
@needs_posix("Windows' folders have no modes")
def test_where_all_may_write_graphs_are_loaded_from_elsewhere(mode: int, temporary: Path, open_home: Path) -> None:
    """A copy stays in the user's folder, from which it is taken once what is elsewhere is gone."""
    open_home.chmod(mode)
    store = Store(open_home)
    entry = publish(store, NOWHERE)
    assert store.private.is_elsewhere and entry.folder.is_relative_to(temporary)
    assert store.private.folder.stat().st_mode & 0o777 == 0o700
    assert (open_home / "graphs" / "unet" / entry.folder.name / "graph.aoti").read_bytes() == b"code"
    shutil.rmtree(store.private.folder)
    later = Store(open_home)
    assert later.find(key()) == Miss(reasons.NoGraph())
    assert isinstance(later.take(key(), NOWHERE), Taken)
    found = later.find(key())
    assert isinstance(found, Hit) and found.entry.text == entry.text


@needs_posix("Windows' folders have no modes")
def test_a_home_that_is_opened_later_is_refused(store: Store) -> None:
    """Until the next start, which chooses another one."""
    store.home.mkdir()
    store.home.chmod(0o777)
    with pytest.raises(RefusedError, match="other users may write home, where graphs are cached"), store.staging():
        raise AssertionError("not reached")


# Publishing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [key(architecture="bb"), key(dtype="float16"), key(format=2)])
def test_another_keys_entry_in_the_way_goes(other: object, store: Store) -> None:
    """A sound entry in the folder of a key need not be the key's: its name holds a short digest, and can be changed."""
    final = publish(store, NOWHERE).folder
    shutil.rmtree(final)
    publish(store, NOWHERE, other, content=b"another").folder.rename(final)  # type: ignore[arg-type]
    assert isinstance(store.find(key()), Miss)
    entry = publish(store, NOWHERE, content=b"wanted")
    assert (entry.folder, (final / "graph.aoti").read_bytes()) == (final, b"wanted")
    assert store.find(key()) == Hit(entry)
    (aside,) = final.parent.glob(".broken-*")
    assert (aside / "graph.aoti").read_bytes() == b"another"


def test_other_code_of_the_same_digest_goes(store: Store) -> None:
    """The folder's name has a digest of the sources alone; what they refer to counts too."""
    publish(store, NOWHERE, content=b"another", new=new_entry(code=code(name="class a")))
    entry = publish(store, NOWHERE, content=b"wanted", new=new_entry(code=code(name="class b")))
    assert entry.manifest.code == code(name="class b")
    assert (entry.folder / "graph.aoti").read_bytes() == b"wanted"


@pytest.mark.parametrize("damaged", [True, False])
def test_what_is_no_entry_in_the_way_is_replaced(damaged: bool, store: Store) -> None:
    entry = publish(store, NOWHERE)
    if damaged:
        (entry.folder / "graph.aoti").write_bytes(b"")
    else:
        shutil.rmtree(entry.folder)
        entry.folder.write_text("no folder")
    assert check(publish(store, NOWHERE)) == Sound()
    assert isinstance(store.find(key()), Hit)


def test_an_entry_unreadable_now_is_not_replaced(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = publish(store, NOWHERE)
    before = snapshot(entry.folder)
    with monkeypatch.context() as patch:
        patch.setattr(home, "read_trusted", lambda *args: reasons.UnreadableNow("manifest.json", "too many open files"))
        with pytest.raises(NotPublishedError, match="too many open files"):
            publish(store, NOWHERE, content=b"another")
    assert snapshot(entry.folder) == before and store.find(key()) == Hit(entry)


def test_without_room_nothing_is_begun(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "free_bytes", lambda folder: (1 << 20) - 1)
    with pytest.raises(OSError, match="No space left"), store.staging():
        raise AssertionError("not reached")
    assert [*(store.home / ".staging").iterdir()] == []
    monkeypatch.setattr(home, "free_bytes", lambda folder: None)  # nobody can tell
    assert publish(store, NOWHERE).folder.exists()


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_fsync_and_chmod(number: int, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a share of another system, where everything has the modes that it was mounted with."""

    def refused(*args: object, **options: object) -> None:
        raise OSError(number, os.strerror(number))

    for name in {"fsync", "chmod", "fchmod"} & {*dir(os)}:
        monkeypatch.setattr(os, name, refused)
    entry = publish(store, NOWHERE)
    monkeypatch.undo()
    assert store.find(key()) == Hit(entry)


# Quarantine -------------------------------------------------------------------------------------------------------


def test_the_latest_quarantined_entry_stays_on_disk(store: Store) -> None:
    for content in (b"first", b"second"):
        entry = publish(store, NOWHERE, content=content)
        quarantine(store, entry.folder)
    assert store.find(key()) == Miss(reasons.NoGraph())
    (aside,) = entry.folder.parent.iterdir()
    assert (aside / "graph.aoti").read_bytes() == b"second"


def test_quarantining_one_entry_leaves_those_of_longer_names(store: Store) -> None:
    short = publish(store, NOWHERE)
    longer = publish(store, NOWHERE, new=new_entry(code=code()), content=b"longer")
    assert longer.folder.name.startswith(f"{short.folder.name}-")
    quarantine(store, longer.folder)
    for _ in range(2):
        quarantine(store, publish(store, NOWHERE).folder)
    found = sorted((path / "graph.aoti").read_bytes() for path in short.folder.parent.iterdir())
    assert found == [b"code", b"longer"]


# Keys that are lost -----------------------------------------------------------------------------------------------


def test_lost_keys_leave_the_first_graph_and_the_latest(store: Store) -> None:
    """As of a container whose key is lost at each start. Graphs of other code stay."""
    first = publish(store, NOWHERE)
    kept = {first.folder, publish(store, NOWHERE, new=new_entry(code=code())).folder}
    right = (store.home / KEY_FILE).read_bytes()
    for _ in range(3):
        (store.home / KEY_FILE).unlink()
        start = Store(store.home)
        assert start.find(key()) == Miss(reasons.WrongSignature())
        made = publish(start, NOWHERE)
        assert made.folder.name == f"{first.folder.name}-{start.signer.sign(b'').key}"
        assert start.find(key()) == Hit(made)
        assert publish(start, NOWHERE, content=b"again") == made
        assert {*first.folder.parent.iterdir()} == {*kept, made.folder}
    (store.home / KEY_FILE).write_bytes(right)
    assert store.find(key()) == Hit(first)


# An older version's folders ---------------------------------------------------------------------------------------


def as_version_2(store: Store, entry: Entry, **changes: object) -> None:
    """Put an entry where versions before the home kept it, with a manifest as they wrote it."""
    fields = {**json.loads(entry.text), "version": 2, **changes}
    fields["signature"] = fields.pop("call_rules")
    text = json.dumps(fields).encode()
    (entry.folder / "manifest.json").write_bytes(text)
    (entry.folder / "signature.json").write_text(Signer(store.home).sign(text).model_dump_json())
    older = store.home / "0123456789ab" / "unet" / entry.folder.name
    older.parent.mkdir(parents=True, exist_ok=True)
    entry.folder.rename(older)


def test_what_an_older_version_kept_is_a_source(store: Store) -> None:
    """So is a folder that others baked. Nothing in it changes."""
    whole, old = (publish(store, NOWHERE, key(dtype=dtype)) for dtype in ("float32", "bfloat16"))
    as_version_2(store, whole)
    as_version_2(store, old, version=1)
    before = snapshot(store.home / "0123456789ab")
    later = Store(store.home)
    later.sweep()
    assert later.find(key()) == Miss(reasons.NoGraph())
    taken = later.take(key(), NOWHERE)
    assert isinstance(taken, Taken) and later.find(key()) == Hit(taken.entry)
    assert (taken.entry.folder.parent, taken.entry.manifest.version) == (store.graphs / "unet", 2)
    assert later.take(key(dtype="bfloat16"), NOWHERE) == reasons.OlderManifest(1)
    assert snapshot(store.home / "0123456789ab") == before
    assert publish(later, NOWHERE) == taken.entry  # the same graph, whatever its manifest's version
