"""Copying a graph's files to the home: what arrives is what the manifest lists, or nothing does."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO
from unittest.mock import Mock

import pytest

from onegraph.common import reasons
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.files import open_regular
from onegraph.graph_cache.sources import source
from onegraph.graph_cache.sources.source import copy_files

FILE = "graph.aoti"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "target").mkdir()
    return tmp_path / "target"


def replaced(make: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda path: (path.unlink(), make(path))


@pytest.mark.parametrize(
    ("spoil", "wrong"),
    [
        (lambda path: path.write_bytes(b"c0de"), reasons.DigestDiffers(FILE)),
        (lambda path: path.write_bytes(b"longer"), reasons.WrongSize(FILE, 6, 4)),
        (lambda path: os.truncate(path, 1 << 40), reasons.WrongSize(FILE, 1 << 40, 4)),
        (Path.unlink, reasons.MissingFile(FILE)),
        (replaced(lambda path: path.symlink_to("/etc/passwd")), reasons.NotARegularFile(FILE)),
        (replaced(os.mkfifo), reasons.NotARegularFile(FILE)),
        (replaced(Path.mkdir), reasons.NotARegularFile(FILE)),
    ],
)
def test_what_is_wrong_is_not_copied(
    spoil: Callable[[Path], object], wrong: reasons.Reason, entry: Entry, target: Path
) -> None:
    spoil(entry.folder / FILE)
    assert copy_files(entry, target) == wrong


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("../outside", reasons.BadFileName("../outside")),
        ("/tmp/outside", reasons.BadFileName("/tmp/outside")),
        (300 * "x", reasons.BadFileName(100 * "x")),
        (".owner", reasons.BadFileName(".owner")),
        ("signature.json", reasons.ForeignFile("signature.json")),
    ],
)
def test_a_name_that_leads_elsewhere_is_not_written(
    name: str, wrong: reasons.Reason, entry: Entry, target: Path
) -> None:
    """Whoever signed it: a publisher may be trusted and careless."""
    files = {**entry.manifest.files, name: entry.manifest.files[FILE]}
    (entry.folder.parent / "outside").write_bytes(b"code")
    listing = Entry(entry.folder, entry.manifest.model_copy(update={"files": files}))
    assert copy_files(listing, target) == wrong
    assert [*target.iterdir()] == [] and not (target.parent / "outside").exists()


@pytest.mark.parametrize("twice", [False, True])
def test_only_what_differs_twice_is_damage(
    twice: bool, entry: Entry, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk or a network that fails for a moment may give other bytes."""
    asked: list[Path] = []

    def opened(path: Path) -> BinaryIO:
        asked.append(path)
        if path.name != FILE or (len(asked) > 1 and not twice):
            return open_regular(path)
        path.with_name("other").write_bytes(b"c0de")
        return path.with_name("other").open("rb")

    monkeypatch.setattr(source, "open_regular", opened)
    assert copy_files(entry, target) == (reasons.DigestDiffers(FILE) if twice else None)
    assert twice or (target / FILE).read_bytes() == b"code"


def test_a_file_that_cannot_be_read_now_is_no_damage(
    entry: Entry, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "open_regular", Mock(side_effect=OSError(24, "Too many open files", str(entry.folder))))
    found = copy_files(entry, target)
    assert isinstance(found, reasons.UnreadableNow) and str(entry.folder) not in found.text
