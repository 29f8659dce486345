"""Damage is seen before anything of an entry is parsed, loaded or copied, and every way of it has a reason."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from onegraph.common import reasons
from onegraph.graph_cache import entry as entries
from onegraph.graph_cache import integrity
from onegraph.graph_cache.entry import Entry, read
from onegraph.graph_cache.files import open_regular
from onegraph.graph_cache.integrity import Sound, check, copy_files
from onegraph.graph_cache.manifest import CONSTANTS_FILE

FILE = "graph.aoti"
Judge = Callable[[Entry], object]
Spoil = Callable[[Path], object]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Where files are copied to."""
    (tmp_path / "target").mkdir()
    return tmp_path / "target"


@pytest.fixture(params=["checked", "copied"])
def judge(request: pytest.FixtureRequest, target: Path) -> Judge:
    """Tells what is wrong with the files of an entry: where it lies, and while it is copied."""
    return check if request.param == "checked" else lambda entry: copy_files(entry, target) or Sound()


def socket_(path: Path) -> None:
    if not hasattr(socket, "AF_UNIX"):
        pytest.skip("Windows' Python has no sockets among files")
    here = Path.cwd()
    os.chdir(path.parent)  # its whole path is too long for a socket
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)


IRREGULAR: dict[str, Spoil] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "socket": socket_,
    "folder": Path.mkdir,
    "link": lambda path: path.symlink_to(path.with_name("constants.json")),
    "link elsewhere": lambda path: path.symlink_to("/etc/passwd"),
}


def replaced(make: Spoil) -> Spoil:
    return lambda path: (path.unlink(), make(path))


def test_a_sound_entry_is_sound(entry: Entry, judge: Judge) -> None:
    assert judge(entry) == Sound()
    assert read(entry.folder) == entry


@pytest.mark.parametrize(
    ("spoil", "wrong"),
    [
        (lambda path: path.write_bytes(b"co"), reasons.WrongSize(FILE, 2, 4)),
        (lambda path: path.write_bytes(b"longer"), reasons.WrongSize(FILE, 6, 4)),
        (lambda path: os.truncate(path, 1 << 40), reasons.WrongSize(FILE, 1 << 40, 4)),
        (lambda path: path.write_bytes(b"c0de"), reasons.DigestDiffers(FILE)),
        (Path.unlink, reasons.MissingFile(FILE)),
        *((replaced(make), reasons.NotARegularFile(FILE)) for make in IRREGULAR.values()),
    ],
)
def test_what_is_wrong_with_a_file(spoil: Spoil, wrong: reasons.Reason, judge: Judge, entry: Entry) -> None:
    spoil(entry.folder / FILE)
    assert judge(entry) == wrong


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
def test_what_may_pass_is_no_damage(name: str, judge: Judge, entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        failing(patch, getattr(errno, name), "manifest.json")
        assert isinstance(read(entry.folder), reasons.UnreadableNow)
    failing(monkeypatch, getattr(errno, name), FILE)
    found = judge(entry)
    assert isinstance(found, reasons.UnreadableNow)
    assert found.file == FILE
    assert found.text.startswith("the cached graph's file graph.aoti cannot be read at the moment ([Errno ")
    assert str(entry.folder) not in found.text


@pytest.mark.parametrize("twice", [False, True])
def test_a_difference_counts_when_it_stays(
    twice: bool, judge: Judge, entry: Entry, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk or a network that fails for a moment may give other bytes."""
    asked: list[Path] = []

    def opened(path: Path) -> BinaryIO:
        asked.append(path)
        if path.name != FILE or (len(asked) > 1 and not twice):
            return open_regular(path)
        path.with_name("other").write_bytes(b"c0de")
        return path.with_name("other").open("rb")

    monkeypatch.setattr(integrity, "open_regular", opened)
    assert judge(entry) == (reasons.DigestDiffers(FILE) if twice else Sound())
    assert [path.name for path in asked] == ([FILE, FILE] if twice else [FILE, FILE, "constants.json"])
    assert twice or {path.read_bytes() for path in target.glob(FILE)} <= {b"code"}


def test_a_manifest_counts_as_damaged_the_2nd_time(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    really, asked = entries.read_regular, list[Path]()

    def once_cut(path: Path, most: int) -> bytes:
        asked.append(path)
        return really(path, most)[: None if len(asked) > 1 else 10]

    monkeypatch.setattr(entries, "read_regular", once_cut)
    assert read(entry.folder) == entry


@pytest.mark.parametrize("make", IRREGULAR.values(), ids=IRREGULAR)
def test_a_manifest_is_a_regular_file(make: Spoil, entry: Entry) -> None:
    replaced(make)(entry.folder / "manifest.json")
    assert read(entry.folder) == reasons.NotARegularFile("manifest.json")


def test_a_manifest_may_not_be_huge(entry: Entry) -> None:
    os.truncate(entry.folder / "manifest.json", 1 << 40)
    found = read(entry.folder)
    assert found == reasons.TooLarge("manifest.json", 1 << 40, 4 << 20)
    assert found.text.endswith("its file manifest.json has 1099511627776 bytes, more than the 4194304 that are read")


BAD = ["", ".", "..", ".hidden", ".owner", "a/b", "../outside", "/tmp/outside", "a\\b", "c:x", "x\0", "x\n", "\ud800"]
FOREIGN = ["manifest.json", "outcome.json", "signature.json", "graph.so", "part.aoti", "part1.aoti.py", "graph.json"]


@pytest.mark.parametrize(
    ("names", "wrong"),
    [
        *(([name], reasons.BadFileName(name)) for name in (*BAD, "\u00e9")),
        ([300 * "x"], reasons.BadFileName(100 * "x")),
        *(([FILE, name], reasons.ForeignFile(name)) for name in FOREIGN),
        ([FILE], reasons.MissingFile(CONSTANTS_FILE)),
        ([CONSTANTS_FILE], reasons.EmptyEntry()),
    ],
)
def test_a_name_that_no_manifest_may_list(
    names: list[str], wrong: reasons.Damaged, judge: Judge, entry: Entry, target: Path
) -> None:
    """Whoever signed it: a publisher may be trusted and careless."""
    (entry.folder.parent / "outside").write_bytes(b"code")
    files = {name: entry.manifest.files[name if name == CONSTANTS_FILE else FILE] for name in names}
    found = judge(Entry(entry.folder, entry.manifest.model_copy(update={"files": files})))
    assert found == wrong and wrong.text.isprintable()
    assert [*target.iterdir()] == [] and not (target.parent / "outside").exists()


@pytest.mark.parametrize(
    "manifest", ["", "[]", "{}", '{"version": 2}', '{"version": 3, "files": {"../../x": {}}}', "\x00\xff"]
)
def test_a_corrupt_manifest_is_damage(manifest: str, entry: Entry) -> None:
    (entry.folder / "manifest.json").write_text(manifest)
    assert isinstance(read(entry.folder), reasons.UnreadableManifest)
