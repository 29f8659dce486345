"""Looking up a graph in the home. Reads and changes nothing on the disk.

An entry serves a key only if it is this user's own or a trusted publisher's (see `signing`), its manifest holds the
very same key, `differs` has no objection, all its files are sound, and no two processes of this machine in a row died
while they loaded it. Graphs hold no weights, so they serve every model of the architecture.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.errors import in_brief
from ..common.reasons import DiedWhileLoading, GraphRemoved, NoGraph, OtherKey, Reason, UnreadableNow
from .crash.markers import Markers
from .disk import marks
from .entry import Entry
from .home import Home
from .integrity import Sound, check
from .key import GraphKey, difference
from .layout import of_digest, visible
from .manifest import Manifest
from .trust.signing import FaultyEntry, TrustedEntry, read_trusted

if TYPE_CHECKING:
    from .sources.source import Source

MOST_COMPARED = 100  # entries that a miss reads to tell the nearest, which each run of a workflow may ask for again

# Why an entry of the wanted key cannot be used here all the same, or None.
Differs = Callable[[Manifest], Reason | None]


def no_objection(manifest: Manifest) -> None:
    """Accept every entry of the wanted key."""


@dataclass(frozen=True)
class Hit:
    """A sound entry for the key.

    Attributes:
        source: where it lies, if it is to be copied to the home first (`Store.take`).
    """

    entry: Entry
    source: Source | None = None


@dataclass(frozen=True)
class Miss:
    """No entry for the key. The reason is that of the nearest entry."""

    reason: Reason


@dataclass(frozen=True)
class Broken:
    """An entry for the key that must not be loaded: `Store.quarantine` moves it aside.

    Attributes:
        text: the manifest's bytes, which tell whether the folder still holds what was judged; none if unreadable.
    """

    folder: Path
    reason: Reason
    text: bytes = field(default=b"", compare=False, repr=False)

    @classmethod
    def of(cls, entry: Entry, reason: Reason) -> Broken:
        """Judge an entry that was found wrong after its look-up."""
        return cls(entry.folder, reason, entry.text)


@dataclass(frozen=True)
class Unavailable:
    """An entry that may be the key's, or a folder of them, cannot be read now. A later look-up may find it."""

    folder: Path
    reason: UnreadableNow


Judged = Hit | Miss | Broken | Unavailable
_TOLD_FIRST = (Broken, Unavailable, Miss)  # of several entries without a hit


@dataclass(frozen=True)
class Lookup:
    """Looks into one home.

    Attributes:
        markers: which entries took a process down.
    """

    home: Home
    markers: Markers

    def find(self, key: GraphKey, differs: Differs, model: str = "") -> Judged:
        """Look for the entry of a key; see `Store.find`."""
        component = self.home.graphs / key.component
        try:
            names = self.home.names(key.component)
        except OSError as error:
            return Unavailable(component, UnreadableNow(component.name, in_brief(error)))
        others: list[Judged] = []
        for one in key.alternatives:
            for name in visible(of_digest(names, one.digest)):
                judged = self._judge(component / name, one, differs)
                if isinstance(judged, Hit):  # also beside a broken one
                    return judged
                others.append(judged if os.path.lexists(component / name) else Miss(GraphRemoved()))
        if not others:
            return Miss(NoGraph(self._nearest(key, model)))
        return min(others, key=lambda judged: _TOLD_FIRST.index(type(judged)))

    def _nearest(self, key: GraphKey, model: str) -> str:
        """Describe the smallest difference from a key among the entries of its architecture, and those that served the
        model; empty without any.
        """
        entries = itertools.islice(self.home.trusted(key.component), MOST_COMPARED)
        differences = [
            difference(key.fields(), entry.manifest.key)
            for entry in entries
            if entry.manifest.key.get("architecture") == key.architecture
            or model in {served.digest for served in marks.models(entry.folder)}
        ]
        return min(filter(None, differences), key=len, default="")

    def _judge(self, folder: Path, key: GraphKey, differs: Differs) -> Judged:
        verdict = read_trusted(folder, self.home.signer)
        if isinstance(verdict, UnreadableNow):
            return Unavailable(folder, verdict)
        if isinstance(verdict, FaultyEntry):
            return Broken(folder, verdict.reason)
        if not isinstance(verdict, TrustedEntry):  # it is as none, and stays as it is
            return Miss(verdict)
        entry = verdict.entry
        if entry.manifest.key != key.fields():
            return Miss(OtherKey(difference(key.fields(), entry.manifest.key)))
        objection = differs(entry.manifest)
        if objection is not None:
            return Miss(objection)
        state = check(entry)
        if isinstance(state, UnreadableNow):
            return Unavailable(folder, state)
        if not isinstance(state, Sound):
            return Broken.of(entry, state)
        if self.markers.died_while_loading(folder):
            return Broken.of(entry, DiedWhileLoading())
        return Hit(entry)
