"""Where new entries are put together, while other processes remove folders that they leave empty."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.store.entries import key, publish

from onegraph.graph_cache.crash.failure_files import FOLDER, Failure, FailureFiles
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.private_copy import private_folder
from onegraph.graph_cache.staging import staging
from onegraph.graph_cache.store import Store

Remove = Callable[[Path], None]


@pytest.fixture(params=["when it is made", "before it is used"])
def removed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Remove:
    """Have a folder removed once while it is empty, as by a process that is done there, at the worst moment."""
    before = request.param == "before it is used"
    make, open_file, make_path = os.mkdir, os.open, Path.mkdir
    left: set[str] = set()

    def remove(folder: Path | str) -> None:
        if str(folder) in left:
            left.remove(str(folder))
            os.rmdir(folder)  # noqa: PTH106

    def made(path: Any, *args: Any, **kwargs: Any) -> None:
        make_path(path, *args, **kwargs)
        if not before:
            remove(path)

    def used(do: Callable[..., Any]) -> Callable[..., Any]:
        def first_removed(path: Any, *args: Any, **kwargs: Any) -> Any:
            if before and isinstance(path, str | Path):
                remove(Path(path).parent)
            return do(path, *args, **kwargs)

        return first_removed

    monkeypatch.setattr(Path, "mkdir", made)
    monkeypatch.setattr(os, "mkdir", used(make))
    monkeypatch.setattr(os, "open", used(open_file))
    return lambda folder: left.add(str(folder))


def test_an_entry_goes_beside_its_model(removed: Remove, store: Store, checkpoint: ModelSource) -> None:
    beside = store.locations(checkpoint)[0]
    removed(beside.parent)
    removed(beside)
    with staging(store.locations(checkpoint)) as staged:
        assert staged.parent == beside


def test_a_private_folder_is_in_the_users(removed: Remove, tmp_path: Path) -> None:
    removed(tmp_path / "home" / "copies")
    with private_folder(tmp_path / "home" / "copies") as folder:
        assert folder.parent == tmp_path / "home" / "copies"


def test_a_failure_is_written(removed: Remove, tmp_path: Path) -> None:
    removed(tmp_path / FOLDER)
    failures = (Failure(kind="facts", reason={}),)
    FailureFiles(tmp_path).write(key(), "any size", failures)
    assert FailureFiles(tmp_path).read(key()) == failures


def test_writers_in_turns_stay_beside_their_model(store: Store, checkpoint: ModelSource) -> None:
    """Each leaves the folder empty, and removes it, while the others are about to use it."""
    found: list[Path] = []

    def stage() -> None:
        for _ in range(50):
            with staging(store.locations(checkpoint)) as staged:
                found.append(staged.parent)

    threads = [threading.Thread(target=stage) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(found), {*found}) == (150, {store.locations(checkpoint)[0]})
    assert publish(store, checkpoint).folder.is_relative_to(found[0])


@pytest.mark.parametrize("made", [0, 1])
def test_a_location_that_cannot_be_made_is_passed_over(
    made: int, store: Store, checkpoint: ModelSource, models: Path
) -> None:
    """With a file in the place of one of its two folders."""
    beside = store.locations(checkpoint)[0]
    (beside.parent, beside)[made].parent.mkdir(exist_ok=True)
    (beside.parent, beside)[made].write_text("a file")
    with staging(store.locations(checkpoint)) as staged:
        assert staged.is_relative_to(store.home)
