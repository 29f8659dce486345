"""The home: the one folder that graphs are loaded from, `<home>/graphs/<component>/<entry>/`.

It is this user's alone, which is asked when it is first used, and this pack has sole maintenance of what is in it. So
an entry is loaded from where it lies once its signature and digests are right, whoever could write the place it came
from. The home is the user's graph folder. Where others may write that one, or nobody, it is a folder among the
system's temporary files, and the graph folder is one of its sources (`sources`).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..common.log import logger
from ..common.reasons import NewerManifest, UnreadableNow, Untrusted
from . import layout
from .crash import leftovers
from .crash.liveness import new_nonce
from .disk import leases
from .entry import Entry
from .files import HAVE_LOCKS, free_bytes, open_regular, sync, sync_folder, write_synced
from .integrity import Sound, check
from .key import GraphKey
from .manifest import MANIFEST_FILE, Manifest
from .trust import private_folder
from .trust.signing import Signer, TrustedEntry, read_trusted

log = logger("graph_cache")

_LEAST_ROOM = 1 << 20  # bytes; with less, nothing is compiled or copied in
_SURELY_UNUSED = 24 * 3600  # seconds without a use, where the file system has no locks that tell
_TRIES = 3  # of one name, each because another process has just given it to another folder

# used: a process has it loaded. kept: it could not be removed.
Removed = Literal["removed", "used", "gone", "kept"]
# What holds while a staging folder gets the name of its entry; see `Inventory.room`.
Room = Callable[[Path, Path], contextlib.AbstractContextManager[None]]


def _no_budget(staged: Path, final: Path) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


@dataclass(frozen=True)
class SignedGraph:
    """A graph whose manifest was made here, or verified.

    Attributes:
        text: the manifest's bytes.
        signatures: over them, by the names of their files.
    """

    key: GraphKey
    manifest: Manifest
    text: bytes
    signatures: Mapping[str, str] = field(default_factory=dict)


class Home:
    """The home of one user.

    Attributes:
        user: the user's graph folder.
        signer: whose signatures count.
        room: makes room for a new entry.
    """

    def __init__(self, user: Path, signer: Signer) -> None:
        self.user = user
        self.signer = signer
        self.room: Room = _no_budget
        self._is_closed = False

    @functools.cached_property
    def folder(self) -> Path:
        """The home itself, which is chosen once."""
        return private_folder.locate(self.user)

    @property
    def graphs(self) -> Path:
        return self.folder / layout.GRAPHS_FOLDER

    @property
    def is_elsewhere(self) -> bool:
        """Whether the user's graph folder cannot be the home."""
        return self.folder != self.user

    # Reading ------------------------------------------------------------------------------------------------

    def names(self, component: str) -> list[str]:
        """List what is in a component's folder. Raises OSError where nobody can tell now."""
        return layout.listed(self.graphs / component) if self._may_be_read() else []

    def entry_folders(self) -> Iterator[Path]:
        """Iterate over the folders with a manifest."""
        return layout.entry_folders(self.graphs) if self._may_be_read() else iter(())

    def trusted(self, component: str) -> Iterator[Entry]:
        """Read a component's entries that may be loaded, half a millisecond each, by their names."""
        for name in sorted(layout.visible(layout.listed_now(self.graphs / component))) if self._may_be_read() else ():
            verdict = read_trusted(self.graphs / component / name, self.signer)
            if isinstance(verdict, TrustedEntry):
                yield verdict.entry

    def condemned(self, key: GraphKey) -> list[Entry]:
        """Read the quarantined entries of a key whose files are whole: what was wrong with them is the graph itself."""
        component = self.graphs / key.component
        names = layout.of_digest(layout.listed_now(component), key.digest) if self._may_be_read() else []
        verdicts = [
            read_trusted(component / name, self.signer) for name in names if name.startswith(layout.BROKEN_PREFIX)
        ]
        entries = [verdict.entry for verdict in verdicts if isinstance(verdict, TrustedEntry)]
        return [one for one in entries if one.manifest.key == key.fields() and isinstance(check(one), Sound)]

    def _may_be_read(self) -> bool:
        """Whether nobody else could put another folder in the place of the graphs', which is asked until it is so."""
        if not self._is_closed:
            with contextlib.suppress(OSError):
                self._is_closed = private_folder.check(self.graphs) is None
        return self._is_closed

    # Writing ------------------------------------------------------------------------------------------------

    def make(self) -> None:
        """Make the home where it is not there. Raises RefusedError, OSError."""
        if self.is_elsewhere:
            private_folder.make(self.folder)
        else:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            private_folder.close_to_group(self.folder)
        for name in (layout.GRAPHS_FOLDER, layout.STAGING_FOLDER):
            private_folder.make(self.folder / name)

    def make_compiler_cache(self) -> Path | None:
        """Make the folder for what compiles share, native code too; None where it cannot be this user's alone."""
        try:
            self.make()
            private_folder.make(self.folder / layout.COMPILER_CACHE)
        except OSError as error:
            log.debug("compiles share nothing: %s", error)
            return None
        return self.folder / layout.COMPILER_CACHE

    @contextlib.contextmanager
    def staging(self) -> Iterator[Path]:
        """Return an empty folder for files that become an entry; gone when the block ends.

        Raises:
            RefusedError: the home is not this user's alone.
            OSError: it cannot be made, or has no room.
        """
        self.make()
        with leftovers.owned_folder(self.folder / layout.STAGING_FOLDER) as folder:
            free = free_bytes(folder)
            if free is not None and free < _LEAST_ROOM:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            yield folder

    def keep(self, graph: SignedGraph, folder: Path) -> Entry:
        """Make a folder of `staging` an entry, by one rename. Raises OSError.

        Args:
            folder: with the graph's files, which are what its manifest lists.

        Returns:
            The entry; or the same graph where another process published it meanwhile.
        """
        final = self.graphs / graph.key.component / layout.entry_name(graph.key, graph.manifest)
        for name in graph.manifest.files:
            with open_regular(folder / name) as file:
                sync(file.fileno())
        for name, text in {**graph.signatures, MANIFEST_FILE: graph.text.decode()}.items():
            write_synced(folder / name, text)  # the manifest last: without it there is no entry
        with self.room(folder, final):  # others may hold it for a while, and without an owner a folder may be swept
            (folder / leftovers.OWNER_FILE).unlink(missing_ok=True)
            sync_folder(folder)
            entry = self._put(graph, folder, final)
            sync_folder(entry.folder.parent)
        return entry

    def _put(self, new: SignedGraph, staged: Path, final: Path) -> Entry:
        final.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for _ in range(_TRIES):
            for folder in self._names(final):
                if os.path.lexists(folder):
                    verdict = read_trusted(folder, self.signer)
                    same = isinstance(verdict, TrustedEntry) and _are_same(verdict.entry.manifest, new.manifest)
                    state = check(verdict.entry) if isinstance(verdict, TrustedEntry) and same else verdict
                    if isinstance(verdict, TrustedEntry) and isinstance(state, Sound):
                        return verdict.entry
                    if isinstance(state, UnreadableNow):
                        raise OSError(state.detail)
                    if folder == final and isinstance(verdict, Untrusted | NewerManifest):
                        continue  # another installation's, perhaps
                    self.quarantine(folder)
                if folder != final:
                    for orphan in orphans(final, self.signer):
                        self.remove(orphan, 0.0)
                try:
                    staged.rename(folder)
                except OSError:
                    if not os.path.lexists(folder):
                        raise
                    break
                return Entry(folder, new.manifest, new.text)
        raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))

    def _names(self, final: Path) -> Iterator[Path]:
        """Return the names that an entry may have; the second one has this user's key, which not everybody can make."""
        yield final
        yield final.with_name(f"{final.name}-{self.signer.sign(b'').key}")

    def quarantine(self, folder: Path) -> bool:
        """Move an entry aside. The latest one stays on the disk for inspection, older ones go. Never raises OSError.

        Returns:
            Whether it is out of the way.
        """
        older = re.compile(
            re.escape(f"{layout.BROKEN_PREFIX}{folder.name}-") + "[0-9a-f]+"
        )  # of no entry with a longer name
        for name in layout.listed_now(folder.parent):
            if older.fullmatch(name):
                shutil.rmtree(folder.with_name(name), ignore_errors=True)
        try:
            folder.rename(folder.with_name(f"{layout.BROKEN_PREFIX}{folder.name}-{time.time_ns():x}"))
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
        return not os.path.lexists(folder)

    def remove(self, folder: Path, used: float) -> Removed:
        """Remove an entry, unless a process uses it. Never raises OSError.

        It is renamed away in one step, so that a look-up that found it finds it gone, never half of it.

        Args:
            used: when it was used last, seconds since 1970.
        """
        with leases.exclusive(folder) as use:
            if use in ("used", "gone"):
                return "used" if use == "used" else "gone"
            if use == "unknown" and abs(time.time() - used) < _SURELY_UNUSED:
                return "used"
            away = self.folder / layout.STAGING_FOLDER / f"removed-{new_nonce()}"
            try:
                away.parent.mkdir(mode=0o700, exist_ok=True)
                folder.rename(away)
            except FileNotFoundError:
                return "gone"
            except OSError:  # on Windows: a process has its manifest open
                return "kept" if HAVE_LOCKS else "used"
        leftovers.remove(away)
        return "removed"

    def sweep(self) -> None:
        """Remove what dead processes left behind. Never raises OSError."""
        with contextlib.suppress(OSError):
            if not self._may_be_read() and self.graphs.is_dir():  # a pod's start may open it to a group
                self.make()
        if self._may_be_read():
            leftovers.sweep(self.folder, self.graphs)


def _are_same(first: Manifest, second: Manifest) -> bool:
    """Whether two graphs serve the same. Names of folders tell little: a key's digest in them is short."""
    return (first.key, first.code, first.at_least) == (second.key, second.code, second.at_least)


def orphans(folder: Path, signer: Signer) -> Iterator[Path]:
    """Find what lies beside an entry because of keys that are gone, so that starts without a key leave two at most."""
    named = re.compile(re.escape(folder.name) + "-[0-9a-f]{8}")
    for name in layout.listed_now(folder.parent):
        if named.fullmatch(name) and isinstance(read_trusted(folder.with_name(name), signer), Untrusted):
            yield folder.with_name(name)


def equals_one(manifest: Manifest, entries: list[Entry]) -> bool:
    """Tell whether a graph has the very files of one of these entries."""
    return any(manifest.files == one.manifest.files for one in entries)
