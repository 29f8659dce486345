"""The store: every entry that one user can reach, and the one door to it.

How a graph gets into a process:

1. `lookup` finds its entry, if this user's installation or a trusted publisher signed it. It changes nothing. What it
   misses `fetch` looks for in remote stores.
2. A hit in another model's folder is copied by `share_with_model`; `move_aside` quarantines a broken one.
3. After a miss, a compile fills a private folder from `staging`, and `publish` copies it to the model's graphs and
   makes it an entry by one rename.
4. `private` gives a copy of the entry for loading, `constants` the weights that it reads, and `loading` marks the
   moments in which a bad graph could take the process down. `note_death` counts a marker that stayed. After the
   first a child process tries the graph; the second in a row makes the entry broken for the next lookup.
   `note_success` forgets the first.
   `lease` keeps others from removing the entry as long as a process has it loaded (`disk`).
5. `remember` writes what the first use showed beside the manifest; `first_use` reads it in later processes.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from ..common.reasons import (
    Damaged,
    DiedOnceWhileLoading,
    ForeignOwner,
    GraphRemoved,
    NewerManifest,
    Reason,
    UnreadableNow,
    Untrusted,
)
from ..common.tensor_meta import TensorMeta
from . import constants, first_use_results, staging
from . import publish as publishing
from .crash import leftovers
from .crash import quarantine as quarantining
from .crash.failure_files import FOLDER as FAILURES_FOLDER
from .crash.failure_files import FailureFiles
from .crash.markers import Markers
from .crash.quarantine import of_key
from .disk import leases, marks
from .disk.inventory import Inventory
from .disk.leases import Lease
from .entry import Entry, read
from .first_use_results import FirstUse
from .integrity import Sound, check
from .key import GraphKey
from .layout import COMPILER_CACHE, COMPILING_FOLDER, COPIES_FOLDER, Layout, listed_now, machine_id, user_folder
from .lookup import Broken, Differs, Hit, Judged, Lookup, no_objection
from .model_hash import ModelSource
from .private_copy import private_copy, private_folder
from .publish import NewEntry
from .remote import records
from .remote.layers import Kept, Layers, Wanted
from .trust import ownership
from .trust.open_folder import is_closed
from .trust.signing import Signer, Trusted
from .trust.trusted_entry import Faulty, Known, read_trusted

log = logging.getLogger("onegraph.graph_cache")

PULLED = "pulled"  # the folder of fetched graphs in the user's folder that no model asked for yet

State = Sound | Damaged | NewerManifest | UnreadableNow | Untrusted


class Store:
    """All entries reachable from one user: beside checkpoints and in the user's graph folder.

    Args:
        home: the user's graph folder, where it is not the usual one.
    """

    def __init__(self, home: Path | None = None) -> None:
        self.home = home or user_folder()
        self.compile_times = self.home / f"{machine_id()}-compile-times.json"
        self._layout = Layout(self.home)
        self._markers = Markers(self.home)
        self._signer = Signer(self.home)
        self.failures = FailureFiles(self.home)
        self.disk = Inventory(self.home, self._signer)
        self._lookup = Lookup(self._layout, self._markers, self._signer)
        self.remotes = Layers(self.home, self._signer)

    # Looking up ---------------------------------------------------------------------------------------------

    def lookup(
        self,
        key: GraphKey,
        source: ModelSource,
        neighbours: Iterable[Path] = (),
        differs: Differs = no_objection,
    ) -> Judged:
        """Look for the entry of a key. Changes nothing, on the disk or here.

        Args:
            source: the model, whose own entries come first.
            neighbours: folders with checkpoints, whose `.graphs` folders are searched too.
            differs: why an entry of the same key cannot be used here all the same, or None.

        Returns:
            A hit, which may be another model's; or what was nearest; or an entry that is damaged or took a process
            down; or one that cannot be read now.
        """
        return self._lookup.lookup(key, source, neighbours, differs)

    def sibling(
        self,
        key: GraphKey,
        source: ModelSource,
        neighbours: Iterable[Path] = (),
        differs: Differs = no_objection,
    ) -> Entry | None:
        """Look for a sound entry that differs from `key` in the shapes alone, this model's or another's."""
        return self._lookup.sibling(key, source, neighbours, differs)

    def keys(
        self, component: str, architectures: Collection[str], source: ModelSource, neighbours: Iterable[Path] = ()
    ) -> list[dict[str, Any]]:
        """Read the fields of the keys of a component's trusted entries, whose files are not looked at.

        Args:
            architectures: digests. Other models' entries are read until there is one of each, and not all of many.
        """
        return self._lookup.keys(component, architectures, source, neighbours)

    def nearest(self, key: GraphKey, source: ModelSource, neighbours: Iterable[Path] = ()) -> Entry | None:
        """Read the trusted entry whose key differs from `key` in the fewest fields, this model's first."""
        return self._lookup.nearest(key, source, neighbours)

    def fetch(self, key: GraphKey, source: ModelSource, differs: Differs = no_objection) -> Kept | Reason | None:
        """Look for a graph in the remote stores, after `lookup` missed, and keep it among the model's own.

        It waits a bounded time for each store, and raises for nothing that one does.

        Returns:
            The new entry; or why a store that should have told did not, or gave what may not be used; or None: no
            store has it, or there are none.
        """
        if not self.remotes:
            return None
        locations = self.locations(source)
        components = [location / key.component for location in locations]
        bad = [one for folder in components for one in of_key(folder, listed_now(folder), key, self._signer)]
        digest = records.key_digest(key.fields())
        return self.remotes.fetch(Wanted(digest, key, locations, differs, bad, self.disk.room))

    def fetch_named(self, digest: str, differs: Differs = no_objection) -> Kept | Reason | None:
        """Look for a graph in the remote stores by the digest of its key, and keep it for whatever model asks for it.

        Args:
            digest: 64 hex digits, as stores name keys; see `remote.records.key_digest`.
        """
        return self.remotes.fetch(Wanted(digest, None, [self.home / PULLED], differs, (), self.disk.room))

    def locations(self, source: ModelSource) -> list[Path]:
        """List the folders in which a model's graphs may live, best first."""
        return self._layout.locations(source)

    # Listing ------------------------------------------------------------------------------------------------

    def entries(self, neighbours: Iterable[Path] = ()) -> Iterator[Entry]:
        """Iterate over the readable entries in the user's folder and beside the checkpoints in `neighbours`."""
        for folder in self._layout.entry_folders(neighbours):
            entry = read(folder)
            if isinstance(entry, Entry):
                yield entry

    @property
    def signer(self) -> Signer:
        """Who signs and judges what is in this store."""
        return self._signer

    def check_all(self, neighbours: Iterable[Path] = ()) -> Iterator[tuple[Path, State]]:
        """Check the owner, signature and files of every entry, and name those whose manifest cannot be read."""
        for folder in self._layout.entry_folders(neighbours):
            yield folder, self.check(folder)

    def check(self, folder: Path) -> State:
        """Check the owner, signature and files of an entry. Changes nothing."""
        found = read_trusted(folder, self._signer)
        if isinstance(found, Known):
            return check(found.entry)
        return found.reason if isinstance(found, Faulty) else found

    def trust(self, entry: Entry) -> Untrusted | UnreadableNow | None:
        """Say why an entry is never loaded: others may write it, or nobody signed it whom this user trusts."""
        return self._signer.judge(entry)

    def provenance(self, entry: Entry) -> Trusted | Untrusted | UnreadableNow:
        """Say whose an entry is: this user's own or a trusted publisher's; or why it is never loaded."""
        return self._signer.provenance(entry)

    # Changing -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def staging(self, source: ModelSource) -> Iterator[Path]:
        """Give an empty folder for a compile, which nobody else can look into or exchange; gone when the block ends.

        It lies in the user's folder, or among the system's temporary files. Nothing of it is in the store until
        `publish` copies it there.

        Raises:
            OSError: there is no such folder, no location of the model's graphs can be written, or the graph could not
                be signed.
        """
        self._signer.key()  # before anything is compiled in vain
        staging.find_location(self.locations(source))
        leftovers.sweep_staging(self.home / COMPILING_FOLDER)
        with private_folder(self.home / COMPILING_FOLDER) as folder:
            yield folder

    def make_compiler_cache(self) -> Path | None:
        """Make the folder for what compiles share, native code too; None where others may write it."""
        try:
            ownership.make_private(self.home / COMPILER_CACHE)
        except OSError as error:
            log.debug("compiles share nothing: %s", error)
            return None
        return self.home / COMPILER_CACHE if is_closed(self.home / COMPILER_CACHE) else None

    def sweep(self, locations: Iterable[Path]) -> None:
        """Remove what dead processes left behind in folders of `locations` and in the user's. Never raises OSError.

        Folders that others could exchange for other ones are left as they are.
        """
        for location in locations:
            leftovers.sweep_staging(location)
            leftovers.sweep_temporaries(location, depth=2)
        leftovers.sweep_temporaries(self.home)
        leftovers.sweep_temporaries(self.home / FAILURES_FOLDER)
        for folder in (COPIES_FOLDER, COMPILING_FOLDER):
            leftovers.sweep_staging(self.home / folder)
        leftovers.sweep_temporary_folders()

    def publish(self, key: GraphKey, compiled: Path, new: NewEntry, source: ModelSource) -> Entry:
        """Make the files in a folder from `staging` an entry, in the first of the model's locations that takes it.

        Returns:
            The new entry; or the same graph where another process published it meanwhile.

        Raises:
            NotPublishedError: the files cannot be written or moved.
        """
        return publishing.publish(key, compiled, new, self.locations(source), self._signer, self.disk.room)

    def share_with_model(self, hit: Hit, key: GraphKey, source: ModelSource) -> Entry:
        """Take another model's entry over into this model's folder, by hard links where they work.

        Returns:
            This model's entry; the other model's where nothing can be written.
        """
        if not hit.foreign:
            return hit.entry
        try:
            self._signer.key()
            with staging.staging(self.locations(source)) as staged:
                return publishing.share_with_model(key, staged, hit.entry, self._signer, self.disk.room)
        except OSError as error:
            log.debug("%s is used where it is: %s", hit.entry.folder, error)
            return hit.entry

    def save(self, entry: Entry, key: GraphKey, location: Path) -> Entry:
        """Copy an entry into a folder of graphs, `<name>.graphs/<model>`, which look-ups beside it then search.

        Raises:
            OSError: it cannot be read or written.
        """
        with staging.staging([location]) as staged:
            saved = publishing.save(key, staged, entry, self._signer)
        marks.pin(saved.folder)  # saved on purpose: the budget, if it ever counts this folder, leaves it
        return saved

    def saved(self, folder: Path) -> Iterator[Entry]:
        """Iterate over the readable entries in the `.graphs` folders of a folder, such as `save` makes."""
        for path in self._layout.entry_folders_in(folder):
            entry = read(path)
            if isinstance(entry, Entry):
                yield entry

    def remove(self, entry: Entry) -> None:
        """Delete an entry of this user. One that is not signed by this user stays. Never raises OSError."""
        whose = self._signer.provenance(entry)
        if isinstance(whose, Trusted) and whose.mine:
            shutil.rmtree(entry.folder, ignore_errors=True)

    def quarantine(self, wrong: Broken) -> None:
        """Move an entry aside, so that nobody loads it again. Never raises OSError.

        Where it cannot be moved, or is another user's, a record in the user's folder makes it broken for look-ups.
        """
        if not self.move_aside(wrong):
            self._markers.condemn(wrong.folder)

    def move_aside(self, wrong: Broken) -> bool:
        """Move an entry aside that look-ups find broken, unless it is another user's. Never raises OSError.

        Returns:
            Whether it is out of the way, perhaps by another process that has published another one there since.
        """
        if _is_another(wrong):
            return True
        if isinstance(ownership.check(wrong.folder), ForeignOwner) or not quarantining.quarantine(wrong.folder):
            return False
        self._markers.clear_loading(wrong.folder)
        self.disk.changed()
        return True

    @contextlib.contextmanager
    def private(self, entry: Entry) -> Iterator[Path | Reason]:
        """Give a folder with a copy of an entry's files that nobody else can change; gone when the block ends.

        Owner, signature and digests are checked once more, the digests of what was copied.

        Yields:
            The folder; or why the entry must not be loaded: `Damaged`, `Untrusted` or `UnreadableNow`.
        """
        with contextlib.ExitStack() as held:
            copy: Path | Reason = self.trust(entry) or held.enter_context(private_copy(self.home, entry))
            removed = isinstance(copy, Damaged | Untrusted) and not entry.folder.exists()
            yield GraphRemoved() if removed else copy

    def constants(self, entry: Entry, folder: Path | None = None) -> tuple[TensorMeta, ...]:
        """Read the weights that a graph reads.

        Args:
            folder: with a copy of the entry's files, where they are not to be read from the entry itself.

        Raises:
            LoadError: they cannot be read, or are not those that were published.
        """
        return constants.read(entry.manifest, folder or entry.folder)

    # Use ----------------------------------------------------------------------------------------------------

    def lease(self, entry: Entry) -> Lease | GraphRemoved:
        """Keep an entry from being removed as long as this process has it loaded; or tell that it is gone."""
        return leases.take(entry.folder)

    def note_use(self, entry: Entry, how: Literal["compiled", "restored"]) -> None:
        """Record that this process loaded an entry, by which the least recently used ones are known."""
        marks.note_use(entry.folder, how)
        self.disk.changed()

    # First use ----------------------------------------------------------------------------------------------

    def first_use(self, entry: Entry) -> FirstUse:
        """Read what the first use on this machine showed; an empty result where there was none."""
        return first_use_results.read_here(entry.folder)

    def remember(self, entry: Entry, result: FirstUse) -> None:
        """Record the first-use result of this machine. A read-only store is no error."""
        first_use_results.remember(entry, result)

    # Crash markers ------------------------------------------------------------------------------------------

    def loading(self, entry: Entry) -> contextlib.AbstractContextManager[None]:
        """Mark the moments in which a bad graph could take the process down; the marker stays if it does."""
        return self._markers.loading(entry.folder)

    def note_death(self, entry: Entry) -> DiedOnceWhileLoading | None:
        """Count a process that died while it loaded the entry. To be called before the entry is loaded.

        Returns:
            What to tell the user, once for each death.
        """
        return DiedOnceWhileLoading() if self._markers.note_death(entry.folder) else None

    def died_once(self, entry: Entry) -> bool:
        """Whether a process died while it loaded the entry, and no call of it went well since."""
        return self._markers.died_once_while_loading(entry.folder)

    def note_success(self, entry: Entry) -> None:
        """Forget deaths: a call of the entry went well, so that whatever ended those processes was something else."""
        self._markers.clear_loading(entry.folder)

    def capturing(self, entry: Entry) -> contextlib.AbstractContextManager[None]:
        """Mark the capture of a call as a CUDA graph, which is never tried again here if the process dies."""
        return self._markers.capturing(entry.folder)

    def died_while_capturing(self, entry: Entry) -> bool:
        """Whether a process of this machine ended while it captured a call of this graph."""
        return self._markers.died_while_capturing(entry.folder)


def _is_another(wrong: Broken) -> bool:
    """Whether a folder holds another entry by now than the one that was found wrong, or the same one whole."""
    there = read(wrong.folder)
    if isinstance(there, UnreadableNow):
        return True
    if not isinstance(there, Entry):
        return False
    return there.text != wrong.text or (isinstance(wrong.reason, Damaged) and isinstance(check(there), Sound))
