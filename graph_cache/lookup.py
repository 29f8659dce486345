"""Looking up a graph. Reads the store and changes nothing on the disk.

An entry serves a key only if it is this user's own or a trusted publisher's (see `signing`), its manifest holds the
very same key, `differs` has no objection, all its files are sound, and no two processes of this machine in a row died
while they loaded it. This model's own entries come first, then other models': graphs hold no weights, so they serve
every model of the architecture. One that equals what this model quarantined for what it did, not for damage, is passed
over. A publisher's entry in a folder that this user does not own or cannot write counts as another model's: it is
copied, and stays as it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..common.errors import in_brief
from ..common.reasons import DiedWhileLoading, GraphRemoved, NoGraph, OtherKey, Reason, UnreadableNow
from .crash.markers import Markers
from .crash.quarantine import equals_one, of_key
from .entry import Entry
from .integrity import Sound, check
from .key import GraphKey, difference
from .layout import Layout, listed, listed_now, of_digest, visible
from .manifest import Manifest
from .model_hash import ModelSource
from .trust.signing import Signer
from .trust.trusted_entry import Faulty, Known, read_trusted

_MOST_COMPARED = 100  # entries that a miss reads to tell the nearest, which each run of a workflow may ask for again

# Why an entry of the wanted key cannot be used here all the same, or None.
Differs = Callable[[Manifest], Reason | None]


def no_objection(manifest: Manifest) -> None:
    """Accept every entry of the wanted key."""


@dataclass(frozen=True)
class Hit:
    """A sound entry for the key.

    Attributes:
        foreign: whether it is another model's or a publisher's; `Store.share_with_model` makes it this model's too.
    """

    entry: Entry
    foreign: bool = False


@dataclass(frozen=True)
class Miss:
    """No entry for the key. The reason is that of the nearest entry."""

    reason: Reason


@dataclass(frozen=True)
class Broken:
    """An entry for the key that must not be loaded: `Store.move_aside` and `Store.quarantine` move it aside.

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


@dataclass(frozen=True)
class Lookup:
    """The places that look-ups read.

    Attributes:
        layout: where entries may live.
        markers: which entries took a process down.
        signer: which entries are this user's own or published; others are passed over and stay as they are.
    """

    layout: Layout
    markers: Markers
    signer: Signer

    def lookup(self, key: GraphKey, source: ModelSource, neighbours: Iterable[Path], differs: Differs) -> Judged:
        """Look for the entry of a key; see `Store.lookup`.

        Other models' broken entries are passed over: only a look-up for their own model judges them.
        """
        names: dict[Path, list[str]] = {}
        missed: dict[Path, list[Reason]] = {}
        unavailable: list[Unavailable] = []
        published: list[Hit] = []
        broken: list[Broken] = []
        for location in self.layout.locations(source):
            component = location / key.component
            try:
                names[component] = listed(component)
            except OSError as error:
                unavailable.append(Unavailable(component, UnreadableNow(component.name, in_brief(error))))
                continue
            missed[component] = []
            for judged in self._judge_all(component, names[component], key, differs):
                if isinstance(judged, Hit) and judged.foreign:
                    published.append(judged)
                elif isinstance(judged, Hit):  # also beside a broken one, which may lie where it cannot be removed
                    return judged
                elif isinstance(judged, Broken):
                    broken.append(judged)
                elif isinstance(judged, Unavailable):
                    unavailable.append(judged)
                else:
                    missed[component].append(judged.reason)
        if broken:
            return broken[0]
        bad = [entry for component in names for entry in of_key(component, names[component], key, self.signer)]
        for judged in published:
            if not equals_one(judged.entry, bad):
                return judged
        if unavailable:  # nothing may take its place
            return unavailable[0]
        for location in self.layout.other_models(source, neighbours):
            component = location / key.component
            for judged in self._judge_all(component, listed_now(component), key, differs):
                if isinstance(judged, Hit) and not equals_one(judged.entry, bad):
                    return Hit(judged.entry, foreign=True)
        for component, reasons in missed.items():
            nearest = None if reasons else self._nearest(component, names[component], key)
            if reasons or nearest is not None:
                return Miss(NoGraph(nearest) if nearest is not None else reasons[0])
        return Miss(NoGraph())

    def sibling(self, key: GraphKey, source: ModelSource, neighbours: Iterable[Path], differs: Differs) -> Entry | None:
        """Look for a sound entry that differs from the key in the shapes alone; see `Store.sibling`."""
        wanted = _without_shapes(key.fields())
        for location in [*self.layout.locations(source), *self.layout.other_models(source, neighbours)]:
            component = location / key.component
            for found in self._known(component, sorted(visible(listed_now(component)))):
                manifest = found.entry.manifest
                if _without_shapes(manifest.key) != wanted or differs(manifest) is not None:
                    continue
                if found.trusted.mine and isinstance(check(found.entry), Sound):
                    return found.entry
        return None

    def keys(
        self, component: str, architectures: Collection[str], source: ModelSource, neighbours: Iterable[Path]
    ) -> list[dict[str, Any]]:
        """Read the keys of a component's entries of some architectures; see `Store.keys`."""
        found: dict[str, dict[str, Any]] = {}
        left = _MOST_COMPARED
        for location in [*self.layout.locations(source), *self.layout.other_models(source, neighbours)]:
            names = sorted(visible(listed_now(location / component)))[:left]
            left -= len(names)
            for known in self._known(location / component, names):
                key = known.entry.manifest.key
                if key.get("architecture") in architectures:
                    found.setdefault(json.dumps(key, sort_keys=True), key)
            if {key["architecture"] for key in found.values()} == {*architectures} or not left:
                break
        return [*found.values()]

    def nearest(self, key: GraphKey, source: ModelSource, neighbours: Iterable[Path]) -> Entry | None:
        """Read the entry whose key differs in the fewest fields; see `Store.nearest`."""
        left = _MOST_COMPARED
        best: tuple[int, int, Entry | None] = (len(key.fields()), 0, None)
        wanted = key.fields()
        for number, location in enumerate(
            [*self.layout.locations(source), *self.layout.other_models(source, neighbours)]
        ):
            names = sorted(visible(listed_now(location / key.component)))[:left]
            left -= len(names)
            for known in self._known(location / key.component, names):
                found = known.entry.manifest.key
                differing = sum(found.get(name) != value for name, value in wanted.items())
                best = min(best, (differing, number, known.entry), key=lambda one: one[:2])
        return best[2]

    def _nearest(self, component: Path, names: list[str], key: GraphKey) -> str | None:
        """Describe the smallest difference from a key among a component's entries; None where none differs."""
        read = self._known(component, sorted(visible(names))[:_MOST_COMPARED])
        found = (difference(key.fields(), one.entry.manifest.key) for one in read)
        return min(filter(None, found), key=len, default=None)

    def _known(self, component: Path, names: list[str]) -> Iterator[Known]:
        """Read those of a component's entries that may be loaded, which takes half a millisecond each."""
        for name in names:
            found = read_trusted(component / name, self.signer)
            if isinstance(found, Known):
                yield found

    def _judge_all(self, component: Path, names: list[str], key: GraphKey, differs: Differs) -> Iterator[Judged]:
        for name in visible(of_digest(names, key.digest)):
            judged = self._judge(component / name, key, differs)
            removed = not isinstance(judged, Hit) and not os.path.lexists(component / name)
            yield Miss(GraphRemoved()) if removed else judged

    def _judge(self, folder: Path, key: GraphKey, differs: Differs) -> Judged:
        found = read_trusted(folder, self.signer)
        if isinstance(found, UnreadableNow):
            return Unavailable(folder, found)
        if isinstance(found, Faulty):
            return Broken(folder, found.reason) if found.mine else Miss(found.reason)
        if not isinstance(found, Known):  # it is as none, and stays as it is
            return Miss(found)
        entry, trusted = found.entry, found.trusted
        if entry.manifest.key != key.fields():
            return Miss(OtherKey(difference(key.fields(), entry.manifest.key)))
        objection = differs(entry.manifest)
        if objection is not None:
            return Miss(objection)
        state = check(entry)
        if isinstance(state, UnreadableNow):
            return Unavailable(folder, state) if trusted.mine or not _is_closed_here(entry) else Miss(state)
        if not isinstance(state, Sound):
            return Broken.of(entry, state) if trusted.mine else Miss(state)
        if self.markers.died_while_loading(folder):
            return Broken.of(entry, DiedWhileLoading()) if trusted.mine else Miss(DiedWhileLoading())
        return Hit(entry, foreign=not trusted.own)


def _is_closed_here(entry: Entry) -> bool:
    """Whether a file of an entry may not be read by this user, which another user's may be for ever."""
    return not all(os.access(entry.folder / name, os.R_OK) for name in entry.manifest.files)


def _without_shapes(fields: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if name != "shapes"}
