"""Folders held open: they stay the same folder, follow no link, and tell who else may exchange them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from onegraph.graph_cache.trust.open_folder import is_closed, opened, opened_closed

OTHER = 12345  # nobody's number
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def test_a_handle_stays_with_its_folder(tmp_path: Path) -> None:
    (tmp_path / "a" / "inside").mkdir(parents=True)
    (tmp_path / "b" / "inside").mkdir(parents=True)
    (tmp_path / "b" / "inside" / "precious").touch()
    with opened(tmp_path / "a") as folder:
        (tmp_path / "a").rename(tmp_path / "moved")
        (tmp_path / "a").symlink_to(tmp_path / "b")
        folder.remove("inside")
    assert (tmp_path / "b" / "inside" / "precious").exists()
    assert list((tmp_path / "moved").iterdir()) == []


def test_nothing_is_removed_through_links(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious").touch()
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with opened(tmp_path) as folder:
        folder.remove("old")
        folder.remove("link")
        with pytest.raises(OSError, match="link"), folder.below("link"):
            raise AssertionError("not reached")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "link"]
    assert (tmp_path / "elsewhere" / "precious").exists()


@pytest.mark.parametrize(
    ("mode", "closed"), [(0o755, True), (0o700, True), (0o775, False), (0o757, False), (0o1777, True), (0o1775, True)]
)
@pytest.mark.parametrize("part", ["a/b/c", "a/b", "a"])
def test_every_folder_above_counts(part: str, mode: int, closed: bool, tmp_path: Path) -> None:
    (tmp_path / "a/b/c").mkdir(parents=True)
    if os.geteuid() == 0:
        os.chown(tmp_path / part, 0, OTHER)  # or the group might have no other member
    (tmp_path / part).chmod(mode)
    assert is_closed(tmp_path / "a/b/c") == closed
    (tmp_path / "link").symlink_to(tmp_path / "a/b/c")
    assert is_closed(tmp_path / "link") == closed


@as_root
@pytest.mark.parametrize("part", ["a/b", "a", "link"])
def test_what_others_own_is_not_closed(part: str, tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    os.chown(tmp_path / part, OTHER, OTHER, follow_symlinks=False)
    assert not is_closed(tmp_path / "link/b")


def test_what_is_missing_is_not_closed(tmp_path: Path) -> None:
    with opened_closed(tmp_path / "missing") as folder:
        assert folder is None
