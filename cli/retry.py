"""`onegraph retry`: forget why nothing was compiled."""

from __future__ import annotations

import typer

from .output import Json, counted, print_either, print_error

_NOTHING = "No compile failed. Nothing is to be tried again."


def retry(as_json: Json = False) -> None:
    """Try failed compiles again at the next run. What they failed with is forgotten, also by a running ComfyUI."""
    from ..common import stored_reasons
    from ..graph_cache.store import Store

    try:
        forgotten = Store().notes.forget_failures()
    except OSError as error:
        print_error(f"Cannot forget failed compiles: {error}")
        raise typer.Exit(1) from error
    rows = [
        {
            "component": one.component,
            "shapes": one.label,
            "reason": why.reason,
            "text": stored_reasons.sentence(why.reason),
        }
        for one in forgotten
        for why in one.failures
    ]
    lines = [f"{row['component']}, {row['shapes']}: {row['text']}" for row in rows]
    lines.append(f"{counted(len(rows), 'failed compile')} forgotten; the next run tries again" if rows else _NOTHING)
    print_either(as_json, {"forgotten": rows, "graphs": len(forgotten)}, *lines)
