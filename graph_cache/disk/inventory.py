"""A user's graphs as they lie on the disk: listed, pinned, removed, and kept within the budget.

One process at a time makes room and puts its graph in its place, so that the budget holds whatever they all do at once.
Nobody waits for that longer than a minute, and where no lock can be had graphs are published all the same.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...common.memory import in_words
from ..crash import leftovers
from ..entry import Entry, read
from ..files import despite_removals
from ..trust import ownership
from ..trust.signing import Signer, Trusted
from . import budget, leases, marks, removal
from .facts import KnownFacts
from .listing import Listed, bytes_on_disk, scan
from .removal import Removed, may_be_removed

log = logging.getLogger("onegraph.graph_cache")

LOCK_FILE = "budget.lock"
_PATIENCE, _PAUSE = 60.0, 0.005  # seconds

# none: it cannot be made here, or the system has none. busy: others held it all the time.
Lock = Literal["held", "none", "busy"]

# What a call is about besides the user's graph folder and the folders that are named: all that are known, or nothing.
Scope = Literal["known", "named"]


@dataclass(frozen=True)
class Pruned:
    """What pruning did, or would do.

    Attributes:
        removed: entries.
        used: entries that would have been removed and are in use.
        before, after: bytes that count for the budget.
        limit: bytes; None: there is no limit.
    """

    removed: tuple[Listed, ...]
    used: tuple[Listed, ...]
    before: int
    after: int
    limit: int | None


@dataclass(frozen=True)
class Due:
    """What pruning removes.

    Attributes:
        limit: bytes, where there is one.
        judge: whether a group of entries is to go, given the bytes that all take by then.
    """

    limit: int | None
    judge: Callable[[budget.Group, int], bool]


class Inventory:
    """All graphs of one user.

    Args:
        home: the user's graph folder.
    """

    def __init__(self, home: Path, signer: Signer) -> None:
        self._home = home
        self._signer = signer
        self._known_roots: dict[str, None] = {}  # that this process learnt
        self._lock = threading.Lock()
        self.on_change: Callable[[], None] | None = None  # called when this process changed something

    # Listing ------------------------------------------------------------------------------------------------

    def know(self, checkpoint: Path | None) -> None:
        """Learn of a checkpoint beside which graphs may lie, so that these count from now on."""
        if checkpoint is not None and checkpoint.is_file():
            self._known_roots[str(checkpoint.parent)] = None

    def roots(self) -> list[Path]:
        """The folders with checkpoints beside which this user is known to have graphs."""
        return [Path(root) for root in self._all_roots(KnownFacts(self._home, self._signer))]

    def entries(self, folders: Iterable[Path] = ()) -> list[Listed]:
        """List the entries in the user's graph folder and beside the checkpoints in folders, quarantined ones too."""
        return self._scan(KnownFacts(self._home, self._signer), [os.path.abspath(one) for one in folders])  # noqa: PTH100

    def all_entries(
        self, folders: Iterable[Path] = (), visited: list[str] | None = None, found: list[Listed] | None = None
    ) -> list[Listed]:
        """List the entries in all folders that are known, and in these.

        Args:
            visited: takes the folders that were read, which all have to be as they were for the list to be so.
            found: takes each entry as soon as it is found.
        """
        known = KnownFacts(self._home, self._signer)
        roots = [*self._all_roots(known), *(os.path.abspath(folder) for folder in folders)]  # noqa: PTH100
        return self._scan(known, roots, visited, found)

    def counted(self, entries: Iterable[Listed]) -> list[Listed]:
        """Choose those that count for the budget and may be removed: this user's own, where they can be written, and
        those that were fetched from remote stores.

        A quarantined one counts whatever its manifest says, since only this user's processes make such folders there.
        """
        may: dict[str, bool] = {}
        found = []
        for one in entries:
            component = os.path.dirname(one.folder)  # noqa: PTH120
            if one.facts.signed_by != "me" and not (one.quarantined or one.fetched):
                continue
            if component not in may:
                may[component] = may_be_removed(Path(component))
            if may[component]:
                found.append(one)
        return found

    def _all_roots(self, known: KnownFacts) -> list[str]:
        return [*dict.fromkeys([*known.roots, *self._known_roots])]

    def _scan(
        self,
        known: KnownFacts,
        roots: list[str],
        visited: list[str] | None = None,
        found: list[Listed] | None = None,
    ) -> list[Listed]:
        found = [] if found is None else found
        found.extend(scan(str(self._home), roots, known, [] if visited is None else visited))
        known.save((one.folder for one in found), [str(self._home), *roots])
        return found

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
        with self._locked() as lock:
            return self._remove(entry, lock)

    def prune(self, due: Due, folders: Iterable[Path] = (), scope: Scope = "known") -> Pruned:
        """Remove what is due, from the user's graph folder and these. Never raises OSError."""
        folders = [*folders]
        with self._locked() as lock:
            self._sweep(folders)
            return _prune(self._counted(folders, scope), due, lambda one: self._remove(one, lock))

    def would_prune(self, due: Due, folders: Iterable[Path] = (), scope: Scope = "known") -> Pruned:
        """Tell what `prune` would remove. Changes nothing but what is known of graphs."""
        return _prune(self._counted(folders, scope), due, lambda one: "used" if one.in_use else "removed")

    def _counted(self, folders: Iterable[Path], scope: Scope) -> list[Listed]:
        return self.counted(self.all_entries(folders) if scope == "known" else self.entries(folders))

    @property
    def allowance(self) -> budget.Budget:
        """How many bytes these graphs may take."""
        return budget.current(self._home)

    @contextlib.contextmanager
    def room(self, staged: Path, final: Path) -> Iterator[None]:
        """Make room for a graph that is about to be renamed from `staged` to `final`, as far as others may go.

        Nobody else publishes until the block ends. Never raises for the budget's sake.
        """
        limit = budget.limit(self._home)
        with self._locked() as lock:
            if limit is not None and lock != "busy":
                try:
                    self._make_room(staged, final, limit, lock)
                except Exception:  # the graph took a compile, and is worth more than the budget
                    log.exception("no room was made for %s", final)
            yield
        self.changed()

    def _make_room(self, staged: Path, final: Path, limit: int, lock: Lock) -> None:
        known = KnownFacts(self._home, self._signer)
        if final.parents[2] != self._home:
            known.add_roots([str(final.parents[3])])
        known.add_roots(self._known_roots)
        counted = self.counted(self._scan(known, known.roots))
        files = [one.lstat() for one in staged.iterdir() if one.name != leftovers.OWNER_FILE]
        kept = {(one.st_dev, one.st_ino) for one in files}
        new = sum(one.st_size for one in files if one.st_nlink == 1)
        others = [one for one in counted if kept.isdisjoint(file for file, _, _ in one.files)]
        new += bytes_on_disk(counted) - bytes_on_disk(others)
        done = _prune(others, over(limit - new), lambda one: self._remove(one, lock))
        for one in done.removed:
            log.info("removed %s, since graphs may take %s (%s)", one.folder, in_words(limit), budget.VARIABLE)
        if done.after + new > limit:
            log.warning(
                "graphs take %s, more than the %s that they may (%s): the others are pinned or in use",
                in_words(done.after + new), in_words(limit), budget.VARIABLE,
            )  # fmt: skip

    def _remove(self, entry: Listed, lock: Lock) -> Removed:
        if not entry.quarantined and not self._is_mine(entry):
            return "kept" if entry.path.exists() else "gone"
        done = removal.remove(entry.path, entry.used)
        if done == "removed":
            self.changed()
        if done == "removed" and lock == "held":
            removal.remove_empty(entry.path.parent)
        return done

    def _is_mine(self, entry: Listed) -> bool:
        if entry.fetched and ownership.check(entry.path) is None and ownership.is_own(entry.path):
            return True  # whatever became of its publisher
        there = read(entry.path)
        if not isinstance(there, Entry):
            return False
        whose = self._signer.provenance(there)
        return isinstance(whose, Trusted) and whose.mine

    def _sweep(self, folders: Iterable[Path]) -> None:
        """Remove what removals left behind that died in between."""
        for root in [*self.roots(), *folders]:
            for location in root.glob("*.graphs/*/"):
                leftovers.sweep_staging(location)
        for location in self._home.glob("*/"):
            leftovers.sweep_staging(location)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[Lock]:
        """Hold the lock of all publishing and removing, if it can be had before long."""
        with self._lock, contextlib.ExitStack() as held:
            try:
                handle = despite_removals(self._open_lock)
            except OSError as error:
                log.debug("no lock for the budget: %s", error)
                yield "none"
                return
            held.callback(os.close, handle)
            yield leases.wait_for(handle, _PATIENCE, _PAUSE)

    def _open_lock(self) -> int:
        self._home.mkdir(mode=0o755, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
        return os.open(self._home / LOCK_FILE, flags, 0o600)


def over(limit: int | None) -> Due:
    """What is due by a budget of so many bytes; None: nothing is."""
    return Due(limit, lambda group, total: limit is not None and total > limit)


def unusable() -> Due:
    """What is due as of no use here, whatever the budget."""
    return Due(None, lambda group, total: all(one.unusable is not None for one in group.entries))


def _prune(counted: Sequence[Listed], due: Due, remove: Callable[[Listed], Removed]) -> Pruned:
    total = before = bytes_on_disk(counted)
    removed: list[Listed] = []
    used: list[Listed] = []
    for group in budget.groups(counted):
        if not due.judge(group, total):
            continue
        if any(one.in_use for one in group.entries):
            used += group.entries
            continue
        outcomes = [(one, remove(one)) for one in group.entries]
        used += [one for one, how in outcomes if how == "used"]
        left = [one for one, how in outcomes if how in ("used", "kept")]
        removed += [one for one, how in outcomes if how == "removed"]
        total -= bytes_on_disk(group.entries) - bytes_on_disk(left)
    return Pruned(tuple(removed), tuple(used), before, total, due.limit)
