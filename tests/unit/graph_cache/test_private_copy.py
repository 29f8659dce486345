"""Private copies: closed to others, checked on the way, and gone afterwards."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest
from support.store.entries import publish

from onegraph.common import reasons
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.private_copy import COPIES_FOLDER
from onegraph.graph_cache.store import Store


@pytest.fixture
def entry(store: Store, checkpoint: ModelSource) -> Entry:
    return publish(store, checkpoint)


def test_a_copy_holds_the_files(store: Store, entry: Entry) -> None:
    with store.private(entry) as folder:
        assert isinstance(folder, Path)
        assert (folder / "graph.aoti").read_bytes() == b"code"
        assert folder.parent == store.home / COPIES_FOLDER
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()


def test_a_changed_file_is_not_copied(store: Store, entry: Entry) -> None:
    (entry.folder / "graph.aoti").write_bytes(b"c0de")
    with store.private(entry) as found:
        assert found == reasons.DigestDiffers("graph.aoti")
    (entry.folder / "graph.aoti").write_bytes(b"longer")
    with store.private(entry) as found:
        assert found == reasons.WrongSize("graph.aoti", 6, 4)
    (entry.folder / "graph.aoti").unlink()
    with store.private(entry) as found:
        assert found == reasons.MissingFile("graph.aoti")
    (entry.folder / "graph.aoti").symlink_to("/dev/zero")
    with store.private(entry) as found:
        assert found == reasons.NotARegularFile("graph.aoti")


def test_trust_is_judged_once_more(store: Store, entry: Entry) -> None:
    (entry.folder / "signature.json").unlink()
    with store.private(entry) as found:
        assert found == reasons.Unsigned()


def test_an_error_leaves_no_copy(store: Store, entry: Entry) -> None:
    with pytest.raises(KeyboardInterrupt), store.private(entry):
        raise KeyboardInterrupt
    assert list((store.home / COPIES_FOLDER).iterdir()) == []


def test_a_folder_that_takes_nothing(store: Store, entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the copy lies in the system's folder for temporary files."""
    (store.home / COPIES_FOLDER).write_text("no folder")
    with store.private(entry) as folder:
        assert isinstance(folder, Path)
        assert folder.parent == Path(tempfile.gettempdir())
    assert not folder.exists()

    def fails(*args: object, **more: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "mkdtemp", fails)
    with store.private(entry) as found:
        assert found == reasons.UnreadableNow(COPIES_FOLDER, "[Errno 28] No space left on device")


def test_copies_of_dead_processes_go(store: Store, entry: Entry) -> None:
    process = os.fork()
    if process == 0:
        with store.private(entry):
            os._exit(0)
    os.waitpid(process, 0)
    with store.private(entry) as mine:
        assert len(list((store.home / COPIES_FOLDER).iterdir())) == 2
        store.sweep([])
        assert list((store.home / COPIES_FOLDER).iterdir()) == [mine]
