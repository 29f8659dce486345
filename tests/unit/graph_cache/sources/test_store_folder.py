"""A store's folder: what is opened for a look is closed again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from onegraph.graph_cache.sources.store_folder import BadNameError, Folder


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files as Linux lists them")
def test_no_folder_stays_open(tmp_path: Path) -> None:
    """A fleet looks for graphs for months: a handle of each look would end it."""
    folder, outside = Folder(str(tmp_path / "store")), tmp_path / "outside"
    outside.mkdir()
    folder.pipe_file("a/b/graph", b"code")
    (tmp_path / "store" / "link").symlink_to(outside)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(20):
        folder.pipe_file("a/b/graph", b"code")
        assert folder.info("a/b/graph")["size"] == 4 and [*folder.find("a", detail=True)] == ["a/b/graph"]
        with folder.open("a/b/graph", "rb") as file:
            assert file.read() == b"code"
        for wrong in ("link/graph", "a/b/none", "../outside"):
            with pytest.raises((BadNameError, FileNotFoundError)):
                folder.info(wrong)
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208 - files of earlier tests may be closed meanwhile
