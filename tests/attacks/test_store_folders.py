"""Names and links in stores that lead elsewhere: nothing outside a store is read, listed or written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from blake3 import blake3
from support.fleet.stores import Publisher, remote_of

from onegraph.common import reasons
from onegraph.graph_cache.sources import commands, records
from onegraph.graph_cache.sources.source import Transfer
from onegraph.graph_cache.sources.transport import Patience, Remote, StoreError
from onegraph.graph_cache.store import Store

A, SECRET = 64 * "a", b"-----BEGIN PRIVATE KEY-----"
DIGEST = blake3(SECRET).hexdigest()


class Lying(Remote):
    """A store that lists what it likes, as an object store can."""

    def __init__(self, *names: str) -> None:
        super().__init__(remote_of("file:///nowhere").address, 1.0)
        self.names = names

    def list(self, folder: str, patience: Patience | None = None) -> dict[str, tuple[int, float]]:
        return {name: (len(SECRET), 0.0) for name in self.names if name.startswith(f"{folder}/")}

    def read(self, name: str, most: int, patience: Patience | None = None) -> bytes:
        return SECRET


def codes(done: list[Transfer]) -> list[str]:
    return [one.reason.code if one.reason is not None else one.did for one in done]


def refused(remote: Remote, name: str) -> bool:
    """Whether a store names the file as one that no store holds when it is read."""
    with pytest.raises(StoreError) as error:
        remote.read(name, 1000)
    return error.value.reason == reasons.StoreBadName(remote.label, name[:100])


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of somebody's, with a file that only he may read."""
    folder = tmp_path / "outside"
    folder.mkdir()
    for name in (DIGEST, f"{A}.json"):
        (folder / name).write_bytes(SECRET)
        (folder / name).chmod(0o600)
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    "name",
    [
        "withdrawn/../../outside/x", f"withdrawn/../../outside/{A}.json", f"index/../../{A}.json", "index/x.json",
        f"withdrawn/%2e%2e/{A}.json", f"withdrawn/{A}/../{A}.json", f"withdrawn/{A.upper()}.json",
        f"withdrawn/{A}.json\n", f"withdrawn//{A}.json", f"/withdrawn/{A}.json", f"withdrawn\\..\\{A}.json",
        f"withdrawn/{A}/x.json", f"index/{A}.json/x", f"objects/ab/{A}", f"objects/../objects/aa/{A}",
        f"records/{A}/ab/{A}.json", f"graphs/{A}/ab/{A}/{A}.json", f"withdrawn/{A}.js\u03bfn",
    ],
)  # fmt: skip
def test_a_name_that_no_publisher_makes_is_not_copied(name: str, tmp_path: Path) -> None:
    """The store is asked for all its names, whatever folder they lie in."""
    target = tmp_path / "deep" / "target"
    source = Lying()
    source.list = lambda folder, *_: {name: (len(SECRET), 0.0)} if folder == "withdrawn" else {}  # type: ignore[method-assign]
    done = [*commands.mirror(source, remote_of(f"file://{target}"))]
    assert [one.reason for one in done] == [reasons.StoreBadName(source.label, name[:100])]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("link", "to", "name"),
    [
        (f"withdrawn/{A}.json", f"{A}.json", f"withdrawn/{A}.json"),
        (f"index/{A}.json", f"{A}.json", f"index/{A}.json"),
        (f"graphs/{A}/aa/{A}/{A}.json", f"{A}.json", f"graphs/{A}/aa/{A}/{A}.json"),
        (f"objects/{DIGEST[:2]}/{DIGEST}", DIGEST, f"objects/{DIGEST[:2]}/{DIGEST}"),
        (f"objects/{DIGEST[:2]}", ".", f"objects/{DIGEST[:2]}/{DIGEST}"),
        (f"records/{A}/aa", ".", f"records/{A}/aa/{A}.json"),
        (f"withdrawn/{A}", ".", f"withdrawn/{A}/{A}.json"),
    ],
)
def test_a_link_in_a_store_is_not_followed(link: str, to: str, name: str, source: Path, outside: Path) -> None:
    """Else whoever can write a store has its mirror publish what only the user may read."""
    (source / link).parent.mkdir(parents=True)
    (source / link).symlink_to(outside / to)
    remote, target = remote_of(f"file://{source}"), source.parent / "target"
    done = [*commands.mirror(remote, remote_of(f"file://{target}"))]
    assert "store_bad_name" in codes(done)
    assert [path for path in target.rglob("*") if path.is_file()] == []
    assert name == link or name not in remote.list(name.split("/")[0])
    assert refused(remote, name)


@pytest.mark.parametrize("folder", ["objects", "records", "withdrawn"])
def test_a_folder_of_a_store_that_is_a_link_is_not_listed(folder: str, source: Path, outside: Path) -> None:
    (source / folder).symlink_to(outside)
    remote = remote_of(f"file://{source}")
    for listed in (lambda: remote.list(folder), lambda: [*commands.mirror(remote, remote)]):
        with pytest.raises(StoreError) as error:
            listed()
        assert error.value.reason == reasons.StoreBadName(remote.label, folder)


@pytest.mark.parametrize("folder", ["objects", "graphs", "records", "index"])
def test_nothing_is_written_through_a_link(folder: str, source: Path, outside: Path) -> None:
    alice = Publisher(Store(source.parent / "alice"))
    made = alice.make()
    (source / folder).symlink_to(outside)
    before = sorted(path.name for path in outside.iterdir())
    with pytest.raises(StoreError) as error:
        alice.push(f"file://{source}", made)
    assert isinstance(error.value.reason, reasons.StoreBadName)
    with pytest.raises(StoreError):
        remote_of(f"file://{source}").remove(f"{folder}/{A}.json")
    assert sorted(path.name for path in outside.iterdir()) == before


def test_a_file_that_is_a_link_is_replaced_where_it_is_written(source: Path, outside: Path) -> None:
    remote, name = remote_of(f"file://{source}"), records.index_name(A)
    (source / "index").mkdir()
    (source / name).symlink_to(outside / f"{A}.json")
    remote.write(name, b"new")
    assert (outside / f"{A}.json").read_bytes() == SECRET
    assert not (source / name).is_symlink() and remote.read(name, 10) == b"new"
    with pytest.raises(StoreError):
        remote.write("../outside/new", b"new")
    assert not (outside / "new").exists()


def test_what_is_no_file_is_refused_at_once(source: Path) -> None:
    """A pipe would wait for its other end for ever."""
    remote, name = remote_of(f"file://{source}"), records.index_name(A)
    (source / "index").mkdir()
    os.mkfifo(source / name)
    with pytest.raises(StoreError) as error:
        remote.read(name, 10, Patience(2.0))
    assert error.value.reason == reasons.StoreBadName(remote.label, name[:100])


def test_the_root_itself_may_be_a_link(source: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(source)
    remote = remote_of(f"file://{tmp_path / 'link'}")
    remote.write(f"index/{A}.json", b"x")
    assert remote.read(f"index/{A}.json", 10) == b"x"
    assert [*remote.list("index")] == [f"index/{A}.json"]
