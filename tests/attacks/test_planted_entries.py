"""Entries that a stranger crafted, in every place one could put them: none is found, loaded or touched."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from support.models import toy
from support.store.entries import publish, snapshot, trust

from onegraph.common.shapes import Refused
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.key import GraphKey
from onegraph.graph_cache.lookup import Miss
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust import ed25519, ownership, publishers
from onegraph.graph_cache.trust.publishers import PUBLISHER_FILE, TRUSTED_FILE, TrustedPublishers
from onegraph.runtime.obtain.registry import Registry

STRANGER = 12345  # nobody's number
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
def scene(tmp_path: Path) -> Scene:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "photo.safetensors").write_bytes(b"x")
    store, source = Store(tmp_path / "home"), ModelSource(tmp_path / "models" / "photo.safetensors", "0123456789ab")
    wanted = toy.request(toy.Toy(), source).key
    with store.staging(source):  # so that there is a key
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


def in_the_users_folder(scene: Scene) -> Path:
    return scene.store.home / scene.source.digest


def in_the_users_folder_for_another_model(scene: Scene) -> Path:
    return scene.store.home / "666666666666"


PLACES = [
    beside_the_checkpoint,
    for_another_hash_of_the_checkpoint,
    beside_another_checkpoint,
    in_a_subfolder_of_the_models,
    in_an_extra_model_folder,
    in_the_users_folder,
    in_the_users_folder_for_another_model,
]


def signed_by_the_stranger(scene: Scene, entry: Path) -> None:
    pass


def unsigned(scene: Scene, entry: Path) -> None:
    (entry / "signature.json").unlink()


def naming_the_users_key(scene: Scene, entry: Path) -> None:
    """The id of the key is no secret: it stands in every entry that the user shares."""
    own = publish(scene.store, ModelSource(None, "0"), scene.wanted, content=b"own")
    signature = json.loads((own.folder / "signature.json").read_text())
    shutil.rmtree(own.folder.parents[1])
    evil = json.loads((entry / "signature.json").read_text())
    (entry / "signature.json").write_text(json.dumps({**evil, "key": signature["key"]}))


def with_a_signature_of_another_entry(scene: Scene, entry: Path) -> None:
    own = publish(scene.store, ModelSource(None, "0"), scene.wanted, content=b"own")
    shutil.copy(own.folder / "signature.json", entry / "signature.json")
    shutil.rmtree(own.folder.parents[1])


def with_an_empty_key(scene: Scene, entry: Path) -> None:
    """As if the key were no bytes at all."""
    import hmac

    from blake3 import blake3

    value = hmac.new(b"", (entry / "manifest.json").read_bytes(), "sha256").hexdigest()
    signature = {"version": 1, "kind": "hmac-sha256", "key": blake3(b"").hexdigest(length=4), "value": value}
    (entry / "signature.json").write_text(json.dumps(signature))


def with_a_stolen_signature_in_an_open_folder(scene: Scene, entry: Path) -> None:
    """A right signature does not help where others changed the files."""
    resign(scene, entry)
    entry.chmod(0o777)
    (entry / "graph.aoti").write_bytes(b"evil?library")


def resign(scene: Scene, entry: Path) -> None:
    """Give an entry the user's own signature."""
    from onegraph.graph_cache.trust.signing import Signer

    signature = Signer(scene.store.home).sign((entry / "manifest.json").read_bytes())
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


def published_in_an_open_folder(scene: Scene, entry: Path) -> None:
    trust(scene.store, ed25519.public_key(PUBLISHERS_KEY))
    publish_as(PUBLISHERS_KEY, entry)
    entry.chmod(0o777)
    (entry / "graph.aoti").write_bytes(b"evil?library")


def publish_as(private: bytes, entry: Path) -> None:
    signature = publishers.sign(private, (entry / "manifest.json").read_bytes())
    (entry / PUBLISHER_FILE).write_text(signature.model_dump_json())


CRAFTS = [
    signed_by_the_stranger,
    unsigned,
    naming_the_users_key,
    with_a_signature_of_another_entry,
    with_an_empty_key,
    with_a_stolen_signature_in_an_open_folder,
    published_by_a_stranger,
    naming_a_trusted_publisher,
    with_a_publishers_signature_of_another_entry,
    published_in_an_open_folder,
]


@pytest.mark.parametrize("craft", CRAFTS)
@pytest.mark.parametrize("place", PLACES)
def test_a_planted_entry_is_never_found(
    place: Callable[[Scene], Path], craft: Callable[[Scene, Path], None], scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = place(scene)
    planted = scene.plant(location)
    craft(scene, planted)
    before = snapshot(planted)
    other_shapes = toy.request(toy.Toy(), scene.source).key
    sibling = GraphKey(**{**other_shapes.fields(), "shapes": FOREIGN_SHAPES})
    assert isinstance(scene.store.lookup(scene.wanted, scene.source, scene.neighbours), Miss)
    assert scene.store.sibling(sibling, scene.source, scene.neighbours) is None

    def load(*args: object) -> None:
        raise AssertionError("native code was loaded")

    request = toy.request(toy.Toy(), scene.source)
    monkeypatch.setattr(type(request.backend), "load", load)
    registry = Registry(scene.store)
    assert isinstance(registry.obtain(request, "eager", lambda progress: None), Refused)
    registry.preload(request, 0)
    assert registry.graphs() == []
    assert snapshot(planted) == before  # neither deleted, nor quarantined, nor adopted


def test_the_same_entry_is_found_when_it_is_the_users(scene: Scene) -> None:
    """What the others are refused for is who made them, not a mistake of these tests."""
    for place in PLACES:
        planted = scene.plant(place(scene))
        resign(scene, planted)
        found = scene.store.lookup(scene.wanted, scene.source, scene.neighbours)
        assert not isinstance(found, Miss), place.__name__
        sibling = GraphKey(**{**scene.wanted.fields(), "shapes": FOREIGN_SHAPES})
        assert scene.store.sibling(sibling, scene.source, scene.neighbours) is not None, place.__name__
        shutil.rmtree(planted)


def test_it_is_found_when_a_trusted_one_published_it(scene: Scene) -> None:
    trust(scene.store, ed25519.public_key(PUBLISHERS_KEY))
    for place in PLACES:
        planted = scene.plant(place(scene))
        publish_as(PUBLISHERS_KEY, planted)
        found = scene.store.lookup(scene.wanted, scene.source, scene.neighbours)
        assert not isinstance(found, Miss), place.__name__
        shutil.rmtree(planted)


@pytest.mark.parametrize("place", PLACES)
def test_publishing_touches_no_planted_entry(place: Callable[[Scene], Path], scene: Scene) -> None:
    planted = scene.plant(place(scene))
    before = snapshot(planted)
    own = publish(scene.store, scene.source, scene.wanted, content=b"own")
    assert (own.folder / "graph.aoti").read_bytes() == b"own"
    found = scene.store.lookup(scene.wanted, scene.source, scene.neighbours)
    assert not isinstance(found, Miss)
    assert snapshot(planted) == before


def swap(entry: Entry) -> None:
    """What one who held the file open all the time could still do."""
    with (entry.folder / "graph.aoti").open("r+b") as file:
        file.write(b"evil")


def test_what_is_loaded_is_what_was_checked(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what the file became after its check, through an open handle or a hard link."""
    own, loaded = publish(scene.store, scene.source, scene.wanted, content=b"good"), list[bytes]()

    def load(backend: object, folder: Path, device: torch.device) -> None:
        swap(own)
        loaded.append((folder / "graph.aoti").read_bytes())
        assert folder.stat().st_mode & 0o777 == 0o700
        assert (folder / "graph.aoti").stat().st_nlink == 1
        raise OSError("enough seen")

    request = toy.request(toy.Toy(), scene.source)
    monkeypatch.setattr(type(request.backend), "load", load)
    with pytest.raises(OSError, match="enough seen"):
        Registry(scene.store).obtain(request, "eager", lambda progress: None)
    assert loaded == [b"good"]
    assert list((scene.store.home / ".loading-copies").iterdir()) == []


def test_a_change_after_the_lookup_is_seen(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    own = publish(scene.store, scene.source, scene.wanted, content=b"good")
    request = toy.request(toy.Toy(), scene.source)
    registry, really = Registry(scene.store), Store.note_death

    def swapped(store: Store, entry: Entry) -> object:
        swap(own)
        return really(store, entry)

    def load(*args: object) -> None:
        raise AssertionError("native code was loaded")

    monkeypatch.setattr(Store, "note_death", swapped)
    monkeypatch.setattr(type(request.backend), "load", load)
    refused = registry.obtain(request, "eager", lambda progress: None)
    assert isinstance(refused, Refused)
    assert "have changed" in refused.text


def test_whoever_may_write_a_folder_changes_nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a graph that this user signed: what is loaded is checked, and lies where nobody else may write."""
    own, loaded = publish(scene.store, scene.source, scene.wanted, content=b"good"), list[bytes]()
    for path in (own.folder, *own.folder.parents[:3], *own.folder.iterdir()):
        path.chmod(0o777)

    def load(backend: object, folder: Path, device: torch.device) -> None:
        swap(own)
        assert ownership.check_folder(folder) is None
        loaded.append((folder / "graph.aoti").read_bytes())
        raise OSError("enough seen")

    request = toy.request(toy.Toy(), scene.source)
    monkeypatch.setattr(type(request.backend), "load", load)
    with pytest.raises(OSError, match="enough seen"):
        Registry(scene.store).obtain(request, "eager", lambda progress: None)
    assert loaded == [b"good"]
    assert isinstance(Registry(scene.store).obtain(request, "eager", lambda progress: None), Refused)
    assert loaded == [b"good"]
