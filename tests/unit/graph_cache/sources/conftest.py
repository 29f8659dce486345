"""A publisher, a remote store of hers in a folder and over HTTP, and a worker who trusts her and reads it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fleet.servers import FileServer, http_server
from support.fleet.stores import Publisher, Worker

from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.store import Store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "remote"


@pytest.fixture
def url(folder: Path) -> str:
    return folder.as_uri()


@pytest.fixture
def served(folder: Path) -> Iterator[FileServer]:
    with http_server(folder) as server:
        yield server


@pytest.fixture
def alice(tmp_path: Path) -> Publisher:
    return Publisher(Store(tmp_path / "alice"))


@pytest.fixture
def made(alice: Publisher, url: str) -> Entry:
    """A graph that she pushed."""
    entry = alice.make(content=b"theirs" * 1000)
    assert alice.push(url, entry) == ["pushed"]
    return entry


@pytest.fixture
def worker(alice: Publisher, served: FileServer, tmp_path: Path) -> Worker:
    return Worker.at(tmp_path / "home", served.url, trusts=[alice])
