"""`onegraph retry`: forget why nothing was compiled."""

from __future__ import annotations

import typer

from .output import Json, print_either, print_line


def retry(as_json: Json = False) -> None:
    """Forget what compiles failed with, so that the next run tries all of them again, also in a running ComfyUI."""
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
        print_line(f"cannot forget: {error}")
        raise typer.Exit(1) from error
    print_either(as_json, {"forgotten": rows, "graphs": forgotten}, f"{forgotten} graphs are tried again")
