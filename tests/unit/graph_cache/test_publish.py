"""Publishing: whole or not at all, and never another graph in the name of the wanted one."""

from __future__ import annotations

import dataclasses
import errno
import os
import threading
from pathlib import Path

import pytest
from support.store.entries import key, new_entry, publish, quarantine

from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.files import IrregularFileError
from onegraph.graph_cache.first_use_results import FirstUse
from onegraph.graph_cache.integrity import Sound, check
from onegraph.graph_cache.key import GraphKey
from onegraph.graph_cache.lookup import Hit
from onegraph.graph_cache.manifest import CodeRecord
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store


def code(**references: str) -> CodeRecord:
    return CodeRecord(python="3.10", functions={"m:f": ("b", "s")}, references=references, methods={})


def visible(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if not path.name.startswith(".")]


def test_an_entry_holds_its_files_and_a_manifest(store: Store, checkpoint: ModelSource) -> None:
    entry = publish(store, checkpoint)
    names = ["constants.json", "graph.aoti", "manifest.json", "signature.json"]
    assert sorted(p.name for p in entry.folder.iterdir()) == names
    assert entry.manifest.key == key().fields()


def test_staging_leaves_nothing_behind(store: Store, checkpoint: ModelSource, models: Path) -> None:
    def interrupted() -> None:
        with store.staging(checkpoint) as staged:
            (staged / "half").write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [p.name for p in models.iterdir()] == ["photo.safetensors"]


def test_two_writers_leave_one_sound_entry(store: Store, checkpoint: ModelSource) -> None:
    entries: list[Entry] = []
    start = threading.Barrier(4)

    def write(content: bytes) -> None:
        start.wait()
        entries.append(publish(store, checkpoint, content=content))

    threads = [threading.Thread(target=write, args=(f"code {i}".encode(),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({e.folder for e in entries}) == 1
    found = store.lookup(key(), checkpoint)
    assert isinstance(found, Hit)
    assert len(list(found.entry.folder.parent.iterdir())) == 1


def test_the_same_graph_of_another_writer_stays(store: Store, checkpoint: ModelSource) -> None:
    first = publish(store, checkpoint, content=b"first", new=new_entry(code=code()))
    second = publish(store, checkpoint, content=b"second", new=new_entry(code=code()))
    assert second == first
    assert (first.folder / "graph.aoti").read_bytes() == b"first"


def test_a_broken_entry_in_the_way_is_replaced(store: Store, checkpoint: ModelSource) -> None:
    entry = publish(store, checkpoint)
    (entry.folder / "graph.aoti").write_bytes(b"")
    assert check(publish(store, checkpoint)) == Sound()
    assert isinstance(store.lookup(key(), checkpoint), Hit)


@pytest.mark.parametrize("other", [key(architecture="bb"), key(dtype="float16"), key(format=2)])
def test_another_keys_entry_in_the_way_goes(other: GraphKey, store: Store, checkpoint: ModelSource) -> None:
    """A sound entry in the folder of a key need not be the key's: its name holds a short digest, and can be changed."""
    final = publish(store, checkpoint).folder
    for path in final.iterdir():
        path.unlink()
    final.rmdir()
    publish(store, checkpoint, other, content=b"another").folder.rename(final)

    entry = publish(store, checkpoint, content=b"wanted")
    assert (entry.folder, entry.manifest.key) == (final, key().fields())
    assert (final / "graph.aoti").read_bytes() == b"wanted"
    assert store.lookup(key(), checkpoint) == Hit(entry)
    assert visible(final.parent) == [final]
    (aside,) = final.parent.glob(".broken-*")
    assert (aside / "graph.aoti").read_bytes() == b"another"


def test_other_code_of_the_same_digest_goes(store: Store, checkpoint: ModelSource) -> None:
    """The folder's name has a digest of the sources alone; what they refer to counts too."""
    publish(store, checkpoint, content=b"another", new=new_entry(code=code(name="class a")))
    entry = publish(store, checkpoint, content=b"wanted", new=new_entry(code=code(name="class b")))
    assert entry.manifest.code == code(name="class b")
    assert (entry.folder / "graph.aoti").read_bytes() == b"wanted"


def test_a_file_in_the_way_is_replaced(store: Store, checkpoint: ModelSource) -> None:
    final = publish(store, checkpoint).folder
    quarantine(store, final)
    final.write_text("no folder")
    assert check(publish(store, checkpoint)) == Sound()


def test_a_graph_that_no_lookup_takes_is_not_saved(store: Store, checkpoint: ModelSource) -> None:
    for files in ((), ("graph.aoti", "compile.log")):
        with pytest.raises(OSError, match="its manifest lists"):
            publish(store, checkpoint, new=dataclasses.replace(new_entry(), files=files))
    assert list(store.entries()) == []


def test_a_huge_manifest_is_not_saved(store: Store, checkpoint: ModelSource) -> None:
    with pytest.raises(OSError, match="manifest of more than 4194304 bytes"):
        publish(store, checkpoint, new=new_entry(label=(4 << 20) * "x"))


def test_a_link_in_staging_is_no_file(store: Store, checkpoint: ModelSource, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"code")
    with store.staging(checkpoint) as staged:
        (staged / "graph.aoti").symlink_to(tmp_path / "outside")
        with pytest.raises(IrregularFileError):
            store.publish(key(), staged, new_entry(), checkpoint)


def test_nothing_is_written_through_a_link(store: Store, checkpoint: ModelSource, tmp_path: Path) -> None:
    entry, outside = publish(store, checkpoint), tmp_path / "outside"
    outside.write_text("mine")
    (entry.folder / f".outcome.json.{os.getpid()}").symlink_to(outside)
    store.remember(entry, FirstUse(eager_ms=1.0))
    assert outside.read_text() == "mine"
    assert store.first_use(entry) == FirstUse(eager_ms=1.0)


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_fsync_and_chmod(
    number: int, store: Store, checkpoint: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a share of another system, where everything has the modes that it was mounted with."""
    (store.home / ".compiling").mkdir(mode=0o700, parents=True)

    def refused(*args: object, **options: object) -> None:
        raise OSError(number, os.strerror(number))

    for name in ("fsync", "chmod", "fchmod"):
        monkeypatch.setattr(os, name, refused)
    entry = publish(store, checkpoint)
    monkeypatch.undo()
    assert entry.folder.is_relative_to(checkpoint.path.parent if checkpoint.path else "")
    assert store.lookup(key(), checkpoint) == Hit(entry)


def test_quarantining_one_entry_leaves_those_of_longer_names(store: Store, checkpoint: ModelSource) -> None:
    short = publish(store, checkpoint)
    longer = publish(store, checkpoint, new=new_entry(code=code()), content=b"longer")
    assert longer.folder.name.startswith(f"{short.folder.name}-")
    quarantine(store, longer.folder)
    quarantine(store, short.folder)
    assert len(list(short.folder.parent.iterdir())) == 2
    again = publish(store, checkpoint)
    quarantine(store, again.folder)
    found = sorted((path / "graph.aoti").read_bytes() for path in short.folder.parent.iterdir())
    assert found == [b"code", b"longer"]
