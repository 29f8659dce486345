"""What commands and pages tell of graphs on the disk: one entry, all of them, and which one a name means."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

from ...common.stored_reasons import to_json
from . import budget
from .inventory import Inventory
from .listing import Listed, bytes_on_disk

_LEAST_NAMED = 4  # hex digits of an id or a key that are a name


def state_of(entry: Listed) -> str:
    """The state of an entry in a word: `quarantined`, `signed`, `stale` (of no use here), or why it is not loaded."""
    if entry.quarantined:
        return "quarantined"
    if entry.facts.signed_by and entry.unusable is not None:
        return "stale"
    return "signed" if entry.facts.signed_by else entry.facts.code


def describe(entry: Listed) -> dict[str, Any]:
    """Describe an entry for programs."""
    facts = entry.facts
    why = entry.unusable
    return {
        "id": entry.id,
        "key": facts.digest,
        "model": entry.model,
        "component": facts.component,
        "shapes": facts.label,
        "dtype": facts.dtype,
        "backend": facts.backend,
        "target": facts.target,
        "state": state_of(entry),
        "reason": None if why is None else {**to_json(why), "text": why.text},
        "signed": facts.state,
        "bytes": entry.bytes,
        "graph_bytes": facts.graph_bytes,
        "to_eager": facts.to_eager,
        "speedup": facts.speedup,
        "compile_seconds": facts.compile_seconds,
        "created": facts.created,
        "made_by": facts.made_by,
        "used": datetime.fromtimestamp(entry.used, timezone.utc).isoformat(timespec="seconds"),
        "restores": entry.uses,
        "pinned": entry.pinned,
        "in_use": entry.in_use,
    }


def find(entries: Iterable[Listed], name: str) -> list[Listed]:
    """Find the entries that a name means: the begin of an id or of a key, else a model, with or without its hash."""
    entries = [*entries]
    if len(name) >= _LEAST_NAMED:
        found = [one for one in entries if one.id.startswith(name) or one.facts.digest.startswith(name)]
        if found:
            return found
    return [one for one in entries if name in (one.model, one.model.partition("/")[0])]


def totals(inventory: Inventory, entries: Iterable[Listed]) -> dict[str, Any]:
    """Sum up entries: how many, what they take, and what they saved."""
    entries = [*entries]
    states: dict[str, int] = {}
    for one in entries:
        states[state_of(one)] = states.get(state_of(one), 0) + 1
    return {
        "graphs": sum(not one.quarantined for one in entries),
        "states": states,
        "pinned": sum(one.pinned for one in entries),
        "bytes": bytes_on_disk(entries),
        "counted_bytes": bytes_on_disk(inventory.counted(entries)),
        "budget_bytes": budget.limit(),
        "compile_seconds": round(sum(one.facts.compile_seconds for one in entries), 1),
        "restores": sum(one.uses for one in entries),
        "saved_seconds": round(sum(one.uses * one.facts.compile_seconds for one in entries), 1),
    }
