"""A user's graphs as they lie on the disk: listed, pinned, removed, and kept within the budget.

One process at a time makes room and puts its graph in its place, so that the budget holds whatever they all do at once.
Nobody waits for that longer than a minute, and where no lock can be had graphs are published all the same.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...common.log import logger
from ...common.memory import in_words
from ..copies import remove_copy
from ..crash import leftovers
from ..home import Home, Removed
from ..machine_notes import MachineNotes
from . import budget, leases, marks
from .listing import Listed, bytes_below, bytes_on_disk
from .scan import Scan

log = logger("graph_cache")

LOCK_FILE = "budget.lock"
_PATIENCE, _PAUSE = 60.0, 0.005  # seconds

# none: it cannot be made here, or the system has none. busy: others held it all the time.
Lock = Literal["held", "none", "busy"]
# Whether an entry is to be removed, given the bytes that all take by then.
Due = Callable[[Listed, int], bool]


@dataclass(frozen=True)
class Pruned:
    """What pruning did, or would do.

    Attributes:
        removed: entries.
        used: entries that would have been removed and are in use.
        before, after: bytes that count.
    """

    removed: tuple[Listed, ...]
    used: tuple[Listed, ...]
    before: int
    after: int


class Inventory:
    """All graphs of one user."""

    def __init__(self, home: Home, notes: MachineNotes) -> None:
        self._home = home
        self._notes = notes
        self._scan = Scan(home.signer)
        self._lock = threading.Lock()
        self._first: threading.Thread | None = None
        self._found: list[Listed] = []  # by the first list, which may be under way
        self.on_change: Callable[[], None] | None = None  # called when this process changed something

    # Listing ------------------------------------------------------------------------------------------------

    def folders(self) -> list[Path]:
        """Return the folders with checkpoints beside which this user is known to have copies of graphs."""
        return [Path(folder) for folder in self._notes.read().folders]

    def entries(self) -> list[Listed]:
        """List the entries of the home, quarantined ones too."""
        return self.scan(())

    def copies(self, folders: Iterable[Path] | None = None) -> list[Listed]:
        """List the copies beside the checkpoints in some folders, or in all that are known."""
        return [one for one in self.scan(self.folders() if folders is None else folders) if one.beside]

    def scan(self, folders: Iterable[Path]) -> list[Listed]:
        """List the entries of the home, and the copies beside the checkpoints in folders."""
        return self._scan.entries(self._home.graphs, folders, [])

    def scan_soon(self, folders: Sequence[Path], seconds: float) -> tuple[list[Listed], bool]:
        """As `scan`; where the first list takes longer than some seconds, give what it found so far.

        Returns:
            The entries, and whether these are all.
        """
        with self._lock:
            if self._first is None:
                args = self._home.graphs, folders, self._found
                self._first = threading.Thread(target=self._scan.entries, args=args, daemon=True)
                self._first.start()
        self._first.join(seconds)
        return ([*self._found], False) if self._first.is_alive() else (self.scan(folders), True)

    @property
    def reads(self) -> int:
        """How many lists of this process had to read an entry anew."""
        return self._scan.reads

    # Changing -----------------------------------------------------------------------------------------------

    def changed(self) -> None:
        """Tell who wants to know that an entry came, was used, or is gone. Never raises."""
        if self.on_change is not None:
            try:
                self.on_change()
            except Exception:  # whoever shows lists is none of the store's business
                log.debug("a change could not be told", exc_info=True)

    def pin(self, entry: Listed) -> None:
        """Keep an entry whatever the budget says. Raises OSError."""
        marks.pin(entry.path)
        self.changed()

    def unpin(self, entry: Listed) -> None:
        """Let the budget decide again. Raises OSError."""
        marks.unpin(entry.path)
        self.changed()

    def delete(self, entry: Listed) -> Removed:
        """Remove an entry that this user asked to remove, pinned or not, unless it is in use. Never raises OSError."""
        with self._locked():
            return self._remove(entry)

    def prune(self, due: Due) -> Pruned:
        """Remove what is due from the home. Never raises OSError."""
        with self._locked():
            self._home.sweep()
            return _prune(self.entries(), due, self._remove)

    def would_prune(self, due: Due) -> Pruned:
        """Tell what `prune` would remove. Changes nothing."""
        return _prune(self.entries(), due, lambda one: "used" if one.in_use else "removed")

    def prune_copies(self, due: Due, folders: Iterable[Path] | None, dry_run: bool) -> Pruned:
        """Remove what is due of the copies beside checkpoints, or tell what would be removed."""
        remove: Callable[[Listed], Removed] = (lambda one: "removed") if dry_run else self._remove
        return _prune(self.copies(folders), due, remove)

    @property
    def allowance(self) -> budget.Budget:
        """How many bytes the graphs of the home may take."""
        return budget.current(self._home.user)

    @contextlib.contextmanager
    def room(self, staged: Path, final: Path) -> Iterator[None]:
        """Make room for a graph that is about to be renamed from `staged` to `final`, as far as others may go.

        Nobody else publishes until the block ends. Never raises for the budget's sake.
        """
        limit = self.allowance.bytes
        with self._locked() as lock:
            if limit is not None and lock != "busy":
                try:
                    self._make_room(staged, final, limit)
                except Exception:  # the graph took a compile, and is worth more than the budget
                    log.exception("no room was made for %s", final)
            yield
        self.changed()

    def _make_room(self, staged: Path, final: Path, limit: int) -> None:
        new = sum(one.lstat().st_size for one in staged.iterdir() if one.name != leftovers.OWNER_FILE)
        if bytes_below(self._home.graphs) + new <= limit:  # which takes no manifest
            return
        others = [one for one in self.entries() if one.folder != str(final)]
        done = _prune(others, over(limit - new), self._remove)
        for one in done.removed:
            log.info("removed %s, since graphs may take %s (%s)", one.folder, in_words(limit), budget.VARIABLE)
        if done.after + new > limit:
            log.warning(
                "graphs take %s, more than the %s that they may (%s): the others are pinned or in use",
                in_words(done.after + new), in_words(limit), budget.VARIABLE,
            )  # fmt: skip

    def _remove(self, entry: Listed) -> Removed:
        if entry.beside:
            removed: Removed = "removed" if remove_copy(entry.path, self._home.signer) else "kept"
        else:
            removed = self._home.remove(entry.path, entry.used)
        if removed == "removed":
            self.changed()
        return removed

    @contextlib.contextmanager
    def _locked(self) -> Iterator[Lock]:
        """Hold the lock of all publishing and removing, if it can be had before long."""
        with self._lock, contextlib.ExitStack() as held:
            try:
                handle = self._open_lock()
            except OSError as error:
                log.debug("no lock for the budget: %s", error)
                yield "none"
                return
            held.callback(os.close, handle)
            yield leases.wait_for(handle, _PATIENCE, _PAUSE)

    def _open_lock(self) -> int:
        self._home.make()
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
        return os.open(self._home.folder / LOCK_FILE, flags, 0o600)


def over(limit: int | None) -> Due:
    """Return the test of what exceeds a budget of so many bytes; None: nothing does."""
    return lambda entry, total: limit is not None and total > limit


def unusable() -> Due:
    """Return the test of what is of no use here, whatever the budget."""
    return lambda entry, total: entry.unusable is not None


def _prune(entries: Sequence[Listed], due: Due, remove: Callable[[Listed], Removed]) -> Pruned:
    total = before = bytes_on_disk(entries)
    removed: list[Listed] = []
    used: list[Listed] = []
    for one in sorted((one for one in entries if not one.pinned), key=lambda one: (_rank(one), one.used)):
        if not due(one, total):
            continue
        how = "used" if one.in_use else remove(one)
        used += [one] if how == "used" else []
        removed += [one] if how == "removed" else []
        total -= one.bytes if how in ("removed", "gone") else 0
    return Pruned(tuple(removed), tuple(used), before, total)


def _rank(one: Listed) -> int:
    """Which entries go first, whenever they were used."""
    if one.quarantined:
        return 0
    return 1 if one.unusable is not None else 2
