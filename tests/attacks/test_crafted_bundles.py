"""Crafted bundles: none is imported, none is loaded, and none writes anything anywhere."""

from __future__ import annotations

import io
import json
import os
import socket
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.store.bundles import Contents, contents, graphs, member, write_folder, write_tar
from support.store.entries import bake, key, publish, snapshot, trust

from onegraph.common import reasons
from onegraph.graph_cache.lookup import Miss
from onegraph.graph_cache.manifest import MOST_BYTES
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.sources.bundle import MOST_LIST_BYTES, import_bundle
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust import key_file, publishers


@dataclass(frozen=True)
class Scene:
    """A user who trusts a publisher, and a bundle of that publisher's.

    Attributes:
        files: of the bundle.
        place: the folder of its graph.
        outside: a folder of the user's that no import has to do with.
    """

    store: Store
    publisher: Store
    root: Path
    files: Contents
    place: str
    outside: Path

    def file(self, name: str) -> str:
        return f"{self.place}/{name}"

    @property
    def graph(self) -> str:
        return self.place.rpartition("/")[2]

    def changed(self, **files: bytes | None) -> Contents:
        """The bundle's files with others in the graph's folder: `graph_aoti` for `graph.aoti`; None for none."""
        new = {self.file(name.replace("_", ".")): data for name, data in files.items()}
        return {name: data for name, data in {**self.files, **new}.items() if data is not None}

    def signed(self, **changes: Any) -> Contents:
        """The bundle with another manifest, signed by the publisher."""
        manifest = {**json.loads(self.files[self.file("manifest.json")]), **changes}
        data = json.dumps(manifest).encode()
        signature = publishers.sign(key_file.obtain(self.publisher.home / "publisher.key"), data)
        return self.changed(manifest_json=data, publisher_json=signature.model_dump_json().encode())

    def take(self, bundle: Path) -> object:
        return import_bundle(self.store.private, self.store.signer, bundle, "fleet")


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    store, publisher = Store(tmp_path / "home"), Store(tmp_path / "publisher")
    public = bake(publisher, tmp_path / "made.tar", publish(publisher, ModelSource(None, "666666666666")))
    with store.staging():  # so that there is a key, and the folders of a home
        pass
    trust(store, public)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("untouched")
    files = contents(tmp_path / "made.tar")
    return Scene(store, publisher, tmp_path, files, graphs(files)[0], outside)


def contents_of(root: Path) -> dict[str, tuple[int, bytes]]:
    """Every file and folder below: its inode and its bytes."""
    return {path: (inode, data) for path, (inode, _, data) in snapshot(root).items()}


def refused(scene: Scene, bundle: Path) -> reasons.Reason:
    """Import a bundle, which is refused with one sentence and leaves nothing behind."""
    before = contents_of(scene.root)
    found = scene.take(bundle)
    assert isinstance(found, reasons.Reason)
    assert contents_of(scene.root) == before
    sentence = found.text
    assert "\n" not in sentence and ". " not in sentence
    assert scene.store.lookup(key(), ModelSource(None, "0123456789ab")) == Miss(reasons.NoGraph())
    return found


def test_the_bundle_itself_is_imported(scene: Scene) -> None:
    """What the others are refused for is what was changed in them."""
    assert isinstance(scene.take(write_tar(scene.root / "x.tar", scene.files)), list)


# Names and types of a tar file's members ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "../outside/file",
        "/tmp/onegraph-was-here",
        "666666666666/unet/../../../outside/file",
        "666666666666/unet/x/../graph.aoti",
        "./bundle.json",
        "666666666666//unet/graph.aoti",
        "666666666666/unet/x/.hidden",
        "666666666666/unet/x/y/z",
        "graph.aoti",
        "compiler-cache/unet/x/graph.aoti",
        "signing.key",
        "C:/x/y/z",
        "666666666666\\unet\\x\\y",
        "666666666666/unet/x/new\nline",
        "666666666666/unet/x/" + 80 * "y" + "/z",
    ],
)
def test_a_name_that_leads_elsewhere(name: str, scene: Scene) -> None:
    bundle = write_tar(scene.root / "x.tar", scene.files, [member(name, b"evil")])
    assert refused(scene, bundle) == reasons.BadMemberName(name[:100])


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (tarfile.SYMTYPE, "link"),
        (tarfile.LNKTYPE, "link"),
        (tarfile.CHRTYPE, "device"),
        (tarfile.BLKTYPE, "device"),
        (tarfile.FIFOTYPE, "device"),
        (tarfile.DIRTYPE, "other"),
        (tarfile.CONTTYPE, "other"),
        (tarfile.AREGTYPE, "other"),
        (tarfile.GNUTYPE_SPARSE, "other"),
        (b"V", "other"),
    ],
)
@pytest.mark.parametrize("name", ["graph.aoti", "manifest.json", "more"])
def test_only_regular_files(name: str, kind: bytes, found: str, scene: Scene) -> None:
    files = {other: data for other, data in scene.files.items() if other != scene.file(name)}
    odd = member(scene.file(name), type=kind, linkname=str(scene.outside / "file"))
    bundle = write_tar(scene.root / "x.tar", files, [odd])
    assert refused(scene, bundle) == reasons.ForbiddenMember(scene.file(name)[:100], found)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_no_extended_headers(form: int, scene: Scene) -> None:
    """They can give a file another name, size or type than its header tells."""
    long = member(f"666666666666/unet/{150 * 'x'}/{90 * 'y'}")
    assert isinstance(
        refused(scene, write_tar(scene.root / "x.tar", scene.files, [long], form)), reasons.ForbiddenMember
    )


def test_no_sparse_file_of_an_extended_header(scene: Scene) -> None:
    odd = tarfile.TarInfo(scene.file("more"))
    odd.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 50)}
    bundle = write_tar(scene.root / "x.tar", scene.files, [(odd, b"")], tarfile.PAX_FORMAT)
    found = refused(scene, bundle)
    assert isinstance(found, reasons.ForbiddenMember) and found.found == "extension"


@pytest.mark.parametrize("name", ["graph.aoti", "manifest.json", "publisher.json"])
@pytest.mark.parametrize("change", [str, str.upper])
def test_no_name_twice(name: str, change: Callable[[str], str], scene: Scene) -> None:
    """Nor two that are one on some file systems."""
    twice = f"{scene.place}/{change(name)}"
    bundle = write_tar(scene.root / "x.tar", scene.files, [member(twice, b"evil")])
    assert refused(scene, bundle) == reasons.DuplicateMember(scene.file(name))


@pytest.mark.parametrize("name", ["plan.json", "signature.json", "outcome.json", "part0.aoti"])
def test_nothing_that_no_manifest_names(name: str, scene: Scene) -> None:
    """Some would be read where they are there, a signature would be replaced, a first-use result believed."""
    bundle = write_tar(scene.root / "x.tar", scene.files, [member(scene.file(name), b"evil")])
    assert refused(scene, bundle) == reasons.UnlistedMember(scene.file(name))


# A tar file as such ------------------------------------------------------------------------------------------------


def test_a_file_that_ends_early(scene: Scene) -> None:
    whole = write_tar(scene.root / "x.tar", scene.files).read_bytes()
    seen = set()
    marked = len(whole.rstrip(b"\0")) // 512 * 512 + 512
    for end in [*range(512, marked + 1024, 512), 600, 1100]:  # the last one has half of what marks the end
        (scene.root / "x.tar").write_bytes(whole[:end])
        found = refused(scene, scene.root / "x.tar")
        seen.add(type(found))
    assert seen == {reasons.BundleEndsEarly}


@pytest.mark.parametrize(
    "data", [b"", b"x", 10240 * b"\0", 10240 * b"x", b"PK\3\4" + 600 * b"x", b"\x1f\x8b" + 999 * b"x"]
)
def test_a_file_that_is_no_bundle(data: bytes, scene: Scene) -> None:
    (scene.root / "x.tar").write_bytes(data)
    assert isinstance(refused(scene, scene.root / "x.tar"), reasons.NotABundle)


@pytest.mark.parametrize("size", [-1, -(1 << 40), 1 << 33, 1 << 62])
def test_a_size_beyond_the_file(size: int, scene: Scene) -> None:
    """In a header of another form: a plain one holds no such number."""
    info = tarfile.TarInfo(scene.file("more"))
    info.size = size
    header = info.tobuf(tarfile.GNU_FORMAT)
    whole = write_tar(scene.root / "x.tar", scene.files).read_bytes()
    (scene.root / "x.tar").write_bytes(header + whole)
    assert refused(scene, scene.root / "x.tar") == reasons.BundleEndsEarly()


def test_a_header_with_a_wrong_checksum(scene: Scene) -> None:
    whole = bytearray(write_tar(scene.root / "x.tar", scene.files).read_bytes())
    whole[1024] ^= 1
    (scene.root / "x.tar").write_bytes(whole)
    assert refused(scene, scene.root / "x.tar") == reasons.NotABundle("a broken header")


@pytest.mark.parametrize("what", ["pipe", "device", "socket"])
def test_what_is_neither_file_nor_folder(what: str, scene: Scene) -> None:
    path = Path("/dev/zero") if what == "device" else scene.root / "x.tar"
    if what == "pipe":
        os.mkfifo(path)
    elif what == "socket":
        socket.socket(socket.AF_UNIX).bind(str(path))
    assert refused(scene, path) == reasons.NotABundle("neither a file nor a folder")


def test_a_link_to_a_bundle_is_not_followed(scene: Scene) -> None:
    write_tar(scene.root / "real.tar", scene.files)
    (scene.root / "x.tar").symlink_to(scene.root / "real.tar")
    assert isinstance(refused(scene, scene.root / "x.tar"), reasons.NotABundle)


# Contents that do not fit, in a file and in a folder ---------------------------------------------------------------

Craft = Callable[[Scene], Contents]


def in_graph(reason: reasons.Reason) -> Callable[[Scene], reasons.Reason]:
    return lambda scene: reasons.BundledGraph(scene.graph, reason)


def of_another(scene: Scene) -> Contents:
    """Signed by a publisher who is not the one that was named."""
    manifest = scene.files[scene.file("manifest.json")]
    return scene.changed(publisher_json=publishers.sign(32 * b"x", manifest).model_dump_json().encode())


def naming_the_publisher(scene: Scene) -> Contents:
    """With the publisher's public key, which is no secret, and a signature by another."""
    signature = json.loads(scene.files[scene.file("publisher.json")])
    mine = publishers.sign(32 * b"x", scene.files[scene.file("manifest.json")])
    return scene.changed(publisher_json=json.dumps({**signature, "value": mine.value}).encode())


def with_a_plain_signature(scene: Scene) -> Contents:
    """Signed with the publisher's key, for another purpose than graphs."""
    from onegraph.graph_cache.trust import ed25519

    private, manifest = key_file.obtain(scene.publisher.home / "publisher.key"), b"{}"
    signature = json.loads(scene.files[scene.file("publisher.json")])
    value = ed25519.sign(private, manifest)
    return scene.changed(publisher_json=json.dumps({**signature, "value": value}).encode(), manifest_json=manifest)


def with_an_empty_list(scene: Scene) -> Contents:
    return {**scene.files, "bundle.json": b'{"version": 1, "graphs": []}'}


def without_a_list(scene: Scene) -> Contents:
    return {name: data for name, data in scene.files.items() if name != "bundle.json"}


def listing(*graphs: str) -> Craft:
    return lambda scene: {**scene.files, "bundle.json": json.dumps({"version": 1, "graphs": graphs}).encode()}


def listing_it_twice(scene: Scene) -> Contents:
    return listing(scene.place, scene.place)(scene)


def listing_one_more(scene: Scene) -> Contents:
    return listing(scene.place, "666666666666/unet/more")(scene)


def with_files(**files: dict[str, Any]) -> Craft:
    return lambda scene: scene.signed(files={name.replace("_", "."): value for name, value in files.items()})


def with_key(**changes: object) -> Craft:
    def craft(scene: Scene) -> Contents:
        manifest = json.loads(scene.files[scene.file("manifest.json")])
        return scene.signed(key={**manifest["key"], **changes})

    return craft


def larger_than_it_is(scene: Scene) -> Contents:
    """A file whose signed size fills the disk; nothing is written."""
    manifest = json.loads(scene.files[scene.file("manifest.json")])
    return scene.signed(files={**manifest["files"], "graph.aoti": {"bytes": 1 << 60, "blake3": 64 * "0"}})


DIGEST = {"bytes": 4, "blake3": 64 * "0"}
OUT_OF_PLACE = in_graph(reasons.UnreadableManifest("its key names no folder"))
CRAFTS: list[tuple[str, Craft, Callable[[Scene], reasons.Reason] | type[reasons.Reason]]] = [
    ("changed file", lambda s: s.changed(graph_aoti=b"c0de"), in_graph(reasons.DigestDiffers("graph.aoti"))),
    ("longer file", lambda s: s.changed(graph_aoti=b"codes"), in_graph(reasons.WrongSize("graph.aoti", 5, 4))),
    ("shorter file", lambda s: s.changed(graph_aoti=b""), in_graph(reasons.WrongSize("graph.aoti", 0, 4))),
    ("missing file", lambda s: s.changed(graph_aoti=None), in_graph(reasons.MissingFile("graph.aoti"))),
    ("changed weights", lambda s: s.changed(constants_json=95 * b" "),
     in_graph(reasons.DigestDiffers("constants.json"))),
    ("changed manifest", lambda s: s.changed(manifest_json=s.files[s.file("manifest.json")] + b"\n"),
     in_graph(reasons.WrongPublisherSignature("fleet"))),
    ("missing manifest", lambda s: s.changed(manifest_json=None), in_graph(reasons.MissingFile("manifest.json"))),
    ("no signature", lambda s: s.changed(publisher_json=None), in_graph(reasons.NotPublished())),
    ("odd signature", lambda s: s.changed(publisher_json=b"{"), in_graph(reasons.NotPublished())),
    ("another publisher", of_another, in_graph(reasons.SignedByAnother("fleet"))),
    ("another's signature", naming_the_publisher, in_graph(reasons.WrongPublisherSignature("fleet"))),
    ("another purpose", with_a_plain_signature, in_graph(reasons.WrongPublisherSignature("fleet"))),
    ("large signature", lambda s: s.changed(publisher_json=5000 * b" "), reasons.TooLarge),
    ("large manifest", lambda s: s.changed(manifest_json=(MOST_BYTES + 1) * b" "), reasons.TooLarge),
    ("large list", lambda s: {**s.files, "bundle.json": (MOST_LIST_BYTES + 1) * b" "}, reasons.TooLarge),
    ("no list", without_a_list, reasons.NotABundle),
    ("empty list", with_an_empty_list, reasons.NotABundle),
    ("broken list", lambda s: {**s.files, "bundle.json": b"{"}, reasons.NotABundle),
    ("list of what is elsewhere", listing("../../outside/x"), reasons.NotABundle),
    ("list of hidden folders", listing("666666666666/.staging-x/y"), reasons.NotABundle),
    ("list of the compilers' folder", listing("compiler-cache/unet/x"), reasons.NotABundle),
    ("twice in the list", listing_it_twice, reasons.DuplicateMember),
    ("one more in the list", listing_one_more, lambda s: reasons.BundledGraph("more", reasons.NotPublished())),
    # By a publisher who is trusted: still no way out of the store.
    ("no files", with_files(), in_graph(reasons.EmptyEntry())),
    ("name that leads elsewhere", lambda s: s.signed(files={"../../x": DIGEST}),
     in_graph(reasons.BadFileName("../../x"))),
    ("name from the root", lambda s: s.signed(files={"/etc/x": DIGEST}), in_graph(reasons.BadFileName("/etc/x"))),
    ("file of the store", with_files(signature_json=DIGEST), in_graph(reasons.ForeignFile("signature.json"))),
    ("file of another backend", with_files(x_so=DIGEST), in_graph(reasons.ForeignFile("x.so"))),
    ("huge file", larger_than_it_is, reasons.NoRoomForBundle),
    ("negative size", with_files(graph_aoti={**DIGEST, "bytes": -1}), reasons.BundledGraph),
    ("odd manifest", lambda s: s.signed(evil=1), reasons.BundledGraph),
    ("component elsewhere", with_key(component="../../outside"), OUT_OF_PLACE),
    ("hidden component", with_key(component=".staging-x"), OUT_OF_PLACE),
    ("dtype elsewhere", with_key(dtype="x/../../y"), OUT_OF_PLACE),
    ("target elsewhere", with_key(target={"device": "../../../x"}), OUT_OF_PLACE),
    ("long target", with_key(target={"device": 300 * "x"}), OUT_OF_PLACE),
    ("more in the key", with_key(evil=1), OUT_OF_PLACE),
    ("number for a string", with_key(dtype=1), OUT_OF_PLACE),
    ("string for a number", with_key(format="3"), OUT_OF_PLACE),
]  # fmt: skip


@pytest.mark.parametrize("form", ["file", "folder"])
@pytest.mark.parametrize(("craft", "reason"), [row[1:] for row in CRAFTS], ids=[row[0] for row in CRAFTS])
def test_crafted_contents(form: str, craft: Craft, reason: Any, scene: Scene) -> None:
    write = {"file": write_tar, "folder": write_folder}[form]
    found = refused(scene, write(scene.root / "x", craft(scene)))
    assert isinstance(found, reason) if isinstance(reason, type) else found == reason(scene)


def test_one_bad_graph_keeps_all_out(scene: Scene) -> None:
    second = publish(scene.publisher, ModelSource(None, "777777777777"), key(dtype="float16"))
    bake(scene.publisher, scene.root / "two.tar", *scene.publisher.entries())
    files = contents(scene.root / "two.tar")
    (bad,) = (f"{place}/graph.aoti" for place in graphs(files) if place.endswith(second.folder.name))
    found = refused(scene, write_tar(scene.root / "x.tar", {**files, bad: b"evil"}))
    assert found == reasons.BundledGraph(second.folder.name, reasons.DigestDiffers("graph.aoti"))


# A folder's own ways -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["graph.aoti", "manifest.json", "publisher.json"])
@pytest.mark.parametrize("what", ["link", "pipe", "folder", "device"])
def test_a_file_that_is_none(name: str, what: str, scene: Scene) -> None:
    folder = write_folder(scene.root / "x", scene.files)
    path = folder / scene.file(name)
    path.rename(scene.root / "real")
    if what == "link":
        path.symlink_to(scene.root / "real")
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    found = refused(scene, folder)
    if name == "graph.aoti":
        assert found == reasons.BundledGraph(scene.graph, reasons.NotARegularFile(name))
    else:
        assert found == reasons.ForbiddenMember(scene.file(name), "other")


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_folder_that_is_a_link(depth: int, scene: Scene) -> None:
    folder = write_folder(scene.root / "x", scene.files)
    path = folder.joinpath(*scene.place.split("/")[: depth + 1])
    path.rename(scene.root / "real")
    path.symlink_to(scene.root / "real")
    assert refused(scene, folder) == reasons.ForbiddenMember(scene.file("publisher.json"), "other")


def test_a_member_is_read_to_its_end_only(scene: Scene) -> None:
    """What comes after it in the file is another member's."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in scene.changed(graph_aoti=b"co").items():
            info, _ = member(name, data)
            tar.addfile(info, io.BytesIO(data))
    (scene.root / "x.tar").write_bytes(buffer.getvalue())
    assert refused(scene, scene.root / "x.tar") == reasons.BundledGraph(
        scene.graph, reasons.WrongSize("graph.aoti", 2, 4)
    )
