"""The store: every entry that one user can reach, and the one door to it.

How a graph gets into a process:

1. `lookup` finds its entry. It changes nothing.
2. A hit in another model's folder is adopted by `adopt`; a broken entry is quarantined by `quarantine`.
3. After a miss, a compile fills a folder from `staging`, and `publish` makes it an entry by one rename.
4. `loading` marks the moments in which a bad graph could take the process down. `note_death` counts a marker that
   stayed; the second in a row makes the entry broken for the next lookup. `note_success` forgets the first.
5. `remember` writes what the first use showed beside the manifest; `first_use` reads it in later processes.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..common.reasons import Damaged, DiedOnceWhileLoading, UnreadableNow
from . import first_use, leftovers
from . import publish as publishing
from . import quarantine as quarantining
from .entry import Entry, read
from .first_use import FirstUse
from .integrity import Sound, check
from .key import GraphKey
from .layout import COMPILER_CACHE, Layout, machine_id, user_folder
from .lookup import Differs, Hit, Judged, Lookup, no_objection
from .markers import Markers
from .model_hash import ModelSource
from .publish import NewEntry

log = logging.getLogger("onegraph.graph_cache")


class Store:
    """All entries reachable from one user: beside checkpoints and in the user's graph folder.

    Args:
        home: the user's graph folder, where it is not the usual one.
    """

    def __init__(self, home: Path | None = None) -> None:
        self.home = home or user_folder()
        self.compiler_cache = self.home / COMPILER_CACHE
        self.compile_times = self.home / f"{machine_id()}-compile-times.json"
        self._layout = Layout(self.home)
        self._markers = Markers(self.home)
        self._lookup = Lookup(self._layout, self._markers)

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

    def check_all(self, neighbours: Iterable[Path] = ()) -> Iterator[tuple[Path, Sound | Damaged | UnreadableNow]]:
        """Check the files of every entry, and name those whose manifest cannot be read."""
        for folder in self._layout.entry_folders(neighbours):
            entry = read(folder)
            yield folder, check(entry) if isinstance(entry, Entry) else entry

    # Changing -----------------------------------------------------------------------------------------------

    def staging(self, source: ModelSource) -> contextlib.AbstractContextManager[Path]:
        """Give an empty folder for a new graph; gone when the block ends. Raises OSError.

        It lies on the file system of the model's graphs, or in the user's folder where there is no room.
        """
        return publishing.staging(self.locations(source))

    def sweep(self, locations: Iterable[Path]) -> None:
        """Remove what dead processes left behind in folders of `locations` and in the user's. Never raises OSError."""
        for location in locations:
            leftovers.sweep_staging(location)
            leftovers.sweep_temporaries(location.glob("*/*/.*"))
        leftovers.sweep_temporaries(self.home.glob(".*"))

    def publish(self, key: GraphKey, staged: Path, new: NewEntry) -> Entry:
        """Make the files in a folder from `staging` an entry.

        Returns:
            The new entry; or the same graph where another process published it meanwhile.

        Raises:
            OSError: the files cannot be written or moved.
        """
        return publishing.publish(key, staged, new)

    def adopt(self, hit: Hit, key: GraphKey, source: ModelSource) -> Entry:
        """Take another model's entry over into this model's folder, by hard links where they work.

        Returns:
            This model's entry; the other model's where nothing can be written.
        """
        if not hit.foreign:
            return hit.entry
        try:
            with self.staging(source) as staged:
                return publishing.adopt(key, staged, hit.entry)
        except OSError as error:
            log.debug("%s is used where it is: %s", hit.entry.folder, error)
            return hit.entry

    def quarantine(self, folder: Path) -> None:
        """Move an entry aside, so that nobody loads it again. Never raises OSError."""
        self._markers.clear_loading(folder)
        quarantining.quarantine(folder)

    # First use ----------------------------------------------------------------------------------------------

    def first_use(self, entry: Entry) -> FirstUse:
        """Read what the first use on this machine showed; an empty result where there was none."""
        return first_use.read_here(entry)

    def remember(self, entry: Entry, result: FirstUse) -> None:
        """Record the first-use result of this machine. A read-only store is no error."""
        first_use.remember(entry, result)

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

    def note_success(self, entry: Entry) -> None:
        """Forget deaths: a call of the entry went well, so that whatever ended those processes was something else."""
        self._markers.clear_loading(entry.folder)

    def capturing(self, entry: Entry) -> contextlib.AbstractContextManager[None]:
        """Mark the capture of a call as a CUDA graph, which is never tried again here if the process dies."""
        return self._markers.capturing(entry.folder)

    def died_while_capturing(self, entry: Entry) -> bool:
        """Whether a process of this machine ended while it captured a call of this graph."""
        return self._markers.died_while_capturing(entry.folder)
