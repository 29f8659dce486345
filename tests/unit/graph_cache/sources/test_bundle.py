"""Importing: everything is verified before anything is written, and becomes this user's own graph."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from support.store.bundles import Contents, contents, graphs, write_folder, write_tar
from support.store.entries import bake, key, publish, snapshot, trust

from onegraph.common import reasons
from onegraph.graph_cache import files
from onegraph.graph_cache.first_use_results import FirstUse
from onegraph.graph_cache.lookup import Hit
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.sources import bundle as bundles
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust.signing import Trusted

Result = list[tuple[Path, bool]] | reasons.Reason


@pytest.fixture
def exported(store: Store, tmp_path: Path) -> Contents:
    """What a trusted publisher exported: two graphs."""
    publisher = Store(tmp_path / "publisher")
    made = [
        publish(publisher, ModelSource(None, "666666666666"), content=b"theirs"),
        publish(publisher, ModelSource(None, "777777777777"), key(dtype="float16"), content=b"second"),
    ]
    trust(store, bake(publisher, tmp_path / "made.tar", *made))
    return contents(tmp_path / "made.tar")


@pytest.fixture(params=[write_tar, write_folder])
def bundle(request: pytest.FixtureRequest, exported: Contents, tmp_path: Path) -> Path:
    return Path(request.param(tmp_path / "bundle", exported))


def take(store: Store, bundle: Path, publisher: str = "fleet") -> Result:
    return bundles.import_bundle(store.private, store.signer, bundle, publisher)


def test_graphs_become_this_users_own(store: Store, bundle: Path) -> None:
    taken = take(store, bundle)
    assert isinstance(taken, list)
    folders = [folder for folder, new in taken if new]
    assert {folder.parent for folder in folders} == {store.graphs / "unet"} and len(folders) == 2
    for wanted in (key(), key(dtype="float16")):
        found = store.find(wanted)
        assert isinstance(found, Hit) and found.entry.folder in folders
    assert [store.signer.provenance(entry) for entry in store.entries()] == [Trusted(), Trusted()]
    first = next(entry.folder for entry in store.entries() if entry.manifest.key["dtype"] == "float32")
    assert {path.name for path in first.iterdir()} == {
        "graph.aoti", "constants.json", "manifest.json", "signature.json", "publisher.json",
    }  # fmt: skip
    assert (first / "graph.aoti").read_bytes() == b"theirs"
    assert [*(store.home / ".staging").iterdir()] == []
    (store.home / "trusted-publishers.json").unlink()
    assert isinstance(store.find(key()), Hit)  # it stays when trust is taken back


def test_importing_again_changes_nothing(store: Store, bundle: Path) -> None:
    taken = take(store, bundle)
    assert isinstance(taken, list)
    for entry in store.entries():
        store.remember(entry, FirstUse(eager_ms=1.0))
    before = snapshot(*(folder for folder, _ in taken))
    assert take(store, bundle) == [(folder, False) for folder, _ in taken]
    assert snapshot(*(folder for folder, _ in taken)) == before


def test_an_own_graph_of_the_key_stays(store: Store, bundle: Path) -> None:
    own = publish(store, ModelSource(None, "666666666666"), content=b"own")
    taken = take(store, bundle)
    assert isinstance(taken, list)
    assert [folder for folder, new in taken if not new] == [own.folder]
    assert (own.folder / "graph.aoti").read_bytes() == b"own"


def test_only_a_trusted_name_will_do(store: Store, bundle: Path) -> None:
    trust(store, 64 * "a", "another")
    before, graph = snapshot(store.home), graphs(contents(bundle))[0].rpartition("/")[2]
    assert take(store, bundle, "somebody") == reasons.PublisherNotTrusted("somebody")
    assert take(store, bundle, "another") == reasons.BundledGraph(graph, reasons.SignedByAnother("another"))
    assert snapshot(store.home) == before


def test_a_full_disk_is_seen_before(store: Store, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshot(store.home)
    monkeypatch.setattr(bundles, "free_bytes", lambda folder: 1000)
    refused = take(store, bundle)
    assert isinstance(refused, reasons.NoRoomForBundle)
    assert refused.free == 1000 and refused.needed == sum(map(len, (b"theirs", b"second"))) + 2 * 95
    assert refused.text == "the bundle's graphs take 0 MiB, and 0 MiB are free"
    assert snapshot(store.home) == before


def test_a_disk_that_fills_leaves_whole_graphs(store: Store, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really, written = files.write_synced, list[Path]()

    def fills(path: Path, *args: object) -> None:
        written.append(path)
        if len(written) > 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        really(path, *args)  # type: ignore[arg-type]

    monkeypatch.setattr("onegraph.graph_cache.home.write_synced", fills)
    with pytest.raises(OSError, match="No space left"):
        take(store, bundle)
    (entry,) = store.entries()
    assert store.signer.provenance(entry) == Trusted()
    assert [*(store.home / ".staging").iterdir()] == []


def test_a_folder_may_hold_more_and_be_a_link(store: Store, exported: Contents, tmp_path: Path) -> None:
    """Such as a store that is in use; what its list and its manifests do not name is not looked at."""
    folder = write_folder(tmp_path / "bundle", exported)
    (folder / "notes").symlink_to("/etc/passwd")
    os.mkfifo(folder / "pipe")
    (folder / graphs(exported)[0] / "outcome.json").write_text("x")
    (tmp_path / "link").symlink_to(folder)  # which the user gives
    assert isinstance(take(store, tmp_path / "link"), list)
    assert not list(store.home.rglob("outcome.json"))
