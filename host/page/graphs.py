"""Graphs on the disk: listed, looked into, checked, pinned, removed. Clients name them by their ids alone."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterable
from typing import Any

from ...common import reasons, remedies
from ...common.plain_text import plain
from ...graph_cache.disk import inventory, report
from ...graph_cache.disk.listing import Listed
from ...graph_cache.disk.scan import revision
from ...graph_cache.entry import Entry as Stored
from ...graph_cache.entry import read
from ...graph_cache.integrity import Sound, describe
from ...runtime.obtain.registry import registry
from ..weights.host_memory import queue_is_idle
from . import model_files
from .answers import GraphRequest, Refusal
from .models import ActionResult, DetailedGraph, Details, Entry, File, Graphs, ListOfGraphs, Prune, PruneResult

_PATIENCE = 0.5  # seconds until a list is shown as far as it is known; the first one of thousands takes some seconds
_UNKNOWN = Refusal(404, reasons.UnknownGraph())
# What becomes of an entry that is to be removed.
_REMOVED = {
    "removed": "Copies beside models stay.",
    "used": "A process uses the graph, so it stays. Wait for an empty queue, or end the other ComfyUI, then delete it.",
    "gone": "The graph was gone already.",
    "kept": "The graph stays, since it is not this user's to remove or its folder cannot be written.",
}


def all_graphs() -> list[Listed]:
    """List all graphs now, also the copies beside checkpoints of ComfyUI's folders."""
    return registry().store.disk.scan(model_files.folders())


def _find(fields: GraphRequest) -> Listed | None:
    return next((one for one in all_graphs() if one.id == fields.id), None)


def entry(one: Listed) -> Entry:
    """Describe an entry for clients."""
    return _described([one])[0]


def _described(entries: Iterable[Listed]) -> list[Entry]:
    seconds = {**registry().store.notes.read().restore_seconds, **registry().counters.restore_times.last}
    return [Entry(**vars(report.describe(one)), restore_seconds=seconds.get(one.path.name)) for one in entries]


def list_graphs(fields: ListOfGraphs) -> Graphs | Refusal:
    """GET graphs: those that are asked for, in order."""
    refused = report.state_refusal(fields.state)
    if refused is not None:
        return Refusal(400, refused)
    disk = registry().store.disk
    entries, complete = disk.scan_soon(model_files.folders(), _PATIENCE) if fields.partial else (all_graphs(), True)
    wanted = {name: value for name in ("state", "model", "component") if (value := getattr(fields, name))}
    listed = [one for one in entries if fields.beside or not one.beside]
    chosen = [one for one in listed if report.is_wanted(one, wanted) and _holds(one, fields.search.casefold())]
    backwards = fields.sort in report.LARGEST_FIRST if not fields.order else fields.order == "desc"
    order = report.state_of if fields.sort == "state" else report.ORDERS[fields.sort]
    chosen.sort(key=order, reverse=backwards)
    return Graphs(
        entries=_described(chosen[fields.offset : fields.offset + fields.limit]),
        total=len(chosen),
        totals=report.totals(disk, entries),
        revision=revision(entries),
        complete=complete,
    )


def _holds(one: Listed, text: str) -> bool:
    facts = one.facts
    models = [model.name for model in one.models]
    texts = (*models, facts.component, facts.label, facts.dtype, facts.backend, report.state_of(one), one.id)
    return not text or any(text in fact.casefold() for fact in (*texts, facts.digest, *facts.target.values()))


def details(fields: GraphRequest) -> DetailedGraph | Refusal:
    """GET graphs/{id}: its key, its files, and what to do where it is of no use."""
    one = _find(fields)
    if one is None:
        return _UNKNOWN
    stored = read(one.path)
    key = stored.manifest.key if isinstance(stored, Stored) else {}
    files = []
    with contextlib.suppress(OSError):
        for path in sorted(one.path.iterdir()):
            files.append(File(name=plain(path.name), bytes=path.lstat().st_size))
    code = report.remedy(one)
    remedy = None if code is None else remedies.sentences("graphRemedies")[code]
    return DetailedGraph(
        entry=entry(one), details=Details(key=_texts(key), files=files, remedy=remedy, remedy_code=code)
    )


def _texts(key: dict[str, Any]) -> dict[str, str]:
    """The fields of a key as texts, those of its target one by one."""
    texts: dict[str, str] = {}
    for name, value in key.items():
        if name == "target" and isinstance(value, dict):
            texts |= {f"target.{plain(str(n))}": plain(str(v)) for n, v in sorted(value.items())}
        else:
            texts[plain(str(name))] = plain(value if isinstance(value, str) else json.dumps(value))
    return texts


# Changing ---------------------------------------------------------------------------------------------------


def _on_one(act: Callable[[Listed], tuple[str, str, bool]]) -> Callable[[GraphRequest], ActionResult | Refusal]:
    """Make a route of what is done with one entry, which gives a code, a text, and whether it is done."""

    @functools.wraps(act)
    def route(fields: GraphRequest) -> ActionResult | Refusal:
        one = _find(fields)
        if one is None:
            return _UNKNOWN
        code, text, done = act(one)
        now = _find(fields)
        return ActionResult(done=done, text=text, code=code, entry=None if now is None else entry(now))

    return route


@_on_one
def verify(one: Listed) -> tuple[str, str, bool]:
    """POST graphs/{id}/verify: check owner, signature and files."""
    state = registry().store.check(one.path)
    return "sound" if isinstance(state, Sound) else state.code, describe(state), isinstance(state, Sound)


@_on_one
def pin(one: Listed) -> tuple[str, str, bool]:
    """POST graphs/{id}/pin: keep it whatever the budget says."""
    return _mark(one, "pinned", "The budget leaves the graph alone.")


@_on_one
def unpin(one: Listed) -> tuple[str, str, bool]:
    """POST graphs/{id}/unpin: let the budget decide about it again."""
    return _mark(one, "unpinned", "The budget decides about the graph again.")


def _mark(one: Listed, how: str, text: str) -> tuple[str, str, bool]:
    disk = registry().store.disk
    if one.quarantined:
        return "quarantined", "A graph that was quarantined cannot be pinned.", False
    if one.beside:
        return "beside", "The budget leaves copies beside checkpoints alone.", False
    try:
        (disk.pin if how == "pinned" else disk.unpin)(one)
    except OSError as error:
        return "not_written", f"The graph's folder cannot be written ({error.strerror}).", False
    return how, text, True


@_on_one
def delete(one: Listed) -> tuple[str, str, bool]:
    """POST graphs/{id}/delete: also a pinned one, unless another process uses it, or a prompt that runs may."""
    disk = registry().store.disk
    how = disk.delete(one)
    if how == "used" and queue_is_idle():  # what ran stays loaded
        registry().eviction.close(one.path)
        how = disk.delete(one)
    return how, _REMOVED[how], how in ("removed", "gone")


@_on_one
def retry(one: Listed) -> tuple[str, str, bool]:
    """POST graphs/{id}/retry: forget what compiles of the same graph failed with."""
    try:
        forgotten = registry().store.notes.forget_failures(one.facts.digest)
    except OSError as error:
        return "not_written", f"What failed cannot be forgotten ({error.strerror}).", False
    if not forgotten:
        return "nothing_failed", "No failure of this graph is remembered; the next run asks for it.", True
    return "forgotten", "The next run tries to compile the graph again.", True


def prune(fields: Prune) -> PruneResult:
    """POST prune: remove what is over the budget, or tell what would be removed."""
    disk = registry().store.disk
    if fields.beside:
        done = disk.prune_copies(inventory.unusable(), model_files.folders(), fields.dry_run)
    else:
        over, unusable = inventory.over(disk.allowance.bytes), inventory.unusable()
        due = (lambda one, total: unusable(one, total) or over(one, total)) if fields.unusable else over
        done = (disk.would_prune if fields.dry_run else disk.prune)(due)
    return PruneResult(
        removed=_described(done.removed),
        kept_in_use=len(done.used),
        before=done.before,
        after=done.after,
        dry_run=fields.dry_run,
    )
