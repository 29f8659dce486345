"""Bundles: what an export writes and an import reads, a folder or a tar file of the same layout.

`bundle.json` lists the graphs; each lies in `<model hash>/<component>/<entry>/`, with `manifest.json`, `publisher.json`
and its files, as in a user's folder. A tar file holds regular files with short names only, so its headers are read
here block by block: what links, devices, sparse files and extended headers could do is never interpreted. `tarfile`
would read an extended header of any size into memory before its filters see a member, would take a broken header for
the end of the file, and would write what nobody has verified yet.

How a graph of somebody else's gets into the home:

1. The user names a publisher whose public key was trusted before by another command.
2. Each graph's manifest is verified against that key before anything else of the graph is read.
3. The files go into a folder that is closed to others, each compared with the signed digest on the way.
4. Only when all are right, each graph becomes an entry of the home by one rename, with this user's signature.
"""

from __future__ import annotations

import contextlib
import os
import re
import tarfile
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

from pydantic import Field, StringConstraints, ValidationError

from ...common import reasons
from ...common.errors import in_brief
from ...common.reasons import Reason
from ..files import IrregularFileError, free_bytes, open_regular
from ..home import Home, SignedGraph
from ..integrity import Opened, compare, sized
from ..layout import entry_name
from ..manifest import MANIFEST_FILE, MOST_BYTES, Strict
from ..trust.publishers import PUBLISHER_FILE, Publishers, PublisherSignature
from ..trust.signing import SIGNATURE_FILE, Signer
from .records import Publisher
from .source import verify
from .store_folder import Folder
from .transport import StoreError

BUNDLE_FILE = "bundle.json"
MOST_LIST_BYTES = 4 << 20
_OWN = (MANIFEST_FILE, PUBLISHER_FILE)  # of each graph, besides the files that its manifest lists
_MOST_SIGNATURE_BYTES = 4096
_SPARE = 64 << 20  # bytes that are to stay free
_MOST_GRAPHS = 20_000
_MOST_MEMBERS = 1_000_000
_BLOCK = 512  # of a tar file
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}"
GRAPH = rf"[0-9a-z]{{1,32}}/{_PART}/{_PART}"  # of no other folder that a user's holds
_MEMBER = re.compile(rf"{re.escape(BUNDLE_FILE)}|{GRAPH}/{_PART}")
_KINDS: dict[bytes, Literal["link", "device", "extension"]] = {
    tarfile.LNKTYPE: "link", tarfile.SYMTYPE: "link",
    tarfile.CHRTYPE: "device", tarfile.BLKTYPE: "device", tarfile.FIFOTYPE: "device",
    tarfile.XHDTYPE: "extension", tarfile.XGLTYPE: "extension",
    tarfile.GNUTYPE_LONGNAME: "extension", tarfile.GNUTYPE_LONGLINK: "extension",
}  # fmt: skip

GraphPath = Annotated[str, StringConstraints(pattern=f"^{GRAPH}$")]


class Listing(Strict):
    """The graphs of a bundle, as in its file."""

    version: Literal[1] = 1
    graphs: tuple[GraphPath, ...] = Field(min_length=1, max_length=_MOST_GRAPHS)


def is_one(path: Path) -> bool:
    """Tell whether something looks like what an export made: a file, or a folder with a list of graphs."""
    return path.is_file() or (path / BUNDLE_FILE).is_file()


class BundleError(StoreError):
    """A bundle is refused."""


@dataclass(frozen=True)
class Members:
    """The files of a bundle, by names with slashes.

    Attributes:
        open: gives a file, and how many bytes it has. Raises FileNotFoundError, IrregularFileError, OSError.
        names: of all files that count; of a folder, which may hold more, none.
    """

    open: Callable[[str], Opened]
    names: Set[str] = frozenset()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Members]:
    """Open a bundle.

    Raises:
        BundleError: it is none, or holds what no bundle does.
        OSError: it cannot be read.
    """
    if path.is_dir():
        folder = Folder(str(path))
        yield Members(lambda name: sized(folder.open(name, "rb")))
        return
    try:
        file = open_regular(path)
    except IrregularFileError as error:
        raise BundleError(reasons.NotABundle("neither a file nor a folder")) from error
    with file:
        index = _index(file)
        yield Members(partial(_opened_in_tar, file, index), index.keys())


@contextlib.contextmanager
def _opened_in_tar(file: BinaryIO, index: dict[str, tuple[int, int]], name: str) -> Iterator[tuple[BinaryIO, int]]:
    if name not in index:
        raise FileNotFoundError(name)
    start, size = index[name]
    file.seek(start)
    yield file, size


def _read(members: Members, name: str, most: int) -> bytes:
    """Read a small file of a bundle.

    Raises:
        BundleError: it is larger than that many bytes, or no regular file.
        FileNotFoundError: there is none.
        OSError: it cannot be read.
    """
    try:
        with members.open(name) as (file, size):
            data = b"" if size > most else file.read(min(size, most) + 1)[:size]
    except IrregularFileError as error:
        raise BundleError(reasons.ForbiddenMember(name, "other")) from error
    if size > most:
        raise BundleError(reasons.TooLarge(name, size, most))
    return data


def _listing(members: Members) -> Listing:
    """Read which graphs a bundle holds. Raises BundleError, OSError."""
    try:
        listing = Listing.model_validate_json(_read(members, BUNDLE_FILE, MOST_LIST_BYTES))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BundleError(reasons.NotABundle(f"no {BUNDLE_FILE}")) from error
    except ValidationError as error:
        raise BundleError(reasons.NotABundle(in_brief(error))) from error
    seen: set[str] = set()
    for graph in listing.graphs:
        if graph.lower() in seen:  # where names differ in case alone, some file systems have one file
            raise BundleError(reasons.DuplicateMember(graph))
        seen.add(graph.lower())
    return listing


# Taking over ------------------------------------------------------------------------------------------------------


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
    if isinstance(trusted, reasons.PublisherListRefused):
        return trusted
    if publisher not in trusted:
        return reasons.PublisherNotTrusted(publisher)
    signed_by = Publisher(publisher, trusted[publisher])
    try:
        with _opened(path) as members:
            graphs = {at: _verified(members, at, signed_by) for at in _listing(members).graphs}
            listed = {f"{at}/{name}" for at, graph in graphs.items() for name in (*_OWN, *graph.manifest.files)}
            if unlisted := sorted(members.names - {BUNDLE_FILE, *listed}):
                return reasons.UnlistedMember(unlisted[0])
            needed, free = sum(graph.manifest.bytes for graph in graphs.values()), free_bytes(home.folder)
            if free is not None and needed + _SPARE > free:
                return reasons.NoRoomForBundle(needed, free)
            signer.key()  # before anything is copied in vain
            with home.staging() as private:
                for number, (at, graph) in enumerate(graphs.items()):
                    _extract(members, at, graph, private / str(number))
                return [_keep(home, signer, graph, private / str(n)) for n, graph in enumerate(graphs.values())]
    except BundleError as error:
        return error.reason


def _refused(at: str, reason: Reason) -> BundleError:
    return BundleError(reasons.BundledGraph(at.rpartition("/")[2], reason))


def _verified(members: Members, at: str, publisher: Publisher) -> SignedGraph:
    """Read a graph's manifest, if the publisher signed it. Raises BundleError, OSError."""
    try:
        signature = PublisherSignature.model_validate_json(
            _read(members, f"{at}/{PUBLISHER_FILE}", _MOST_SIGNATURE_BYTES)
        )
    except (FileNotFoundError, NotADirectoryError, ValidationError) as error:
        raise _refused(at, reasons.NotPublished()) from error
    try:
        text = _read(members, f"{at}/{MANIFEST_FILE}", MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _refused(at, reasons.MissingFile(MANIFEST_FILE)) from error
    graph = verify(text, signature, publisher)
    if isinstance(graph, SignedGraph):
        return graph
    if isinstance(graph, reasons.NeedsCryptography):
        raise BundleError(graph)
    is_anothers = isinstance(graph, reasons.UnknownPublisher)
    raise _refused(at, reasons.SignedByAnother(publisher.name) if is_anothers else graph)


def _extract(members: Members, at: str, graph: SignedGraph, folder: Path) -> None:
    """Copy a graph's files, comparing each with its signed record. Raises BundleError, OSError."""
    folder.mkdir(mode=0o700)
    for name, wanted in graph.manifest.files.items():
        wrong = compare(partial(members.open, f"{at}/{name}"), name, wanted, folder / name)
        if wrong is not None:
            raise _refused(at, wrong)


def _keep(home: Home, signer: Signer, graph: SignedGraph, folder: Path) -> tuple[Path, bool]:
    """Make a verified graph an entry; its folder, and whether it is new. Raises OSError."""
    before = home.graphs / graph.key.component / entry_name(graph.key, graph.manifest) / MANIFEST_FILE
    is_new = not before.exists()
    signatures = {**graph.signatures, SIGNATURE_FILE: signer.sign(graph.text).model_dump_json(indent=1)}
    return home.keep(replace(graph, signatures=signatures), folder).folder, is_new


# A tar file's headers ---------------------------------------------------------------------------------------------


def _index(file: BinaryIO) -> dict[str, tuple[int, int]]:
    """Read all headers of a tar file: where the bytes of each file begin, and how many there are.

    Raises BundleError, OSError.
    """
    length = os.fstat(file.fileno()).st_size
    members: dict[str, tuple[int, int]] = {}
    seen: set[str] = set()
    at = 0
    while True:
        file.seek(at)
        block = file.read(_BLOCK)
        if len(block) == _BLOCK and not any(block):
            break
        try:
            info = tarfile.TarInfo.frombuf(block, "ascii", "strict")
        except (tarfile.HeaderError, ValueError) as error:
            if at == 0:
                raise BundleError(reasons.NotABundle("no tar file")) from error
            ends = at + _BLOCK > length
            raise BundleError(reasons.BundleEndsEarly() if ends else reasons.NotABundle("a broken header")) from error
        _check_member(info)
        at += _BLOCK
        if info.size < 0 or at + info.size > length:
            raise BundleError(reasons.BundleEndsEarly())
        if info.name.lower() in seen:
            raise BundleError(reasons.DuplicateMember(info.name))
        if len(seen) >= _MOST_MEMBERS:
            raise BundleError(reasons.NotABundle("too many files"))
        seen.add(info.name.lower())
        members[info.name] = at, info.size
        at += -(-info.size // _BLOCK) * _BLOCK
    if at + 2 * _BLOCK > length:  # the end is marked by two empty blocks
        raise BundleError(reasons.BundleEndsEarly())
    return members


def _check_member(info: tarfile.TarInfo) -> None:
    name = info.name[:100]
    if info.type != tarfile.REGTYPE:
        raise BundleError(reasons.ForbiddenMember(name, _KINDS.get(info.type, "other")))
    if not _MEMBER.fullmatch(info.name):
        raise BundleError(reasons.BadMemberName(name))
