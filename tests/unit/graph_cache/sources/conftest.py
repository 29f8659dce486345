"""A remote store in a folder, and over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fleet.servers import FileServer, http_server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "remote"


@pytest.fixture
def served(folder: Path) -> Iterator[FileServer]:
    with http_server(folder) as server:
        yield server
