"""Taking a publisher's graphs over: everything of a bundle is verified, then signed as this user's own and published.

How a graph of somebody else's gets into the store:

1. The user names a publisher whose public key was trusted before by another command.
2. Each graph's manifest is verified against that key before anything else of the graph is read.
3. The files go into a folder that is closed to others, each compared with the signed digest on the way.
4. Only when all are right, each graph becomes an entry of the home by one rename, with this user's signature.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from ...common.errors import in_brief
from ...common.reasons import (
    BundledGraph,
    DigestDiffers,
    MissingFile,
    NeedsCryptography,
    NoRoomForBundle,
    NotARegularFile,
    NotPublished,
    PublisherListRefused,
    PublisherNotTrusted,
    Reason,
    SignedByAnother,
    UnknownPublisher,
    UnreadableManifest,
    WrongSize,
)
from ..file_names import check_names
from ..files import IrregularFileError, free_bytes
from ..home import Home, Verified
from ..key import GraphKey
from ..layout import entry_name
from ..manifest import MANIFEST_FILE, MOST_BYTES, Manifest
from ..places import valid_place
from ..sources.source import is_copied
from ..trust import publishers
from ..trust.publishers import PUBLISHER_FILE, Published, Publishers, PublisherSignature
from ..trust.signing import SIGNATURE_FILE, Signer
from . import bundle
from .bundle import BUNDLE_FILE, BundleError, Members

_MOST_SIGNATURE_BYTES = 4096
_SPARE = 64 << 20  # bytes that are to stay free


@dataclass(frozen=True)
class _Graph:
    """A graph whose manifest a trusted publisher signed.

    Attributes:
        at: its folder in the bundle.
        text: the manifest's bytes.
        signature: the publisher's, as in its file.
    """

    at: str
    key: GraphKey
    manifest: Manifest
    text: bytes
    signature: str

    @property
    def name(self) -> str:
        return self.at.rpartition("/")[2]

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.manifest.files.values())


def import_bundle(home: Home, signer: Signer, path: Path, publisher: str) -> list[tuple[Path, bool]] | Reason:
    """Verify all graphs of a bundle, then take them into the home.

    Args:
        path: what an export wrote, a folder or a tar file.
        publisher: the name of a trusted publisher, whose signature each graph must have.

    Returns:
        The folder of each graph, and whether it is new; or why the bundle is refused as a whole.

    Raises:
        OSError: the bundle cannot be read, or the graphs cannot be written.
    """
    trusted = Publishers(signer.home).trusted()
    if isinstance(trusted, PublisherListRefused):
        return trusted
    if publisher not in trusted:
        return PublisherNotTrusted(publisher)
    try:
        with bundle.opened(path) as members:
            graphs = [_verified(members, at, publisher, trusted[publisher]) for at in bundle.listing(members).graphs]
            listed = {f"{g.at}/{name}" for g in graphs for name in (MANIFEST_FILE, PUBLISHER_FILE, *g.manifest.files)}
            bundle.check_listed(members, {BUNDLE_FILE, *listed})
            needed, free = sum(graph.bytes for graph in graphs), free_bytes(home.folder)
            if free is not None and needed + _SPARE > free:
                return NoRoomForBundle(needed, free)
            signer.key()  # before anything is copied in vain
            with home.staging() as private:
                for number, graph in enumerate(graphs):
                    _extract(members, graph, private / str(number))
                return [_publish(home, signer, graph, private / str(n)) for n, graph in enumerate(graphs)]
    except BundleError as error:
        return error.reason


def _verified(members: Members, at: str, publisher: str, public: str) -> _Graph:
    """Read a graph's manifest, if the publisher signed it. Raises BundleError, OSError."""

    def refuse(reason: Reason) -> BundleError:
        return BundleError(BundledGraph(at.rpartition("/")[2], reason))

    try:
        signed = bundle.read(members, f"{at}/{PUBLISHER_FILE}", _MOST_SIGNATURE_BYTES)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise refuse(NotPublished()) from error
    try:
        data = bundle.read(members, f"{at}/{MANIFEST_FILE}", MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise refuse(MissingFile(MANIFEST_FILE)) from error
    try:
        signature = PublisherSignature.model_validate_json(signed)
    except ValidationError as error:
        raise refuse(NotPublished()) from error
    found = publishers.judge(signature, data, {publisher: public})
    if isinstance(found, NeedsCryptography):
        raise BundleError(found)
    if not isinstance(found, Published):
        raise refuse(SignedByAnother(publisher) if isinstance(found, UnknownPublisher) else found)
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as error:
        raise refuse(UnreadableManifest(in_brief(error))) from error
    wrong = check_names(manifest)
    if wrong is not None:
        raise refuse(wrong)
    place = valid_place(manifest.key, manifest)
    if place is None:
        raise refuse(UnreadableManifest("its key names no folder"))
    return _Graph(at, place[0], manifest, data, signature.model_dump_json(indent=1))


def _extract(members: Members, graph: _Graph, folder: Path) -> None:
    """Copy a graph's files, comparing each with its signed record. Raises BundleError, OSError."""
    folder.mkdir(mode=0o700)
    for name, wanted in graph.manifest.files.items():
        wrong: Reason | None
        try:
            with members.open(f"{graph.at}/{name}") as (file, size):
                wrong = WrongSize(name, size, wanted.bytes) if size != wanted.bytes else None
                if wrong is None:
                    with (folder / name).open("xb") as copy:
                        wrong = None if is_copied(file, copy, wanted) else DigestDiffers(name)
        except (FileNotFoundError, NotADirectoryError):
            wrong = MissingFile(name)
        except IrregularFileError:
            wrong = NotARegularFile(name)
        if wrong is not None:
            raise BundleError(BundledGraph(graph.name, wrong))


def _publish(home: Home, signer: Signer, graph: _Graph, verified: Path) -> tuple[Path, bool]:
    before = home.graphs / graph.key.component / entry_name(graph.key, graph.manifest) / MANIFEST_FILE
    is_new = not before.exists()
    own = signer.sign(graph.text).model_dump_json(indent=1)
    signatures = {SIGNATURE_FILE: own, PUBLISHER_FILE: graph.signature}
    with home.staging() as folder:
        for file in graph.manifest.files:
            (verified / file).replace(folder / file)
        kept = home.keep(Verified(graph.key, folder, graph.manifest, graph.text, signatures))
    return kept.folder, is_new
