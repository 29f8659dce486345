"""Publishers: what a trusted one signed is used, whoever owns it, and nothing of another one."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from support.store.entries import bake, die_while_loading, give_away, key, publish, quarantine, snapshot, trust

from onegraph.common import reasons
from onegraph.graph_cache.entry import Entry, read
from onegraph.graph_cache.first_use_results import FirstUse
from onegraph.graph_cache.lookup import Broken, Hit, Miss, Unavailable
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust import ed25519, ownership, trust_list
from onegraph.graph_cache.trust.publishers import PUBLISHER_FILE, TRUSTED_FILE, Publishers
from onegraph.graph_cache.trust.signing import SIGNATURE_FILE, Trusted

OTHER = 12345  # nobody's number
KEY = 64 * "a"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture
def baker(tmp_path: Path) -> Store:
    """The installation that a publisher compiles with."""
    return Store(tmp_path / "baker")


@pytest.fixture
def public(baker: Store, models: Path) -> str:
    """A baked store beside the checkpoints, with one graph of a model that nobody here has; its publisher's key."""
    return bake(baker, models / "fleet.graphs", publish(baker, ModelSource(None, "666666666666"), content=b"baked"))


@pytest.fixture
def baked(models: Path, public: str) -> Entry:
    (folder,) = (path.parent for path in (models / "fleet.graphs").glob("*/*/*/manifest.json"))
    found = read(folder)
    assert isinstance(found, Entry)
    return found


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a read-only file system: nobody can write, root included."""
    monkeypatch.setattr(os, "access", lambda *args, **options: False)


def test_a_baked_entry_names_its_publisher(baked: Entry, public: str) -> None:
    signature = json.loads((baked.folder / PUBLISHER_FILE).read_text())
    assert (signature["version"], signature["kind"], signature["key"]) == (1, "ed25519", public)
    assert len(signature["value"]) == 128
    assert sorted(path.name for path in baked.folder.iterdir()) == [
        "constants.json", "graph.aoti", "manifest.json", PUBLISHER_FILE,
    ]  # fmt: skip


def test_nobody_is_trusted_unasked(store: Store, checkpoint: ModelSource, baked: Entry, public: str) -> None:
    assert store.provenance(baked) == reasons.UnknownPublisher(public)
    assert store.lookup(key(), checkpoint) == Miss(reasons.NoGraph())
    trust(store, KEY, "somebody-else")
    assert store.provenance(baked) == reasons.UnknownPublisher(public)
    assert reasons.UnknownPublisher(public).text == (
        f"the cached graph was signed by a publisher who is not trusted here (key {public[:16]}...)"
    )


def test_a_trusted_publishers_entry_is_found(store: Store, checkpoint: ModelSource, baked: Entry, public: str) -> None:
    trust(store, public)
    assert store.lookup(key(), checkpoint) == Hit(baked, foreign=True)
    assert store.provenance(baked) == Trusted("fleet", mine=True)
    trust_list.remove(Publishers(store.home), "fleet")
    assert store.lookup(key(), checkpoint) == Miss(reasons.NoGraph())


@as_root
def test_whoever_owns_it(store: Store, checkpoint: ModelSource, baked: Entry, public: str) -> None:
    give_away(baked.folder.parents[2], OTHER)
    trust(store, public)
    assert store.provenance(baked) == Trusted("fleet", mine=False)
    assert store.lookup(key(), checkpoint) == Hit(baked, foreign=True)
    with store.private(baked) as copy:
        assert isinstance(copy, Path)
        assert (copy / "graph.aoti").read_bytes() == b"baked"


@pytest.mark.parametrize("part", ["graph.aoti", "publisher.json", ".", "..", "../..", "../../.."])
def test_where_all_may_write(part: str, store: Store, checkpoint: ModelSource, baked: Entry, public: str) -> None:
    trust(store, public)
    path = (baked.folder / part).resolve()
    path.chmod(path.stat().st_mode | 0o002)
    assert store.provenance(baked) == Trusted("fleet", mine=False)
    assert store.lookup(key(), checkpoint) == Hit(baked, foreign=True)
    (baked.folder / "graph.aoti").write_bytes(b"evil!")  # by whoever may write there
    assert isinstance(store.lookup(key(), checkpoint), Miss)
    with store.private(baked) as copy:
        assert copy == reasons.DigestDiffers("graph.aoti")


def test_a_changed_manifest_is_not_trusted(store: Store, checkpoint: ModelSource, baked: Entry, public: str) -> None:
    trust(store, public)
    (baked.folder / "manifest.json").write_bytes(baked.text + b"\n")
    changed = read(baked.folder)
    assert isinstance(changed, Entry)
    assert store.provenance(changed) == reasons.WrongPublisherSignature("fleet")
    assert store.lookup(key(), checkpoint) == Miss(reasons.NoGraph())


def test_a_signature_of_another_entry_is_wrong(store: Store, baker: Store, baked: Entry, models: Path) -> None:
    other = publish(baker, ModelSource(None, "777777777777"), key(dtype="float16"), content=b"other")
    trust(store, bake(baker, models / "fleet.graphs", other))
    (second,) = (path.parent for path in (models / "fleet.graphs").glob("777777777777/*/*/manifest.json"))
    (baked.folder / PUBLISHER_FILE).write_bytes((second / PUBLISHER_FILE).read_bytes())
    assert store.provenance(baked) == reasons.WrongPublisherSignature("fleet")


@pytest.mark.parametrize("signature", ["", "{", "[]", '{"version": 1}', 9999 * " ", "folder", "link", "pipe"])
def test_a_crafted_signature_is_none(signature: str, store: Store, baked: Entry, public: str, tmp_path: Path) -> None:
    trust(store, public)
    file = baked.folder / PUBLISHER_FILE
    right = file.read_bytes()
    file.unlink()
    if signature == "folder":
        file.mkdir()
    elif signature == "link":
        (tmp_path / "right").write_bytes(right)
        file.symlink_to(tmp_path / "right")
    elif signature == "pipe":
        os.mkfifo(file)
    else:
        file.write_text(signature)
    assert store.provenance(baked) == reasons.Unsigned()


def test_a_wrong_signature_is_wrong(store: Store, baked: Entry, public: str) -> None:
    trust(store, public)
    signature = json.loads((baked.folder / PUBLISHER_FILE).read_text())
    (baked.folder / PUBLISHER_FILE).write_text(json.dumps({**signature, "value": 128 * "0"}))
    assert store.provenance(baked) == reasons.WrongPublisherSignature("fleet")


def test_the_own_signature_needs_no_publisher(store: Store, checkpoint: ModelSource, baked: Entry) -> None:
    entry = publish(store, checkpoint)
    (entry.folder / PUBLISHER_FILE).write_text("{")
    assert store.lookup(key(), checkpoint) == Hit(entry)
    assert store.provenance(entry) == Trusted()


# Used where it lies, or adopted ---------------------------------------------------------------------------------


def test_a_baked_graph_becomes_the_models(
    store: Store, checkpoint: ModelSource, baked: Entry, public: str, read_only: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a copy with the publisher's signature, not this user's: it is used as long as the publisher is trusted."""
    trust(store, public)
    found = store.lookup(key(), checkpoint)
    assert found == Hit(baked, foreign=True)
    before = snapshot(baked.folder)
    assert isinstance(found, Hit)
    own = store.share_with_model(found, key(), checkpoint)
    monkeypatch.undo()
    assert own.folder != baked.folder
    assert not (own.folder / "graph.aoti").samefile(baked.folder / "graph.aoti")
    assert (own.folder / PUBLISHER_FILE).read_bytes() == (baked.folder / PUBLISHER_FILE).read_bytes()
    assert not (own.folder / SIGNATURE_FILE).exists()
    assert ownership.check(own.folder) is None
    assert store.lookup(key(), checkpoint) == Hit(own)
    assert snapshot(baked.folder) == before
    trust_list.remove(Publishers(store.home), "fleet")
    assert store.lookup(key(), checkpoint) == Miss(reasons.UnknownPublisher(public))


@as_root
def test_what_others_measured_is_no_evidence(store: Store, checkpoint: ModelSource, baked: Entry, public: str) -> None:
    store.remember(baked, FirstUse(checked={"n": 0.0}))
    give_away(baked.folder.parents[2], OTHER)
    trust(store, public)
    assert store.first_use(baked) == FirstUse()
    assert store.first_use(store.share_with_model(Hit(baked, foreign=True), key(), checkpoint)) == FirstUse()


@as_root
def test_a_link_in_others_files_is_not_followed(
    store: Store, checkpoint: ModelSource, baked: Entry, public: str, tmp_path: Path
) -> None:
    """Who owns the baked folder could have secrets of this user copied to where all may read them."""
    trust(store, public)
    give_away(baked.folder.parents[2], OTHER)
    (tmp_path / "secret").write_bytes(b"secre")
    (baked.folder / "graph.aoti").unlink()
    (baked.folder / "graph.aoti").symlink_to(tmp_path / "secret")
    assert store.share_with_model(Hit(baked, foreign=True), key(), checkpoint) == baked
    assert list((tmp_path / "home").rglob("graph.aoti")) == list((tmp_path / "models").rglob("photo.graphs")) == []


@as_root
def test_others_damaged_graph_stays(store: Store, checkpoint: ModelSource, baker: Store, public: str) -> None:
    """In this model's own folder too: this user's graphs go beside it, and it is never moved."""
    trust(store, public)
    assert checkpoint.path is not None
    bake(baker, checkpoint.path.with_name("photo.graphs"), *baker.entries())
    graphs = checkpoint.path.with_name("photo.graphs")
    (graphs / "666666666666").rename(graphs / checkpoint.digest)
    (folder,) = (path.parent for path in graphs.glob("*/*/*/manifest.json"))
    give_away(folder, OTHER)
    (folder / "graph.aoti").write_bytes(b"b4ked")
    before = snapshot(folder)
    found = store.lookup(key(), checkpoint)
    assert isinstance(found, Hit)
    assert "fleet.graphs" in found.entry.folder.parts
    own = publish(store, checkpoint, content=b"own")
    assert store.lookup(key(), checkpoint) == Hit(own)
    quarantine(store, folder)
    assert snapshot(folder) == before


@as_root
def test_others_graph_that_ends_processes(store: Store, checkpoint: ModelSource, baked: Entry, public: str) -> None:
    trust(store, public)
    graphs = baked.folder.parents[2]
    graphs.rename(graphs.with_name("photo.graphs"))
    (graphs.with_name("photo.graphs") / "666666666666").rename(graphs.with_name("photo.graphs") / checkpoint.digest)
    (folder,) = (path.parent for path in graphs.with_name("photo.graphs").glob("*/*/*/manifest.json"))
    give_away(folder, OTHER)
    entry = read(folder)
    assert isinstance(entry, Entry)
    assert store.lookup(key(), checkpoint) == Hit(entry, foreign=True)
    die_while_loading(store, entry)
    die_while_loading(store, entry)
    assert store.lookup(key(), checkpoint) == Miss(reasons.DiedWhileLoading())


def test_a_quarantined_copy_is_not_adopted_again(
    store: Store, checkpoint: ModelSource, baked: Entry, public: str
) -> None:
    trust(store, public)
    own = store.share_with_model(Hit(baked, foreign=True), key(), checkpoint)
    quarantine(store, own.folder)
    assert isinstance(store.lookup(key(), checkpoint), Miss)


def test_a_damaged_copy_is_adopted_anew(store: Store, checkpoint: ModelSource, baked: Entry, public: str) -> None:
    """Damage of the copy tells nothing against the baked graph."""
    trust(store, public)
    own = store.share_with_model(Hit(baked, foreign=True), key(), checkpoint)
    (own.folder / "graph.aoti").unlink()  # perhaps a link
    (own.folder / "graph.aoti").write_bytes(b"b4ked")
    assert store.lookup(key(), checkpoint) == Broken(own.folder, reasons.DigestDiffers("graph.aoti"))
    quarantine(store, own.folder)
    assert store.lookup(key(), checkpoint) == Hit(baked, foreign=True)


def test_a_sibling_is_only_rebuilt_from_own_folders(
    store: Store, checkpoint: ModelSource, baked: Entry, public: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust(store, public)
    assert store.sibling(key(shapes={}), checkpoint) == baked
    monkeypatch.setattr(os, "access", lambda *args, **options: False)
    assert store.sibling(key(shapes={}), checkpoint) is None


# The list -------------------------------------------------------------------------------------------------------


def test_the_list_is_the_users_alone(store: Store) -> None:
    trust(store, KEY)
    found = (store.home / TRUSTED_FILE).stat()
    assert (found.st_mode & 0o777, found.st_uid) == (0o600, os.geteuid())
    trust(store, KEY)  # again is no error
    trust(store, 64 * "B", "other")
    assert Publishers(store.home).trusted() == {"fleet": KEY, "other": 64 * "b"}
    assert trust_list.remove(Publishers(store.home), "fleet") is True
    assert trust_list.remove(Publishers(store.home), "fleet") is False
    assert Publishers(store.home).trusted() == {"other": 64 * "b"}
    assert [path.name for path in store.home.iterdir()] == [TRUSTED_FILE]


@pytest.mark.parametrize(
    ("name", "public", "reason"),
    [
        ("", KEY, reasons.BadPublisherName("")),
        ("../x", KEY, reasons.BadPublisherName("../x")),
        (65 * "x", KEY, reasons.BadPublisherName(65 * "x")),
        ("x\n", KEY, reasons.BadPublisherName("x\n")),
        ("x", KEY[1:], reasons.BadPublisherKey()),
        ("x", KEY + "\n", reasons.BadPublisherKey()),
        ("x", 64 * "g", reasons.BadPublisherKey()),
        ("fleet", 64 * "b", reasons.OtherPublisherKey("fleet")),
    ],
)
def test_what_is_no_publisher(name: str, public: str, reason: reasons.Reason, store: Store) -> None:
    trust(store, KEY)
    assert trust_list.add(Publishers(store.home), name, public) == reason
    assert Publishers(store.home).trusted() == {"fleet": KEY}


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda path: path.chmod(0o620), "open"),
        (lambda path: path.chmod(0o602), "open"),
        (lambda path: path.write_text("{"), "damaged"),
        (lambda path: path.write_text('{"version": 1, "publishers": {"x": "y"}}'), "damaged"),
        (lambda path: path.write_text(json.dumps({"version": 1, "publishers": {"../x": KEY}})), "damaged"),
        (lambda path: path.rename(path.with_name("x")).rename(path) and os.truncate(path, 2 << 20), "damaged"),
        (lambda path: (path.rename(path.with_name("x")), path.symlink_to(path.with_name("x"))), "damaged"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "damaged"),
        pytest.param(lambda path: os.chown(path, OTHER, OTHER), "foreign", marks=as_root),
    ],
)
def test_a_list_that_is_refused(
    spoil: object, fault: str, store: Store, checkpoint: ModelSource, baked: Entry, public: str
) -> None:
    trust(store, public)
    spoil(store.home / TRUSTED_FILE)  # type: ignore[operator]
    refused = Publishers(store.home).trusted()
    assert isinstance(refused, reasons.PublisherListRefused)
    assert refused.fault == fault
    assert store.provenance(baked) == refused
    assert store.lookup(key(), checkpoint) == Miss(reasons.NoGraph())
    assert trust_list.add(Publishers(store.home), "x", KEY) == refused
    assert trust_list.remove(Publishers(store.home), "x") == refused
    assert refused.text.startswith("trusted-publishers.json in the graph folder is refused: ")


def test_a_list_that_cannot_be_read_now(
    store: Store, checkpoint: ModelSource, baked: Entry, public: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust(store, public)
    really = os.open

    def fails(path: object, *args: object, **options: object) -> int:
        if str(path).endswith(TRUSTED_FILE):
            raise PermissionError(13, "Permission denied", str(path))
        return really(path, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", fails)
    found = store.provenance(baked)
    assert isinstance(found, reasons.UnreadableNow)
    assert found.file == TRUSTED_FILE
    assert not isinstance(store.lookup(key(), checkpoint), Hit | Broken | Unavailable)


# The package ----------------------------------------------------------------------------------------------------


def test_without_the_package_the_reason_says_so(
    store: Store, checkpoint: ModelSource, baked: Entry, public: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)
    assert store.provenance(baked) == reasons.UnknownPublisher(public)  # found without it
    trust(store, public)
    assert store.provenance(baked) == reasons.NeedsCryptography()
    assert store.lookup(key(), checkpoint) == Miss(reasons.NoGraph())
    with pytest.raises(ed25519.NoCryptographyError):
        ed25519.public_key(32 * b"x")


def test_the_package_is_imported_for_trusted_keys_only(
    store: Store, checkpoint: ModelSource, baked: Entry, public: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = publish(store, checkpoint)
    trust(store, KEY, "another")

    def fails() -> None:
        raise AssertionError("imported")

    monkeypatch.setattr(ed25519, "require", fails)
    assert store.provenance(own) == Trusted()
    assert store.provenance(baked) == reasons.UnknownPublisher(public)
    trust(store, public)
    with pytest.raises(AssertionError, match="imported"):
        store.provenance(baked)
