"""An empty store, a model whose checkpoint lies in a folder of its own, and a graph of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.store.entries import publish

from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder for settings, as a test finds it: there is none yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "onegraph"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's folder for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.fixture
def reachable(tmp_path: Path) -> Iterator[Path]:
    """The folder of this test, which other users may look into: pytest's are closed."""
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    yield tmp_path
    for above in tmp_path.parents[:2]:
        above.chmod(0o700)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """The folder of checkpoints."""
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


@pytest.fixture
def checkpoint(models: Path) -> ModelSource:
    (models / "photo.safetensors").write_bytes(b"x")
    return ModelSource(models / "photo.safetensors", "0123456789ab")


@pytest.fixture
def tuned(models: Path) -> ModelSource:
    """Another model of the same architecture, beside the first."""
    return ModelSource(models / "tuned.safetensors", "fedcba987654")


@pytest.fixture
def entry(store: Store, checkpoint: ModelSource) -> Entry:
    """A graph in the home, of which a copy lies beside the checkpoint."""
    return publish(store, checkpoint)


@pytest.fixture
def beside(models: Path, entry: Entry) -> Path:
    """The copy beside the checkpoint, of which the home has none any more."""
    shutil.rmtree(entry.folder)
    return models / "photo.graphs" / "0123456789ab" / "unet" / entry.folder.name


@pytest.fixture
def location(models: Path) -> Path:
    return models / "tuned.graphs" / "fedcba987654"
