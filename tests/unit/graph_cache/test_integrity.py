"""Damage is seen before anything of an entry is parsed or loaded, and every way of it has a reason."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from onegraph.common import reasons
from onegraph.graph_cache import entry as entries
from onegraph.graph_cache import integrity
from onegraph.graph_cache.entry import Entry, read
from onegraph.graph_cache.integrity import Sound, check
from onegraph.graph_cache.manifest import FileRecord

FILE = "graph.aoti"


def test_a_sound_entry_is_sound(entry: Entry) -> None:
    assert check(entry) == Sound()
    assert read(entry.folder) == entry


@pytest.mark.parametrize(
    ("spoil", "wrong"),
    [
        (lambda path: path.write_bytes(b"co"), reasons.WrongSize(FILE, 2, 4)),
        (lambda path: path.write_bytes(b"c0de"), reasons.DigestDiffers(FILE)),
        (Path.unlink, reasons.MissingFile(FILE)),
        (
            lambda path: (path.unlink(), path.symlink_to(path.with_name("constants.json"))),
            reasons.NotARegularFile(FILE),
        ),
    ],
)
def test_what_is_wrong_with_a_file(spoil: Callable[[Path], object], wrong: reasons.Reason, entry: Entry) -> None:
    spoil(entry.folder / FILE)
    assert check(entry) == wrong


def failing(monkeypatch: pytest.MonkeyPatch, number: int, name: str, times: int = 1 << 30) -> None:
    """Have files of that name fail to open with an error number, so many times."""
    left = [times]
    really = os.open

    def fails(path: Path, *args: int, **more: int) -> int:
        if Path(path).name == name and left[0] > 0:
            left[0] -= 1
            raise OSError(number, os.strerror(number), str(path))
        return really(path, *args, **more)

    monkeypatch.setattr(os, "open", fails)


def test_a_file_that_cannot_be_read(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, errno.EINVAL, FILE)
    found = check(entry)
    assert isinstance(found, reasons.UnreadableFile)
    assert found.damage == f"its file {FILE} cannot be read ([Errno 22] Invalid argument: '{FILE}')"


@pytest.mark.parametrize("name", ["EMFILE", "ENFILE", "EIO", "ESTALE", "EACCES", "ENOMEM", "ENOSPC"])
def test_what_may_pass_is_no_damage(name: str, entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        failing(patch, getattr(errno, name), "manifest.json")
        assert isinstance(read(entry.folder), reasons.UnreadableNow)
    failing(monkeypatch, getattr(errno, name), FILE)
    found = check(entry)
    assert isinstance(found, reasons.UnreadableNow)
    assert found.file == FILE
    assert found.text.startswith("the cached graph's file graph.aoti cannot be read at the moment ([Errno ")
    assert str(entry.folder) not in found.text


def test_a_difference_counts_when_it_stays(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    really, asked = integrity.record, list[Path]()

    def once_otherwise(path: Path) -> FileRecord:
        asked.append(path)
        found = really(path)
        return found if len(asked) > 1 else found.model_copy(update={"blake3": 64 * "0"})

    monkeypatch.setattr(integrity, "record", once_otherwise)
    assert check(entry) == Sound()
    assert [path.name for path in asked] == [FILE, FILE, "constants.json"]


def test_a_manifest_counts_as_damaged_the_2nd_time(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    really, asked = entries.read_regular, list[Path]()

    def once_cut(path: Path, most: int) -> bytes:
        asked.append(path)
        return really(path, most)[: None if len(asked) > 1 else 10]

    monkeypatch.setattr(entries, "read_regular", once_cut)
    assert read(entry.folder) == entry


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def socket_(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # its whole path is too long for a socket
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)


@pytest.mark.parametrize("make", [pipe, device, socket_, Path.mkdir])
@pytest.mark.parametrize("name", [FILE, "manifest.json"])
def test_only_regular_files_are_opened(make: Callable[[Path], None], name: str, entry: Entry) -> None:
    (entry.folder / name).unlink()
    make(entry.folder / name)
    found = read(entry.folder)
    if isinstance(found, Entry):
        assert check(found) == reasons.NotARegularFile(FILE)
    else:
        assert found == reasons.NotARegularFile("manifest.json")


def test_a_manifest_may_not_be_huge(entry: Entry) -> None:
    os.truncate(entry.folder / "manifest.json", 1 << 40)
    found = read(entry.folder)
    assert found == reasons.TooLarge("manifest.json", 1 << 40, 4 << 20)
    assert found.text.endswith("its file manifest.json has 1099511627776 bytes, more than the 4194304 that are read")


def listing(entry: Entry, *names: str) -> Entry:
    """The entry, whose manifest lists other names."""
    files = dict.fromkeys(names, entry.manifest.files[FILE])
    return Entry(entry.folder, entry.manifest.model_copy(update={"files": files}))


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a/b", "a\\b", "c:x", "x\0", "x\n", "\ud800", "\u00e9", 101 * "x"]
)
def test_a_name_that_is_not_plain(name: str, entry: Entry) -> None:
    found = check(listing(entry, name))
    assert found == reasons.BadFileName(name[:100])
    assert found.text.isprintable()


@pytest.mark.parametrize(
    "name", ["manifest.json", "outcome.json", "signature.json", "graph.so", "part.aoti", "part1.aoti.py", "graph.json"]
)
def test_a_file_that_the_backend_does_not_write(name: str, entry: Entry) -> None:
    assert check(listing(entry, FILE, name)) == reasons.ForeignFile(name)


@pytest.mark.parametrize(
    "manifest", ["", "[]", "{}", '{"version": 2}', '{"version": 3, "files": {"../../x": {}}}', "\x00\xff"]
)
def test_a_corrupt_manifest_is_damage(manifest: str, entry: Entry) -> None:
    (entry.folder / "manifest.json").write_text(manifest)
    assert isinstance(read(entry.folder), reasons.UnreadableManifest)
