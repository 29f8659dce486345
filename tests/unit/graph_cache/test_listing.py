"""What `onegraph ls` tells comes from the index where files are as before, and from the files where they are not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.store.entries import key, publish, quarantine, rewrite, snapshot

from onegraph.common import reasons
from onegraph.graph_cache import index, listing
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.first_use import FirstUse
from onegraph.graph_cache.listing import Listed
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.signing import SIGNATURE_FILE, Trusted
from onegraph.graph_cache.store import Store

SOURCE = ModelSource(None, "fedcba987654")
USED = FirstUse(checked={"1": 1e-6, "n": 2e-6}, eager_ms=3.0, compiled_ms=2.0)


@pytest.fixture(autouse=True)
def _later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the index take all files for old enough to rely on."""
    monkeypatch.setattr(index, "time", SimpleNamespace(time=lambda: time.time() + 10))


@pytest.fixture
def entries(store: Store) -> list[Entry]:
    """Ten entries, of which the first was used, in a store whose index was written."""
    made = [publish(store, SOURCE, key(architecture=f"{number}")) for number in range(10)]
    store.remember(made[0], USED)
    list(store.listing())
    store.save_index()
    return made


def listed(store: Store) -> dict[Path, Listed]:
    return {found.folder: found for found in store.listing()}


def test_it_tells_what_the_files_tell(store: Store, entries: list[Entry]) -> None:
    for found in (listed(store), listed(Store(store.home))):
        assert list(found) == sorted(entry.folder for entry in entries)
        for entry in entries:
            one, wanted = found[entry.folder], entry.manifest.key
            assert (one.label, one.bytes) == (entry.manifest.label, entry.bytes)
            assert one.key == {name: wanted[name] for name in wanted if name not in ("architecture", "shapes")}
            assert one.provenance == Trusted()
            used = (2e-6, 1.5) if entry == entries[0] else (None, None)
            assert (one.relative_l2, one.speedup) == used


def test_it_reads_nothing_twice(store: Store, entries: list[Entry], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(folder: Path, *args: object) -> None:
        pytest.fail(f"{folder} was read")

    before = snapshot(store.home)
    for module, name in ((index, "read_trusted"), (listing, "read"), (listing, "read_here")):
        monkeypatch.setattr(module, name, fails)
    assert len(listed(Store(store.home))) == len(entries)
    store.save_index()
    assert snapshot(store.home) == before


def without_signature(store: Store, entry: Entry) -> object:
    (entry.folder / SIGNATURE_FILE).unlink()
    return reasons.Unsigned()


def with_another_signature(store: Store, entry: Entry) -> object:
    text = (entry.folder / SIGNATURE_FILE).read_text()
    (entry.folder / SIGNATURE_FILE).write_text(text.replace('"value": "', '"value": "0')[: len(text)])
    return reasons.WrongSignature()


def with_another_manifest(store: Store, entry: Entry) -> object:
    (entry.folder / "manifest.json").write_text(entry.manifest.model_copy(update={"label": "x"}).model_dump_json())
    return reasons.WrongSignature()


def with_another_key(store: Store, entry: Entry) -> object:
    (store.home / "signing.key").write_bytes(bytes(32))
    return reasons.WrongSignature()


def open_to_others(store: Store, entry: Entry) -> object:
    (entry.folder / "graph.aoti").chmod(0o666)
    return Trusted(mine=False)


def in_an_open_folder(store: Store, entry: Entry) -> object:
    entry.folder.parent.chmod(0o777)
    return Trusted(mine=False)


CHANGES = [
    without_signature, with_another_signature, with_another_manifest, with_another_key, open_to_others,
    in_an_open_folder,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_it_sees_who_is_no_longer_trusted(
    change: Callable[[Store, Entry], object], store: Store, entries: list[Entry]
) -> None:
    wanted = change(store, entries[3])
    assert listed(Store(store.home))[entries[3].folder].provenance == wanted


def test_it_sees_new_results_and_entries(store: Store, entries: list[Entry]) -> None:
    store.remember(entries[0], FirstUse(checked={"1": 5e-4}, eager_ms=1.0, compiled_ms=1.0))
    store.remember(entries[1], USED)
    rewrite(store, entries[2], entries[2].manifest.model_copy(update={"label": "new"}))
    quarantine(store, entries[3].folder)
    added = publish(store, SOURCE, key(dtype="float16"))
    for one in (store, Store(store.home)):
        found = listed(one)
        assert (found[entries[0].folder].relative_l2, found[entries[0].folder].speedup) == (5e-4, 1.0)
        assert found[entries[1].folder].speedup == 1.5
        assert (found[entries[2].folder].label, found[entries[2].folder].provenance) == ("new", Trusted())
        assert entries[3].folder not in found
        assert found[added.folder].key["dtype"] == "float16"
    (entries[1].folder / "outcome.json").unlink()
    assert listed(store)[entries[1].folder].speedup is None


def test_a_forged_index_trusts_nobody(store: Store, entries: list[Entry], tmp_path: Path) -> None:
    """Somebody who may write the folder, but has no key, says that an entry is signed."""
    (file,) = (store.home / ".index").iterdir()
    data = file.read_bytes()
    changed = with_another_manifest(store, entries[3])
    found = os.lstat(entries[3].folder / "manifest.json")
    stamp = f"[{found.st_ino},{found.st_mtime_ns},{found.st_ctime_ns},{found.st_size}]".encode()
    name = entries[3].folder.name.encode()
    start = data.index(b"[[", data.index(name))
    file.write_bytes(data[: start + 1] + stamp + data[data.index(b"]", start) + 1 :])
    assert listed(Store(store.home))[entries[3].folder].provenance == changed
