"""Entries that a stranger crafted, wherever graphs come from: none is loaded, or comes to the home, or is touched."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from support.models import toy
from support.store.entries import bake, publish, snapshot, trust

from onegraph.backends.inductor import InductorBackend
from onegraph.common.errors import LoadError
from onegraph.common.refused import Refused
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.home import Home, SignedGraph
from onegraph.graph_cache.key import GraphKey
from onegraph.graph_cache.lookup import Hit
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.sources import folder as folder_source
from onegraph.graph_cache.sources.bundle import import_bundle
from onegraph.graph_cache.sources.source import Taken
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust import ed25519, private_folder, publishers
from onegraph.graph_cache.trust.publishers import PUBLISHER_FILE, TRUSTED_FILE, TrustedPublishers
from onegraph.runtime.obtain.registry import Registry

FOREIGN_SHAPES = {"dims": {"height": 8}}


@dataclass(frozen=True)
class Scene:
    """A user with an installation that has compiled before, and an entry that a stranger's installation made.

    Attributes:
        evil: the stranger's entry for the wanted key, signed with the stranger's key.
        neighbours: folders with checkpoints that look-ups search.
    """

    store: Store
    source: ModelSource
    wanted: GraphKey
    evil: Entry
    neighbours: tuple[Path, ...]

    def plant(self, location: Path) -> Path:
        """Copy the stranger's entry below a location."""
        return Path(shutil.copytree(self.evil.folder, location / self.wanted.component / self.evil.folder.name))

    @property
    def models(self) -> Path:
        assert self.source.path is not None
        return self.source.path.parent


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "photo.safetensors").write_bytes(b"x")
    store, source = Store(tmp_path / "home"), ModelSource(tmp_path / "models" / "photo.safetensors", "0123456789ab")
    wanted = toy.request(toy.Toy(), source).key
    with store.staging():  # so that there is a key
        pass
    evil = publish(Store(tmp_path / "stranger"), ModelSource(None, "666666666666"), wanted, content=b"evil library")
    neighbours = (tmp_path / "models" / "loras", tmp_path / "extra")
    return Scene(store, source, wanted, evil, neighbours)


def beside_the_checkpoint(scene: Scene) -> Path:
    return scene.models / "photo.graphs" / scene.source.digest


def for_another_hash_of_the_checkpoint(scene: Scene) -> Path:
    return scene.models / "photo.graphs" / "666666666666"


def beside_another_checkpoint(scene: Scene) -> Path:
    return scene.models / "downloaded.graphs" / "666666666666"


def in_a_subfolder_of_the_models(scene: Scene) -> Path:
    return scene.neighbours[0] / "pack.graphs" / "666666666666"


def in_an_extra_model_folder(scene: Scene) -> Path:
    return scene.neighbours[1] / "share.graphs" / scene.source.digest


def in_the_home(scene: Scene) -> Path:
    return scene.store.graphs


def where_older_versions_kept_it(scene: Scene) -> Path:
    return scene.store.home / "666666666666"


def in_a_graph_folder_that_all_may_write(scene: Scene) -> Path:
    scene.store.home.chmod(0o777)
    return scene.store.home / "graphs"


def for_a_model_in_such_a_folder(scene: Scene) -> Path:
    scene.store.home.chmod(0o777)
    return scene.store.home / scene.source.digest


PLACES = [
    beside_the_checkpoint,
    for_another_hash_of_the_checkpoint,
    beside_another_checkpoint,
    in_a_subfolder_of_the_models,
    in_an_extra_model_folder,
    in_a_graph_folder_that_all_may_write,
    for_a_model_in_such_a_folder,
    where_older_versions_kept_it,
    in_the_home,
]


def signed_by_the_stranger(scene: Scene, entry: Path) -> None:
    pass


def unsigned(scene: Scene, entry: Path) -> None:
    (entry / "signature.json").unlink()


def naming_the_users_key(scene: Scene, entry: Path) -> None:
    """The id of the key is no secret: it stands in every entry that the user shares."""
    evil = json.loads((entry / "signature.json").read_text())
    (entry / "signature.json").write_text(json.dumps({**evil, "key": scene.store.signer.sign(b"").key}))


def with_a_signature_of_another_entry(scene: Scene, entry: Path) -> None:
    (entry / "signature.json").write_text(scene.store.signer.sign(b"own manifest").model_dump_json())


def with_an_empty_key(scene: Scene, entry: Path) -> None:
    """As if the key were no bytes at all."""
    import hmac

    from blake3 import blake3

    value = hmac.new(b"", (entry / "manifest.json").read_bytes(), "sha256").hexdigest()
    signature = {"version": 1, "kind": "hmac-sha256", "key": blake3(b"").hexdigest(length=4), "value": value}
    (entry / "signature.json").write_text(json.dumps(signature))


def with_a_right_signature_and_another_file(scene: Scene, entry: Path) -> None:
    resign(scene, entry)
    (entry / "graph.aoti").write_bytes(b"evil?library")


def resign(scene: Scene, entry: Path) -> None:
    """Give an entry the user's own signature."""
    signature = scene.store.signer.sign((entry / "manifest.json").read_bytes())
    (entry / "signature.json").write_text(signature.model_dump_json())


STRANGERS_KEY = 32 * b"s"
PUBLISHERS_KEY = 32 * b"p"


def published_by_a_stranger(scene: Scene, entry: Path) -> None:
    """While another publisher is trusted, and with a list of trusted ones beside the graphs."""
    trust(scene.store, ed25519.public_key(PUBLISHERS_KEY))
    listed = TrustedPublishers(publishers={"fleet": ed25519.public_key(STRANGERS_KEY)}).model_dump_json()
    for folder in (entry, *entry.parents[:3]):
        if folder != scene.store.home:
            (folder / TRUSTED_FILE).write_text(listed)
    publish_as(STRANGERS_KEY, entry)


def naming_a_trusted_publisher(scene: Scene, entry: Path) -> None:
    trust(scene.store, ed25519.public_key(PUBLISHERS_KEY))
    publish_as(STRANGERS_KEY, entry)
    signature = json.loads((entry / PUBLISHER_FILE).read_text())
    signature["key"] = ed25519.public_key(PUBLISHERS_KEY)
    (entry / PUBLISHER_FILE).write_text(json.dumps(signature))


def with_a_publishers_signature_of_another_entry(scene: Scene, entry: Path) -> None:
    trust(scene.store, ed25519.public_key(PUBLISHERS_KEY))
    signature = publishers.sign(PUBLISHERS_KEY, (entry / "manifest.json").read_bytes() + b" ")
    (entry / PUBLISHER_FILE).write_text(signature.model_dump_json())


def published_and_with_another_file(scene: Scene, entry: Path) -> None:
    trust(scene.store, ed25519.public_key(PUBLISHERS_KEY))
    publish_as(PUBLISHERS_KEY, entry)
    (entry / "graph.aoti").write_bytes(b"evil?library")


def publish_as(private: bytes, entry: Path) -> None:
    signature = publishers.sign(private, (entry / "manifest.json").read_bytes())
    (entry / PUBLISHER_FILE).write_text(signature.model_dump_json())


SIGNED = [with_a_right_signature_and_another_file, published_and_with_another_file]  # which are damaged, then
CRAFTS = [
    signed_by_the_stranger,
    unsigned,
    naming_the_users_key,
    with_a_signature_of_another_entry,
    with_an_empty_key,
    published_by_a_stranger,
    naming_a_trusted_publisher,
    with_a_publishers_signature_of_another_entry,
    *SIGNED,
]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The graphs that were loaded, none of which runs: each lies where this user alone may look."""
    found: list[bytes] = []

    def load(backend: object, folder: Path, device: torch.device) -> None:
        assert private_folder.check(folder.parents[1]) is None
        assert folder.parents[1].stat().st_mode & 0o777 == 0o700
        found.append((folder / "graph.aoti").read_bytes())
        raise LoadError("enough seen")

    monkeypatch.setattr(InductorBackend, "load", load)
    return found


def starts(scene: Scene) -> Refused:
    """A new process asks for the graph, at first ahead of its use."""
    request = toy.request(toy.Toy(), scene.source, neighbours=scene.neighbours)
    registry = Registry(Store(scene.store.home))
    registry.preloads.run(request, 0)
    refused = registry.obtain(request, "eager", lambda progress: None)
    assert isinstance(refused, Refused) and registry.graphs() == []
    return refused


@pytest.mark.parametrize("craft", CRAFTS)
@pytest.mark.parametrize("place", PLACES)
def test_a_planted_entry_is_never_loaded(
    place: Callable[[Scene], Path], craft: Callable[[Scene, Path], None], scene: Scene, loaded: list[bytes]
) -> None:
    planted = scene.plant(place(scene))
    craft(scene, planted)
    before = snapshot(planted)
    store = Store(scene.store.home)
    sibling = GraphKey(**{**scene.wanted.fields(), "shapes": FOREIGN_SHAPES})
    assert not isinstance(store.find(scene.wanted), Hit)
    assert not isinstance(store.take(scene.wanted, scene.source, scene.neighbours), Taken)
    assert store.sibling(sibling) is None
    if craft not in SIGNED:
        assert not isinstance(store.lookup(scene.wanted, scene.source, scene.neighbours), Hit)
        assert store.keys("toy", [scene.wanted.architecture], scene.source, scene.neighbours) == []
    starts(scene)
    assert loaded == []
    if place is not in_the_home or craft not in SIGNED:
        assert snapshot(planted) == before  # neither deleted, nor quarantined, nor adopted
    assert {path.parent for path in store.graphs.glob("*/[!.]*/manifest.json")} <= {planted}


def sign_as_the_user(scene: Scene, entry: Path) -> None:
    resign(scene, entry)


def sign_as_a_trusted_publisher(scene: Scene, entry: Path) -> None:
    trust(scene.store, ed25519.public_key(PUBLISHERS_KEY))
    publish_as(PUBLISHERS_KEY, entry)


@pytest.mark.parametrize("sign", [sign_as_the_user, sign_as_a_trusted_publisher])
@pytest.mark.parametrize("place", PLACES)
def test_the_same_entry_is_loaded_when_a_trusted_one_signed_it(
    place: Callable[[Scene], Path], sign: Callable[[Scene, Path], None], scene: Scene, loaded: list[bytes]
) -> None:
    """What the others are refused for is who made them, not a mistake of these tests."""
    sign(scene, scene.plant(place(scene)))
    starts(scene)
    assert set(loaded) == {b"evil library"}
    store = Store(scene.store.home)
    assert isinstance(store.find(scene.wanted), Hit)
    assert store.sibling(GraphKey(**{**scene.wanted.fields(), "shapes": FOREIGN_SHAPES})) is not None


@pytest.mark.parametrize("place", PLACES)
def test_publishing_touches_no_planted_entry(place: Callable[[Scene], Path], scene: Scene, loaded: list[bytes]) -> None:
    planted = scene.plant(place(scene))
    before = snapshot(planted)
    for _ in range(2):
        own = publish(Store(scene.store.home), scene.source, scene.wanted, content=b"own")
        assert (own.folder / "graph.aoti").read_bytes() == b"own"
    starts(scene)
    assert set(loaded) == {b"own"}
    assert snapshot(planted) == before


@pytest.mark.parametrize(("moment", "expected"), [("before", []), ("after", [b"good"])])
def test_what_is_loaded_is_what_was_checked(
    moment: str, expected: list[bytes], scene: Scene, loaded: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what a file beside the checkpoint became meanwhile, through an open handle or a hard link."""
    own, really = publish(scene.store, scene.source, scene.wanted, content=b"good"), folder_source.copy_files
    shutil.rmtree(own.folder)
    beside = beside_the_checkpoint(scene) / "toy" / own.folder.name

    def copied(entry: Entry, folder: Path) -> object:
        if moment == "before":
            (beside / "graph.aoti").write_bytes(b"evil")
        wrong = really(entry, folder)
        (beside / "graph.aoti").write_bytes(b"evil")
        (beside / "manifest.json").write_bytes(scene.evil.text)
        return wrong

    monkeypatch.setattr(folder_source, "copy_files", copied)
    refused = starts(scene)
    assert set(loaded) == {*expected}
    assert refused.reason.code == ("load_failed" if expected else "wrong_signature")


def test_a_damaged_copy_takes_no_other_ones_place(scene: Scene, loaded: list[bytes]) -> None:
    """The next source has it whole."""
    own = publish(scene.store, scene.source, scene.wanted, content=b"good")
    shutil.copytree(own.folder, in_an_extra_model_folder(scene) / "toy" / own.folder.name)
    shutil.rmtree(own.folder)
    (beside_the_checkpoint(scene) / "toy" / own.folder.name / "graph.aoti").write_bytes(b"evil")
    starts(scene)
    assert set(loaded) == {b"good"}


ENTRIES = {  # by which graphs come to the home, where `Home.keep` alone makes an entry of them
    "publish": lambda scene: publish(scene.store, scene.source, scene.wanted),
    "take": lambda scene: scene.store.take(scene.wanted, scene.source, scene.neighbours),
    "import": lambda scene: import_bundle(scene.store.private, scene.store.signer, scene.models / "x.tar", "fleet"),
}


@pytest.mark.parametrize("way", ENTRIES)
def test_there_is_one_door_to_the_home(way: str, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = Store(scene.models / "publisher")
    made = publish(publisher, ModelSource(None, "666666666666"), scene.wanted)
    trust(scene.store, bake(publisher, scene.models / "x.tar", made))
    bake(publisher, scene.neighbours[0] / "fleet.graphs", made)
    asked: list[Path] = []

    def keep(home: Home, graph: SignedGraph, folder: Path) -> Entry:
        assert private_folder.check(folder.parent) is None
        asked.append(folder)
        raise OSError("closed")

    monkeypatch.setattr(Home, "keep", keep)
    with contextlib.suppress(OSError):
        ENTRIES[way](scene)
    assert len(asked) == 1 and not [*scene.store.graphs.rglob("manifest.json")]
