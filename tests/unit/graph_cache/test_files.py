"""Writing to disks that cannot wait for a folder, and what is told of their room."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from onegraph.graph_cache.files import (
    OversizedFileError,
    free_bytes,
    is_plain_folder,
    read_regular,
    replace_text,
    sync_folder,
    takes_no_more_files,
)


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.EIO])
def test_some_file_systems_cannot_sync_folders(code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(handle: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fails)
    if code == errno.EIO and os.name == "posix":  # Windows opens no folder
        with pytest.raises(OSError, match=os.strerror(code)):
            sync_folder(tmp_path)
    else:
        sync_folder(tmp_path)


def test_the_free_bytes_of_a_folder_to_come(tmp_path: Path) -> None:
    free = free_bytes(tmp_path / "a" / "b")
    assert free is not None and free > 0
    (tmp_path / "file").touch()
    assert (free_bytes(tmp_path / "file" / "x") is None) == (os.name == "posix")  # Windows calls it not found


def test_a_disk_with_room_takes_more_files(tmp_path: Path) -> None:
    assert not takes_no_more_files(tmp_path / "a" / "b")


def test_neither_a_link_nor_a_junction_is_a_plain_folder(tmp_path: Path) -> None:
    assert is_plain_folder(tmp_path.lstat())
    (tmp_path / "file").touch()
    assert not is_plain_folder((tmp_path / "file").lstat())
    junction = SimpleNamespace(st_mode=tmp_path.lstat().st_mode, st_reparse_tag=0xA0000003)  # as Windows describes one
    assert not is_plain_folder(junction)  # type: ignore[arg-type]
    (tmp_path / "link").symlink_to(tmp_path)
    assert not is_plain_folder((tmp_path / "link").lstat())


def test_a_file_that_grows_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one whose size the file system does not tell."""
    (tmp_path / "a").write_bytes(b"abcdef")
    before = os.fstat

    def smaller(handle: int) -> os.stat_result:
        return os.stat_result((*before(handle)[:6], 2, *before(handle)[7:]))

    monkeypatch.setattr(os, "fstat", smaller)
    assert read_regular(tmp_path / "a", 6) == b"abcdef"
    with pytest.raises(OversizedFileError):
        read_regular(tmp_path / "a", 5)


def test_a_failed_rename_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "outcome.json" / "x").mkdir(parents=True)
    with pytest.raises(OSError, match="outcome"):
        replace_text(tmp_path / "outcome.json", "{}")
    assert [path.name for path in tmp_path.iterdir()] == ["outcome.json"]
