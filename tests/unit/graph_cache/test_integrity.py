"""Damage is seen before anything of an entry is parsed or loaded, and every way of it has a reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.entries import publish

from onegraph.common import reasons
from onegraph.common.messages import damage, text
from onegraph.graph_cache import integrity
from onegraph.graph_cache.entry import Entry, read
from onegraph.graph_cache.integrity import Sound, check
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store

FILE = "graph.aoti"


@pytest.fixture
def entry(store: Store, checkpoint: ModelSource) -> Entry:
    return publish(store, checkpoint)


def test_a_sound_entry_is_sound(entry: Entry) -> None:
    assert check(entry) == Sound()
    assert read(entry.folder) == entry


def test_a_file_that_was_cut_short(entry: Entry) -> None:
    (entry.folder / FILE).write_bytes(b"co")
    found = check(entry)
    assert found == reasons.WrongSize(FILE, 2, 4)
    assert text(found) == "the cached graph is damaged: its file graph.aoti has 2 bytes instead of 4"


def test_a_file_that_was_changed(entry: Entry) -> None:
    (entry.folder / FILE).write_bytes(b"c0de")
    assert check(entry) == reasons.DigestDiffers(FILE)


def test_a_file_that_is_missing(entry: Entry) -> None:
    (entry.folder / FILE).unlink()
    assert check(entry) == reasons.MissingFile(FILE)


def test_a_link_is_no_file_of_the_entry(entry: Entry, tmp_path: Path) -> None:
    (entry.folder / FILE).unlink()
    (tmp_path / "evil").write_bytes(b"code")
    (entry.folder / FILE).symlink_to(tmp_path / "evil")
    assert check(entry) == reasons.MissingFile(FILE)


def test_a_file_that_cannot_be_read(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(integrity, "record", refuse)
    found = check(entry)
    assert isinstance(found, reasons.UnreadableFile)
    assert damage(found) == f"its file {FILE} cannot be read ([Errno 13] Permission denied: '{FILE}')"


def test_a_file_name_that_leaves_the_entry(entry: Entry) -> None:
    (entry.folder.parent / "outside").write_bytes(b"code")
    files = {"../outside": entry.manifest.files[FILE]}
    tampered = Entry(entry.folder, entry.manifest.model_copy(update={"files": files}))
    assert check(tampered) == reasons.MissingFile("../outside")


@pytest.mark.parametrize(
    "manifest", ["", "[]", "{}", '{"version": 2}', '{"version": 1, "files": {"../../x": {}}}', "\x00\xff"]
)
def test_a_corrupt_manifest_is_damage(manifest: str, entry: Entry) -> None:
    (entry.folder / "manifest.json").write_text(manifest)
    assert isinstance(read(entry.folder), reasons.UnreadableManifest)


def test_a_missing_manifest_names_no_folders(entry: Entry) -> None:
    (entry.folder / "manifest.json").unlink()
    found = read(entry.folder)
    assert isinstance(found, reasons.UnreadableManifest)
    assert str(entry.folder) not in text(found)


def test_every_kind_of_damage_has_a_sentence() -> None:
    silent = damage.dispatch(reasons.Damaged)
    assert [kind for kind in reasons.Damaged.__subclasses__() if damage.dispatch(kind) is silent] == []
