"""Lists of graphs: what they tell of each, and that manifests are read once."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support.store.entries import publish, quarantine
from support.store.sized import BIG, NOWHERE, listed, on_disk, usable

from onegraph.common.reasons import CheckpointGone, OlderManifest, Quarantined
from onegraph.graph_cache.disk import facts, marks
from onegraph.graph_cache.disk.listing import bytes_below, bytes_on_disk
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust.signing import Signer


def test_a_list_counts_each_byte(store: Store, three: list[Entry]) -> None:
    there = store.disk.entries()
    assert [one.path for one in there] == sorted(entry.folder for entry in three)
    assert bytes_on_disk(there) == on_disk(store) == bytes_below(store.graphs) > 3 * BIG
    assert [(one.uses, one.pinned, one.in_use, one.unusable, one.beside) for one in there] == [
        (1, False, False, None, False)
    ] * 3
    assert len({one.id for one in there}) == 3


def test_a_graph_names_the_models_that_it_served(
    store: Store, checkpoint: ModelSource, tuned: ModelSource, models: Path
) -> None:
    entry = publish(store, checkpoint, usable())
    assert (listed(store, entry).models, listed(store, entry).model) == ((), "unknown")
    for source in (checkpoint, tuned, checkpoint, NOWHERE):
        store.note_use(entry, "restored", source)
    one = listed(store, entry)
    assert one.models == (
        marks.Model("0123456789ab", str(models / "photo.graphs")),
        marks.Model("fedcba987654", str(models / "tuned.graphs")),
        marks.Model("0123456789ab", ""),
    )
    assert (one.model, one.uses) == ("photo/0123456789ab", 4)
    (entry.folder / ".models").write_bytes(b"\n\t\nfedcba987654\n\xff\xff\t\xff\n")  # by hand
    assert listed(store, entry).models[0] == marks.Model("fedcba987654", "")


def test_a_checkpoint_that_is_gone_makes_its_copies_useless_and_no_graph(
    store: Store, checkpoint: ModelSource, models: Path
) -> None:
    entry = publish(store, checkpoint, usable())
    store.note_use(entry, "compiled", checkpoint)
    (models / "photo.safetensors").unlink()
    assert [(one.beside, one.unusable) for one in store.disk.scan([models], [], [])] == [
        (False, None),
        (True, CheckpointGone("photo")),
    ]


def test_what_is_not_loaded_says_why(store: Store, three: list[Entry]) -> None:
    quarantine(store, three[0].folder)
    (three[1].folder / "signature.json").unlink()
    text = b'{"version": 1}'
    (three[2].folder / "manifest.json").write_bytes(text)
    (three[2].folder / "signature.json").write_text(Signer(store.home).sign(text).model_dump_json())
    found = {one.path.name: one for one in store.disk.entries()}
    assert [one.unusable for one in found.values() if one.quarantined] == [Quarantined()]
    assert found[three[1].folder.name].facts.code == "unsigned"
    assert isinstance(found[three[2].folder.name].unusable, OlderManifest)


def test_what_is_listed_is_read_once(store: Store, three: list[Entry], monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Path] = []
    read = facts.read_text

    def counted(folder: Path) -> object:
        reads.append(folder)
        return read(folder)

    monkeypatch.setattr(facts, "read_text", counted)
    first = store.disk.entries()
    assert len(reads) == 3 and store.disk.entries() == first and len(reads) == 3
    (three[1].folder / "signature.json").unlink()
    assert listed(store, three[1]).facts.code == "unsigned"
    assert reads[3:] == [three[1].folder]
    (store.home / "signing.key").write_bytes(32 * b"x")  # another key: all are judged anew
    assert {one.facts.code for one in store.disk.entries()} == {"wrong_signature", "unsigned"}
    shutil.rmtree(three[0].folder)
    assert len(store.disk.entries()) == 2


def test_files_that_go_while_they_are_counted_count_as_nothing(
    store: Store, three: list[Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other processes quarantine entries and write first-use results meanwhile."""
    really = os.lstat

    def gone(path: str) -> os.stat_result:
        if str(path).endswith("graph.aoti"):
            raise FileNotFoundError(2, "No such file or directory")
        return really(path)

    monkeypatch.setattr(os, "lstat", gone)
    assert 0 < bytes_below(store.graphs) < BIG
