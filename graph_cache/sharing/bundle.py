"""Bundles: what an export writes and an import reads, a folder or a tar file of the same layout.

`bundle.json` lists the graphs; each lies in `<model hash>/<component>/<entry>/`, with `manifest.json`, `publisher.json`
and its files, as in a user's folder. A tar file holds regular files with short names only, so its headers are read
here block by block: what links, devices, sparse files and extended headers could do is never interpreted. `tarfile`
would read an extended header of any size into memory before its filters see a member, would take a broken header for
the end of the file, and would write what nobody has verified yet.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tarfile
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO, Literal, Protocol

from pydantic import Field, StringConstraints, ValidationError

from ...common.errors import OneGraphError, in_brief
from ...common.reasons import (
    BadMemberName,
    BundleEndsEarly,
    DuplicateMember,
    ForbiddenMember,
    NotABundle,
    Reason,
    TooLarge,
    UnlistedMember,
)
from ..files import IrregularFileError, OversizedFileError, open_regular
from ..manifest import Strict

BUNDLE_FILE = "bundle.json"
MOST_LIST_BYTES = 4 << 20
_MOST_GRAPHS = 20_000
_MOST_MEMBERS = 1_000_000
_BLOCK = 512  # of a tar file
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}"
GRAPH = rf"[0-9a-z]{{1,32}}/{_PART}/{_PART}"  # of no other folder that a user's holds
_MEMBER = re.compile(rf"{re.escape(BUNDLE_FILE)}|{GRAPH}/{_PART}")


GraphPath = Annotated[str, StringConstraints(pattern=f"^{GRAPH}$")]


class Listing(Strict):
    """The graphs of a bundle, as in its file."""

    version: Literal[1] = 1
    graphs: tuple[GraphPath, ...] = Field(min_length=1, max_length=_MOST_GRAPHS)


def is_one(path: Path) -> bool:
    """Tell whether something looks like what an export made: a file, or a folder with a list of graphs."""
    return path.is_file() or (path / BUNDLE_FILE).is_file()


class BundleError(OneGraphError):
    """A bundle is refused."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.code)
        self.reason = reason


class Members(Protocol):
    """The files of a bundle, by names with slashes."""

    def open(self, name: str) -> contextlib.AbstractContextManager[tuple[BinaryIO, int]]:
        """Open a file for reading that many bytes. Raises FileNotFoundError, IrregularFileError, OSError."""

    def names(self) -> Set[str]:
        """Name all files that count: in a folder, which may hold more, none."""


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Members]:
    """Open a bundle.

    Raises:
        BundleError: it is none, or holds what no bundle does.
        OSError: it cannot be read.
    """
    if path.is_dir():
        yield Folder(path)
        return
    try:
        file = open_regular(path)
    except IrregularFileError as error:
        raise BundleError(NotABundle("neither a file nor a folder")) from error
    with file:
        yield Tar(file, _index(file))


def read(members: Members, name: str, most: int) -> bytes:
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
        raise BundleError(ForbiddenMember(name, "other")) from error
    except OversizedFileError as error:
        raise BundleError(TooLarge(name, error.size, most)) from error
    if size > most:
        raise BundleError(TooLarge(name, size, most))
    return data


def listing(members: Members) -> Listing:
    """Read which graphs a bundle holds. Raises BundleError, OSError."""
    try:
        found = Listing.model_validate_json(read(members, BUNDLE_FILE, MOST_LIST_BYTES))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BundleError(NotABundle(f"no {BUNDLE_FILE}")) from error
    except ValidationError as error:
        raise BundleError(NotABundle(in_brief(error))) from error
    seen: set[str] = set()
    for graph in found.graphs:
        if graph.lower() in seen:  # where names differ in case alone, some file systems have one file
            raise BundleError(DuplicateMember(graph))
        seen.add(graph.lower())
    return found


@dataclass(frozen=True)
class Folder:
    """A bundle in a folder. What it does not list is not looked at."""

    root: Path

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[tuple[BinaryIO, int]]:
        *folders, _ = Path(name).parents
        for folder in reversed(folders):
            if not stat.S_ISDIR((self.root / folder).lstat().st_mode):
                raise IrregularFileError(f"{folder} is no folder")
        with open_regular(self.root / name) as file:
            yield file, os.fstat(file.fileno()).st_size

    def names(self) -> Set[str]:
        return frozenset()


@dataclass(frozen=True)
class Tar:
    """A bundle in a tar file, whose headers were read before.

    Attributes:
        members: name -> where its bytes begin, and how many there are.
    """

    file: BinaryIO
    members: dict[str, tuple[int, int]]

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[tuple[BinaryIO, int]]:
        if name not in self.members:
            raise FileNotFoundError(name)
        start, size = self.members[name]
        self.file.seek(start)
        yield self.file, size

    def names(self) -> Set[str]:
        return self.members.keys()


def check_listed(members: Members, listed: Set[str]) -> None:
    """Raise BundleError where a bundle holds a file that is not listed."""
    for name in sorted(members.names() - listed):
        raise BundleError(UnlistedMember(name))


def _index(file: BinaryIO) -> dict[str, tuple[int, int]]:
    """Read all headers of a tar file. Raises BundleError, OSError."""
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
                raise BundleError(NotABundle("no tar file")) from error
            raise BundleError(BundleEndsEarly() if at + _BLOCK > length else NotABundle("a broken header")) from error
        _check_member(info)
        at += _BLOCK
        if info.size < 0 or at + info.size > length:
            raise BundleError(BundleEndsEarly())
        if info.name.lower() in seen:
            raise BundleError(DuplicateMember(info.name))
        if len(seen) >= _MOST_MEMBERS:
            raise BundleError(NotABundle("too many files"))
        seen.add(info.name.lower())
        members[info.name] = at, info.size
        at += -(-info.size // _BLOCK) * _BLOCK
    if at + 2 * _BLOCK > length:  # the end is marked by two empty blocks
        raise BundleError(BundleEndsEarly())
    return members


def _check_member(info: tarfile.TarInfo) -> None:
    name = info.name[:100]
    if info.type in (tarfile.LNKTYPE, tarfile.SYMTYPE):
        raise BundleError(ForbiddenMember(name, "link"))
    if info.type in (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE):
        raise BundleError(ForbiddenMember(name, "device"))
    if info.type in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
        raise BundleError(ForbiddenMember(name, "extension"))
    if info.type != tarfile.REGTYPE:
        raise BundleError(ForbiddenMember(name, "other"))
    if not _MEMBER.fullmatch(info.name):
        raise BundleError(BadMemberName(name))
