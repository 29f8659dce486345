"""What commands and pages tell of graphs on the disk: one entry, all of them, and which one a name means."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from ...common.reasons import Damaged, Reason, UnknownState, Untrusted
from ...common.remedies import sentences
from ...common.stored_reasons import to_json
from ..manifest import Strict
from .inventory import Inventory
from .listing import Listed, bytes_on_disk

_LEAST_NAMED = 4  # hex digits of an id or a key that are a name

ORDERS: dict[str, Callable[[Listed], Any]] = {
    "model": lambda one: one.model,
    "component": lambda one: one.facts.component,
    "size": lambda one: one.facts.graph_bytes,
    "bytes": lambda one: one.bytes,
    "used": lambda one: one.used,
    "restores": lambda one: one.uses,
    "speed": lambda one: one.facts.speedup or 0,
    "state": lambda one: one.facts.state,
}
LARGEST_FIRST = frozenset(("size", "bytes", "used", "restores", "speed"))  # unless another order is asked for


def state_of(entry: Listed) -> str:
    """Name the state of an entry: `quarantined`, `signed`, `stale` (of no use here), or why it is not loaded."""
    if entry.quarantined:
        return "quarantined"
    if entry.facts.signed_by and entry.unusable is not None:
        return "stale"
    return "signed" if entry.facts.signed_by else entry.facts.code


class Description(Strict):
    """A graph as commands and pages describe it to programs. Times are ISO 8601 in UTC.

    Attributes:
        models: that it served, the first one first, which `model` is.
        beside: whether it is a copy beside a checkpoint, which nothing loads from there and the budget does not count.
    """

    id: str
    key: str
    model: str
    models: list[str]
    component: str
    shapes: str
    dtype: str
    backend: str
    target: dict[str, str]
    state: str
    reason: dict[str, Any] | None
    signed: str
    bytes: int
    graph_bytes: int
    to_eager: float | None
    speedup: float | None
    compile_seconds: float
    created: str
    made_by: str
    unmeasured: bool
    used: str
    restores: int
    pinned: bool
    in_use: bool
    beside: bool


def describe(entry: Listed) -> Description:
    """Describe an entry for programs."""
    facts = entry.facts
    why = entry.unusable
    return Description(
        id=entry.id,
        key=facts.digest,
        model=entry.model,
        models=[model.name for model in entry.models],
        component=facts.component,
        shapes=facts.label,
        dtype=facts.dtype,
        backend=facts.backend,
        target=dict(facts.target),
        state=state_of(entry),
        reason=None if why is None else {**to_json(why), "text": why.text},
        signed=facts.state,
        bytes=entry.bytes,
        graph_bytes=facts.graph_bytes,
        to_eager=facts.to_eager,
        speedup=facts.speedup,
        compile_seconds=facts.compile_seconds,
        created=facts.created,
        made_by=facts.made_by,
        unmeasured=facts.unmeasured,
        used=used_at(entry),
        restores=entry.uses,
        pinned=entry.pinned,
        in_use=entry.in_use,
        beside=entry.beside,
    )


def used_at(entry: Listed) -> str:
    """Return when an entry was used last, ISO 8601 in UTC."""
    return datetime.fromtimestamp(entry.used, timezone.utc).isoformat(timespec="seconds")


_DAMAGED = frozenset(kind.code for kind in Damaged.__subclasses__())
STATES = (
    *("signed", "stale", "quarantined", "pinned", "newer_manifest", "older_manifest"),
    *sorted({kind.code for kind in Untrusted.__subclasses__()} | _DAMAGED),
)


def remedy(entry: Listed) -> str | None:
    """Name what to do about an entry that is of no use here, as `graphRemedies` do; None: nothing is wrong."""
    why = "quarantined" if entry.quarantined else entry.facts.code
    if not why and entry.unusable is not None:
        why = entry.unusable.code
    return remedy_of(why)


def remedy_of(code: str) -> str | None:
    """As `remedy`, by the code of what is wrong."""
    if code in _DAMAGED:
        return "damaged"
    return code if code in sentences("graphRemedies") else None


def find(entries: Iterable[Listed], name: str) -> list[Listed]:
    """Find the entries that a name means: the begin of an id or of a key, else a model, with or without its hash."""
    entries = [*entries]
    if len(name) >= _LEAST_NAMED:
        by_id = [one for one in entries if one.id.startswith(name) or one.facts.digest.startswith(name)]
        if by_id:
            return by_id
    return [one for one in entries if name in _model_names(one)]


def _model_names(one: Listed) -> set[str]:
    """What the models that an entry served are called, with and without their hash."""
    names = {model.name for model in one.models} or {one.model}
    return names | {name.rpartition("/")[0] for name in names if "/" in name}


def state_refusal(pattern: str) -> Reason | None:
    """Say why no graph can have a state of this name; None: one can, or it is a pattern."""
    name = pattern.replace(" ", "_")  # as `onegraph ls` writes them
    if not name or name in STATES or name.startswith("from_") or {*name} & {*"*?["}:
        return None
    return UnknownState(", ".join(STATES))


def is_wanted(one: Listed, wanted: Mapping[str, str]) -> bool:
    """Tell whether an entry matches all patterns, by name. A model matches by its whole name, too."""
    facts = one.facts
    texts = {
        "model": tuple(_model_names(one)),
        "component": (facts.component,),
        "shapes": (facts.label,),
        "dtype": (facts.dtype,),
        "backend": (facts.backend,),
        "state": (state_of(one), facts.state, *(["pinned"] if one.pinned else [])),
    }
    return all(
        any(text == wanted[name] or fnmatch.fnmatch(text, wanted[name]) for text in texts[name]) for name in wanted
    )


class Totals(Strict):
    """All graphs of the home. `copies` lie beside checkpoints, and are in no other number."""

    graphs: int
    states: dict[str, int]
    pinned: int
    bytes: int
    copies: int
    copies_bytes: int
    budget_bytes: int | None
    compile_seconds: float
    restores: int
    saved_seconds: float


def totals(inventory: Inventory, entries: Iterable[Listed]) -> Totals:
    """Sum up entries of the home: how many, what they take, and what they saved; of copies, what they take."""
    listed = [*entries]
    at_home = [one for one in listed if not one.beside]
    return Totals(
        graphs=sum(not one.quarantined for one in at_home),
        states=Counter(map(state_of, at_home)),
        pinned=sum(one.pinned for one in at_home),
        bytes=bytes_on_disk(at_home),
        copies=len(listed) - len(at_home),
        copies_bytes=bytes_on_disk(one for one in listed if one.beside),
        budget_bytes=inventory.allowance.bytes,
        compile_seconds=round(sum(one.facts.compile_seconds for one in at_home), 1),
        restores=sum(one.uses for one in at_home),
        saved_seconds=round(sum(one.uses * one.facts.compile_seconds for one in at_home), 1),
    )
