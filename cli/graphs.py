"""Commands on cached graphs: `onegraph ls`, `stats`, `prune`, `pin` and `unpin`. None of them imports torch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import output
from .output import Json, counted, print_either, print_line, print_no_graphs, print_text, size
from .paths import Folders, only_folders

if TYPE_CHECKING:
    from ..graph_cache.disk.listing import Listed

Names = Annotated[list[str], typer.Argument(help="Ids or keys as `onegraph ls --long` shows them, or models.")]
In = Annotated[
    list[Path] | None,
    typer.Option("--in", metavar="FOLDER", callback=only_folders, help="Only of models in this folder."),
]

_FILTERS = ("model", "component", "shapes", "dtype", "backend", "state")
_HEADER = ("model", "component", "shapes", "dtype", "backend", "size", "difference", "speed", "state")
_LEFT_OUT = ("marks", "restores", "difference", "dtype", "used", "backend", "shapes", "speed", "component", "size")
_SORTS = ("model", "component", "size", "used", "restores", "speed", "state")


def list_graphs(
    folders: Folders = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--filter", metavar="NAME=PATTERN", help=f"Such as model=photo*. Names: {', '.join(_FILTERS)}."),
    ] = None,
    sort: Annotated[str, typer.Option(help=f"One of {', '.join(_SORTS)}; largest and latest first.")] = "",
    long: Annotated[bool, typer.Option("--long", help="Also show ids, last use, restores, and pins.")] = False,
    everywhere: Annotated[
        bool, typer.Option("--all", help="Include the copies beside all checkpoints that are known.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List cached graphs.

    `difference` and `speed` compare a graph with the uncompiled model, at its first use on this machine. Graphs are
    loaded from the graph folder. With folders of checkpoints, the copies beside these are listed, too.
    """
    from ..graph_cache.disk.report import LARGEST_FIRST, ORDERS, describe, is_wanted
    from ..graph_cache.store import Store

    if sort and sort not in _SORTS:
        raise typer.BadParameter(f"{sort} is none of {', '.join(_SORTS)}.", param_hint="--sort")
    wanted = _filters(where or [])
    store = Store()
    listed = [*store.disk.entries(), *store.disk.copies(None if everywhere else folders or [])]
    shown = [one for one in listed if one.facts.digest and _is_wanted(one, wanted)]
    if sort:
        shown.sort(key=ORDERS[sort], reverse=sort in LARGEST_FIRST)
    if as_json:
        rows = [{**describe(one).model_dump(), "folder": one.folder} for one in shown]
        output.print_json({"graphs": rows, "graph_folder": str(store.home)})
        return
    if not listed:
        print_no_graphs(store.home, *(folders or []))
        return
    if not shown:
        print_text("No graph matches. Quarantined ones match --filter state=quarantined.")
        return
    now, header = time.time(), (*_HEADER, "id", "used", "restores", "marks") if long else _HEADER
    output.print_table(
        header,
        (_row(one) + (_more(one, now) if long else ()) for one in shown),
        drop=[name for name in _LEFT_OUT if name in header],
    )
    total = size(sum(one.facts.graph_bytes for one in shown))
    more = sum(is_wanted(one, wanted) for one in listed) - len(shown)
    hidden = f"; {more} more quarantined or unreadable" if more else ""
    print_line(f"{counted(len(shown))}, {total}; graph folder {store.home}{hidden}")


def _filters(texts: Sequence[str]) -> dict[str, str]:
    from ..graph_cache.disk.report import state_refusal

    filters = {}
    for text in texts:
        name, equals, pattern = text.partition("=")
        if not equals or name not in _FILTERS:
            raise typer.BadParameter(f"{text} is not NAME=PATTERN with one of {', '.join(_FILTERS)}.")
        refused = state_refusal(pattern) if name == "state" else None
        if refused is not None:
            raise typer.BadParameter(f"{text}: {refused.text}")
        filters[name] = pattern
    return filters


def _is_wanted(one: Listed, wanted: dict[str, str]) -> bool:
    """Whether an entry matches all patterns. Quarantined ones are shown to those who ask for them."""
    from ..graph_cache.disk.report import is_wanted

    if one.quarantined and "state" not in wanted:
        return False
    return is_wanted(one, wanted)


def _row(one: Listed) -> tuple[str, ...]:
    facts = one.facts
    return (
        one.model,
        facts.component,
        facts.label,
        facts.dtype,
        facts.backend,
        size(facts.graph_bytes),
        "not used yet" if facts.to_eager is None else f"{facts.to_eager:.1e}",
        _speed(facts.speedup) if facts.speedup else "",
        facts.state,
    )


def _speed(speedup: float) -> str:
    """Compare a graph with the uncompiled model: `2.5x faster`."""
    return f"{speedup:.1f}x faster" if speedup >= 1 else f"{1 / speedup:.1f}x slower"


def _more(one: Listed, now: float) -> tuple[str, ...]:
    facts = (("copy beside the checkpoint", one.beside), ("pinned", one.pinned), ("in use", one.in_use))
    marks = [name for name, holds in facts if holds]
    if one.unusable is not None:
        marks.append(one.unusable.text)
    return (one.id, _ago(now - one.used), str(one.uses), ", ".join(marks))


def _ago(seconds: float) -> str:
    """A time ago in one unit: `3 h ago`."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return "just now"


def stats(folders: Folders = None, as_json: Json = False) -> None:
    """Sum up what all graphs take of the disk, and what they saved."""
    from ..graph_cache.disk.report import totals
    from ..graph_cache.store import Store

    store = Store()
    sums = totals(store.disk, [*store.disk.entries(), *store.disk.copies(folders or None)])
    if as_json:
        roots = [str(root) for root in folders or store.disk.folders()]
        output.print_json({**sums.model_dump(), "graph_folder": str(store.home), "folders": roots})
        return
    if not (sums.states or sums.copies):
        print_no_graphs(store.home)
        return
    states = ", ".join(f"{count} {state.replace('_', ' ')}" for state, count in sorted(sums.states.items()))
    print_text(f"{counted(sum(sums.states.values()))} ({states or 'none yet'}), {sums.pinned} pinned")
    print_text(
        f"uses {size(sums.bytes)} {_of(sums.budget_bytes)}; "
        f"copies beside checkpoints: {sums.copies}, {size(sums.copies_bytes)}"
    )
    print_text(
        f"compiled in {sums.compile_seconds:.0f} s; restored {sums.restores} times, "
        f"which saved {sums.saved_seconds:.0f} s of compiling"
    )


def _of(limit: int | None) -> str:
    return "without a limit" if limit is None else f"of {size(limit)}"


def prune(
    folders: Folders = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be removed.")] = False,
    budget: Annotated[
        str, typer.Option(help="Bytes to keep within, such as 5GB, in place of ONEGRAPH_DISK_BUDGET; 0: no limit.")
    ] = "",
    beside: Annotated[
        bool, typer.Option("--beside", help="Remove copies beside checkpoints: of no use here, or over --budget.")
    ] = False,
    unusable: Annotated[
        bool, typer.Option("--unusable", help="Remove what cannot be used here any more, whatever the budget.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove graphs until the others keep within the disk budget.

    None that is in use or pinned is removed. Quarantined graphs go first, then those of no use here any more, then the
    least recently used. Copies beside checkpoints stay, unless --beside asks for them: in these folders, or in all that
    are known. Exit code 1 if more than the budget is left.
    """
    from ..graph_cache.disk import budget as budgets
    from ..graph_cache.disk import inventory
    from ..graph_cache.disk.report import describe
    from ..graph_cache.store import Store

    store = Store()
    try:
        limit = budgets.parse(budget) if budget.strip() else store.disk.allowance.bytes
    except ValueError as error:
        raise typer.BadParameter(f"{error}.", param_hint="--budget") from error
    if beside:
        due = inventory.over(limit) if budget.strip() else inventory.unusable()
        done = store.disk.prune_copies(due, folders or None, dry_run)
        limit = limit if budget.strip() else None
    else:
        due = inventory.unusable() if unusable else inventory.over(limit)
        done = (store.disk.would_prune if dry_run else store.disk.prune)(due)
    over = not unusable and limit is not None and done.after > limit
    if as_json:
        rows = [{**describe(one).model_dump(), "folder": one.folder} for one in done.removed]
        output.print_json({
            "removed": rows, "in_use": [one.id for one in done.used],
            "bytes_before": done.before, "bytes_after": done.after, "budget_bytes": limit, "dry_run": dry_run,
        })  # fmt: skip
        raise typer.Exit(1 if over else 0)
    verb = "would remove" if dry_run else "removed"
    for one in done.removed:
        why = "" if one.unusable is None else f"; {one.unusable.text}"
        print_line(f"{verb}  {one.folder}  ({size(one.bytes)}{why})")
    for one in done.used:
        print_line(f"in use   {one.folder}")
    if done.removed:
        others = f"the others use {size(done.after)} {_of(limit)} (was {size(done.before)})"
        print_text(f"{verb} {counted(len(done.removed))}; {others}")
    else:
        print_text(f"Nothing to remove: graphs use {size(done.after)} {_of(limit)}.")
    if over:
        output.print_error(
            "Pinned graphs and those in use take more than the budget. Unpin some, or give a larger --budget."
        )
    raise typer.Exit(1 if over else 0)


def pin(names: Names, folders: In = None, as_json: Json = False) -> None:
    """Keep graphs whatever the disk budget says. Exit code 1 if nothing has such a name."""
    _mark(names, folders or [], "pinned", as_json)


def unpin(names: Names, folders: In = None, as_json: Json = False) -> None:
    """Let the disk budget decide about graphs again. Exit code 1 if nothing has such a name."""
    _mark(names, folders or [], "unpinned", as_json)


def _mark(names: Sequence[str], folders: Sequence[Path], done: str, as_json: bool) -> None:
    from ..graph_cache.disk.report import find
    from ..graph_cache.store import Store

    disk = Store().disk
    only = {folder.resolve() for folder in folders}
    entries = [one for one in disk.entries() if not one.quarantined]
    if only:
        entries = [one for one in entries if only & {Path(model.beside).resolve().parent for model in one.models}]
    failed: list[str] = []
    marked: list[str] = []
    for name in names:
        matches = find(entries, name)
        if not matches:
            failed.append(f"Nothing has the name {name}. `onegraph ls --long` lists models and ids of graphs.")
        for one in matches:
            try:
                (disk.pin if done == "pinned" else disk.unpin)(one)
            except OSError as error:
                failed.append(f"{one.folder} cannot be {done}: {error.strerror}")
            else:
                marked.append(one.folder)
    print_either(as_json, {done: marked, "failed": failed}, *(f"{done}  {folder}" for folder in marked), errors=failed)
    raise typer.Exit(1 if failed else 0)
