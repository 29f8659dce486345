"""Writing to disks that are full, or that cannot wait for a folder."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from support.store.entries import key, publish

from onegraph.graph_cache import staging
from onegraph.graph_cache.files import free_bytes, sync_folder
from onegraph.graph_cache.lookup import Hit
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust.signing import Signer


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.EIO])
def test_some_file_systems_cannot_sync_folders(code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(handle: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fails)
    if code == errno.EIO:
        with pytest.raises(OSError, match=os.strerror(code)):
            sync_folder(tmp_path)
    else:
        sync_folder(tmp_path)


def test_the_free_bytes_of_a_folder_to_come(tmp_path: Path) -> None:
    free = free_bytes(tmp_path / "a" / "b")
    assert free is not None and free > 0
    (tmp_path / "file").touch()
    assert free_bytes(tmp_path / "file" / "x") is None


@pytest.mark.parametrize(
    ("free", "at_home"),
    [((1 << 30, 1 << 30), False), ((1 << 20, 1 << 30), True), ((2 << 20, 0), False), ((None, 0), False)],
)
def test_a_full_disk_is_passed_over(
    free: tuple[int | None, int], at_home: bool, monkeypatch: pytest.MonkeyPatch, store: Store, checkpoint: ModelSource
) -> None:
    beside, home = store.locations(checkpoint)
    monkeypatch.setattr(staging, "free_bytes", {beside: free[0], home: free[1]}.get)
    entry = publish(store, checkpoint)
    assert (home if at_home else beside) in entry.folder.parents
    assert store.lookup(key(), checkpoint) == Hit(entry)


def test_nothing_is_begun_where_nothing_fits(
    monkeypatch: pytest.MonkeyPatch, store: Store, checkpoint: ModelSource, models: Path
) -> None:
    monkeypatch.setattr(staging, "free_bytes", lambda folder: 0)
    with pytest.raises(OSError, match="No space left"), store.staging(checkpoint):
        pass
    assert [path.name for path in models.iterdir()] == ["photo.safetensors"]


def test_a_full_disk_is_better_than_none(
    monkeypatch: pytest.MonkeyPatch, store: Store, checkpoint: ModelSource
) -> None:
    beside, home = store.locations(checkpoint)
    Signer(store.home).key()
    home.write_text("no folder")
    monkeypatch.setattr(staging, "free_bytes", {beside: 2 << 20, home: 1 << 30}.get)
    assert beside in publish(store, checkpoint).folder.parents
