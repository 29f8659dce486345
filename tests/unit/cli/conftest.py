"""An empty store, and two more users: a publisher and who trusts her."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fleet.stores import Publisher

from onegraph.graph_cache.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


@pytest.fixture
def alice(tmp_path: Path) -> Publisher:
    return Publisher(Store(tmp_path / "alice"))


@pytest.fixture
def bob(tmp_path: Path) -> Store:
    return Store(tmp_path / "bob")
