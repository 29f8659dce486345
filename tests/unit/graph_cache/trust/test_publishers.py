"""Publishers: what a trusted one signed is used, whoever owns it, and nothing of another one."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import ANY

import pytest
from support.store.entries import bake, give_away, key, publish, snapshot, trust
from support.store.users import OTHER, as_root
from support.windows.absent import needs_posix

from onegraph.common import reasons
from onegraph.graph_cache.entry import Entry, read
from onegraph.graph_cache.first_use_results import FirstUse
from onegraph.graph_cache.lookup import Broken, Hit, Miss, Unavailable
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.sources.source import Taken
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust import ed25519, trust_list
from onegraph.graph_cache.trust.publishers import PUBLISHER_FILE, TRUSTED_FILE, Publishers
from onegraph.graph_cache.trust.signing import Trusted

KEY = 64 * "a"


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


def test_nobody_is_trusted_unasked(store: Store, checkpoint: ModelSource, baked: Entry, public: str) -> None:
    assert store.signer.provenance(baked) == reasons.UnknownPublisher(public)
    assert store.lookup(key(), checkpoint) == Miss(reasons.NoGraph())
    trust(store, KEY, "somebody-else")
    assert store.signer.provenance(baked) == reasons.UnknownPublisher(public)
    assert reasons.UnknownPublisher(public).text == (
        f"the cached graph was signed by a publisher who is not trusted here (key {public[:16]}...)"
    )


def test_a_trusted_publishers_entry_is_found(store: Store, checkpoint: ModelSource, baked: Entry, public: str) -> None:
    trust(store, public)
    assert store.lookup(key(), checkpoint) == Hit(baked, ANY)
    assert store.signer.provenance(baked) == Trusted("fleet")
    trust_list.remove(Publishers(store.home), "fleet")
    assert store.lookup(key(), checkpoint) == Miss(reasons.NoGraph())


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
    assert store.signer.provenance(baked) == reasons.Unsigned()


@pytest.mark.parametrize("wrong", [PUBLISHER_FILE, "manifest.json"])
def test_a_wrong_signature_is_wrong(
    wrong: str, store: Store, checkpoint: ModelSource, baked: Entry, public: str
) -> None:
    trust(store, public)
    signature = json.loads((baked.folder / PUBLISHER_FILE).read_text())
    changed = {
        PUBLISHER_FILE: json.dumps({**signature, "value": 128 * "0"}),
        "manifest.json": f"{baked.text.decode()}\n",
    }
    (baked.folder / wrong).write_text(changed[wrong])
    found = read(baked.folder)
    assert isinstance(found, Entry) and store.signer.provenance(found) == reasons.WrongPublisherSignature("fleet")
    assert store.lookup(key(), checkpoint) == Miss(reasons.NoGraph())


def test_the_own_signature_needs_no_publisher(store: Store, checkpoint: ModelSource, baked: Entry) -> None:
    entry = publish(store, checkpoint)
    (entry.folder / PUBLISHER_FILE).write_text("{")
    assert store.find(key()) == Hit(entry)
    assert store.signer.provenance(entry) == Trusted()


# Taken ------------------------------------------------------------------------------------------------------------


def test_a_baked_graph_is_copied_with_its_publishers_signature(
    store: Store, checkpoint: ModelSource, baked: Entry, public: str
) -> None:
    """Not this user's: it is used as long as the publisher is trusted. What others measured is no evidence."""
    store.remember(baked, FirstUse(checked={"n": 0.0}))
    trust(store, public)
    before = snapshot(baked.folder)
    taken = store.take(key(), checkpoint)
    assert isinstance(taken, Taken)
    own = taken.entry
    assert own.folder.is_relative_to(store.graphs)
    assert {path.name for path in own.folder.iterdir()} == {
        "constants.json", "graph.aoti", "manifest.json", PUBLISHER_FILE,
    }  # fmt: skip
    assert (own.folder / PUBLISHER_FILE).read_bytes() == (baked.folder / PUBLISHER_FILE).read_bytes()
    assert store.find(key()) == Hit(own) and store.first_use(own) == FirstUse()
    assert store.sibling(key(shapes={})) == own
    assert snapshot(baked.folder) == before
    trust_list.remove(Publishers(store.home), "fleet")
    assert store.find(key()) == Miss(reasons.UnknownPublisher(public))
    made = publish(store, checkpoint)  # beside it
    assert store.find(key()) == Hit(made) and own.folder.exists()


@pytest.mark.parametrize(
    "spoil", [lambda path: path.chmod(0o777), pytest.param(lambda path: give_away(path, OTHER), marks=as_root)]
)
def test_whoever_owns_or_may_write_it(
    spoil: Callable[[Path], object], store: Store, checkpoint: ModelSource, baked: Entry, public: str
) -> None:
    trust(store, public)
    spoil(baked.folder.parents[2])
    assert store.lookup(key(), checkpoint) == Hit(baked, ANY)
    (baked.folder / "graph.aoti").write_bytes(b"evil!")  # by whoever may write there
    assert store.take(key(), checkpoint) == reasons.DigestDiffers("graph.aoti")
    (baked.folder / "graph.aoti").unlink()
    (baked.folder / "graph.aoti").symlink_to(store.home / TRUSTED_FILE)  # of this user's, for all to read
    assert store.take(key(), checkpoint) == reasons.NotARegularFile("graph.aoti")
    assert [*store.entries()] == []


def test_a_baked_store_as_the_graph_folder(
    baker: Store, checkpoint: ModelSource, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a read-only mount, and with a home among the temporary files; or in the folder itself."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))  # no key can be made, and none is needed
    fleet = Store(tmp_path / "fleet")
    trust(fleet, bake(baker, tmp_path / "fleet", publish(baker, ModelSource(None, "666666666666"))))
    before = snapshot(tmp_path / "fleet")
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *args, **options: False)
        worker = Store(tmp_path / "fleet")
    taken = worker.take(key(), checkpoint)
    assert isinstance(taken, Taken) and taken.entry.folder.is_relative_to(temporary)
    assert worker.find(key()) == Hit(taken.entry)
    assert snapshot(tmp_path / "fleet") == before
    itself = fleet.take(key(), checkpoint)
    assert isinstance(itself, Taken) and itself.entry.folder.is_relative_to(tmp_path / "fleet" / "graphs")


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


MODES = needs_posix("Windows' files have no modes")


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        pytest.param(lambda path: path.chmod(0o620), "open", marks=MODES),
        pytest.param(lambda path: path.chmod(0o602), "open", marks=MODES),
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
    assert store.signer.provenance(baked) == refused
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
    found = store.signer.provenance(baked)
    assert isinstance(found, reasons.UnreadableNow)
    assert found.file == TRUSTED_FILE
    assert not isinstance(store.lookup(key(), checkpoint), Hit | Broken | Unavailable)


# The package ----------------------------------------------------------------------------------------------------


def test_without_the_package_the_reason_says_so(
    store: Store, checkpoint: ModelSource, baked: Entry, public: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)
    assert store.signer.provenance(baked) == reasons.UnknownPublisher(public)  # found without it
    trust(store, public)
    assert store.signer.provenance(baked) == reasons.NeedsCryptography()
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
    assert store.signer.provenance(own) == Trusted()
    assert store.signer.provenance(baked) == reasons.UnknownPublisher(public)
    trust(store, public)
    with pytest.raises(AssertionError, match="imported"):
        store.signer.provenance(baked)


# Weak keys --------------------------------------------------------------------------------------------------------

PRIME = 2**255 - 19
D = -121665 * pow(121666, PRIME - 2, PRIME) % PRIME
Y8 = bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05")
WEAK = [
    number.to_bytes(32, "little").hex()
    for y in (0, 1, PRIME - 1, PRIME, PRIME + 1, int.from_bytes(Y8, "little"), PRIME - int.from_bytes(Y8, "little"))
    for number in (y, y + 2**255)
]  # fmt: skip


def doubled(x: int, y: int) -> tuple[int, int]:
    product = D * x * x * y * y % PRIME
    return (
        2 * x * y * pow(1 + product, PRIME - 2, PRIME) % PRIME,
        (y * y + x * x) * pow(1 - product, PRIME - 2, PRIME) % PRIME,
    )


@pytest.mark.parametrize("public", WEAK)
def test_points_of_small_order_are_no_keys(public: str, store: Store) -> None:
    """Anybody can make signatures for them."""
    y = int.from_bytes(bytes.fromhex(public), "little") % 2**255 % PRIME
    square = (y * y - 1) * pow(D * y * y + 1, PRIME - 2, PRIME) % PRIME
    x = pow(square, (PRIME + 3) // 8, PRIME)
    x = x if (x * x - square) % PRIME == 0 else x * pow(2, (PRIME - 1) // 4, PRIME) % PRIME
    assert (x * x - square) % PRIME == 0
    point = (x, y)
    for _ in range(3):
        point = doubled(*point)
    assert point == (0, 1)  # what these tests call weak is
    assert trust_list.add(Publishers(store.home), "eve", public) == reasons.WeakPublisherKey()
    forged = 31 * "00" + "00"
    for r in WEAK:
        assert not any(ed25519.is_signed(public, r + forged, bytes([n])) for n in range(8))


def test_other_keys_are_keys() -> None:
    for number in range(16):
        private = bytes([number]) * 32
        public = ed25519.public_key(private)
        assert not ed25519.is_weak(public)
        assert ed25519.is_signed(public, ed25519.sign(private, b"message"), b"message")
