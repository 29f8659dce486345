"""Entries of a store made of a few bytes: what look-ups and publishing need, without compiling anything."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

from onegraph.common.reasons import GraphNotFinite
from onegraph.common.tensor_meta import TensorMeta
from onegraph.graph_cache.entry import Entry, read
from onegraph.graph_cache.key import GraphKey
from onegraph.graph_cache.lookup import Broken
from onegraph.graph_cache.manifest import MANIFEST_FILE, CodeRecord, Manifest
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.publish import NewEntry
from onegraph.graph_cache.sources import exporting
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust import ed25519, key_file, trust_list
from onegraph.graph_cache.trust.publishers import Publishers
from onegraph.graph_cache.trust.signing import SIGNATURE_FILE, Signer

NOWHERE = ModelSource(None, "0123456789ab")  # a model of no known file
CONSTANTS = (TensorMeta(name="unet.out.bias", shape=(4,), stride=(1,), dtype="float32"),)


def key(**changes: object) -> GraphKey:
    """A key, with some of its fields changed."""
    fields = {
        "component": "unet",
        "architecture": "aa",
        "shapes": {"dims": {}},
        "dtype": "float32",
        "backend": "inductor",
        "target": {"device": "cpu", "cpu": "f00", "torch": "2.14"},
    }
    return GraphKey(**fields | changes)  # type: ignore[arg-type]


def new_entry(label: str = "any size 512-2048", code: CodeRecord | None = None) -> NewEntry:
    """What `publish` is told of the one file that these graphs have."""
    return NewEntry(label, ("graph.aoti",), CONSTANTS, compile_seconds=1.0, made_by="0.1.0", code=code)


def publish(
    store: Store,
    source: ModelSource,
    wanted: GraphKey | None = None,
    content: bytes = b"code",
    new: NewEntry | None = None,
) -> Entry:
    """Publish an entry with one small file, as after a compile for a model."""
    with store.staging() as staged:
        (staged / "graph.aoti").write_bytes(content)
        (staged / "compile.log").write_text("not part of the entry")
        entry = store.publish(wanted or key(), staged, new or new_entry())
    store.keep_beside(entry, source)
    return entry


def quarantine(store: Store, folder: Path) -> None:
    """Quarantine what lies in a folder, as after a wrong result."""
    there = read(folder)
    store.quarantine(Broken(folder, GraphNotFinite(), there.text if isinstance(there, Entry) else b""))


def rewrite(store: Store, entry: Entry, manifest: Manifest) -> None:
    """Give an entry another manifest, signed like the first."""
    data = manifest.model_dump_json().encode()
    (entry.folder / SIGNATURE_FILE).write_text(Signer(store.home).sign(data).model_dump_json())
    (entry.folder / MANIFEST_FILE).write_bytes(data)


def die_while_loading(store: Store, entry: Entry) -> None:
    """Have a process end in the middle of loading an entry."""

    def die() -> None:
        with store.markers.loading(entry.folder):
            os._exit(1)

    process = multiprocessing.get_context("fork").Process(target=die)
    process.start()
    process.join()


def snapshot(*folders: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file and folder below: its inode, its time of modification and its bytes."""
    found = {}
    for path in sorted(path for folder in folders for path in [folder, *folder.rglob("*")]):
        stat = path.lstat()
        found[str(path)] = stat.st_ino, stat.st_mtime_ns, path.read_bytes() if path.is_file() else b""
    return found


def bake(store: Store, target: Path, *entries: Entry) -> str:
    """Export entries as a bundle; the publisher's public key."""
    private = key_file.obtain(store.home / "publisher.key")
    left_out = [done for done in exporting.export(store, entries, target, private) if done.reason is not None]
    assert left_out == []
    return ed25519.public_key(private)


def trust(store: Store, key: str, name: str = "fleet") -> None:
    """Have a user trust a publisher."""
    assert trust_list.add(Publishers(store.home), name, key) is None


def give_away(folder: Path, uid: int) -> None:
    """Make another user the owner of a folder and all that is in it. Only root can."""
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, uid, uid, follow_symlinks=False)
