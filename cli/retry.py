"""`onegraph retry`: forget why nothing was compiled."""

from __future__ import annotations

import typer

from .output import Json, counted, print_either, print_error, print_line, print_text


def retry(as_json: Json = False) -> None:
    """Try failed compiles again at the next run. What they failed with is forgotten, also by a running ComfyUI."""
    from ..common import stored_reasons
    from ..graph_cache.store import Store

    forgotten = 0
    rows = []
    try:
        for failed in Store().notes.forget_failures():
            forgotten += 1
            for failure in failed.failures:
                why = stored_reasons.sentence(failure.reason)
                rows.append(
                    {"component": failed.component, "shapes": failed.label, "reason": failure.reason, "text": why}
                )
                if not as_json:
                    print_line(f"{failed.component}, {failed.label}: {why}")
    except OSError as error:
        print_error(f"Cannot forget failed compiles: {error}")
        raise typer.Exit(1) from error
    if not (forgotten or as_json):
        print_text("No compile failed. Nothing is to be tried again.")
        return
    print_either(
        as_json,
        {"forgotten": rows, "graphs": forgotten},
        f"{counted(len(rows), 'failed compile')} forgotten; the next run tries again",
    )
