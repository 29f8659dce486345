"""`onegraph bake PLAN.toml`: the table of what was baked, found in the store, or failed, and why."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NoReturn

import typer

from . import on_ray, plans
from .fleet import opened
from .on_ray import Row
from .output import print_error, print_json, print_line, print_table
from .sharing import key_file_of, plain_errors

_INTERRUPTED = 130


def bake_plan(path: Path, on: str, dry_run: bool, as_json: bool) -> NoReturn:
    """Bake what a plan asks for and its store lacks. Ends the command: 0 if all is there, 3 if something failed."""
    from ..graph_cache.layout import user_folder
    from ..graph_cache.sources.pushing import Pusher
    from ..graph_cache.trust import ed25519, key_file

    home, rows, stopped = user_folder(), list[Row](), False
    try:
        plan = plans.read(path)
        items = plans.items(plan, path.parent)
    except (plans.PlanError, OSError) as error:
        raise typer.BadParameter(str(error)) from error
    key = key_file_of(plan.publisher, home)
    remote = opened(plan.store)
    with plain_errors("bake"):
        ed25519.require()
        pusher = Pusher(remote, key_file.obtain(key), home)
        done, left = on_ray.split(items, pusher)
        rows += [Row(item, "hit") for item in done]
        if dry_run:
            rows += [Row(item, "missing") for item in left]
        elif left:
            try:
                for row in on_ray.bake(plan, left, pusher, on):
                    rows.append(row)
                    if not as_json:
                        print_line(f"{row.did}  {row.item.text}{f': {row.why}' if row.why else ''}")
            except KeyboardInterrupt:
                stopped = True
            except on_ray.NoRayError:
                print_error("A plan is baked by Ray, which is not installed: pip install ray, or the extra bake.")
                raise typer.Exit(1) from None
            except ConnectionError:
                print_error(f"No Ray cluster answers at {on}. Start one with `ray start --head`, or leave out --on.")
                raise typer.Exit(1) from None
    _report(rows, pusher.public, as_json)
    if stopped and not as_json:
        print_line("stopped; what was baked is in the store, and the next time goes on from there")
    failed = any(row.did == "failed" for row in rows)
    raise typer.Exit(_INTERRUPTED if stopped else 3 if failed else 0)


def _report(rows: list[Row], public: str, as_json: bool) -> None:
    if as_json:
        print_json({
            "key": public,
            "tasks": [
                {"task": row.item.text, "target": row.item.target.name, "did": row.did, "graphs": row.keys,
                 "fetched": row.fetched, "why": row.why}
                for row in rows
            ],
        })  # fmt: skip
        return
    print_table(
        ("task", "target", "result", "graphs", "why"),
        ((row.item.text, row.item.target.name, row.did, ", ".join(row.keys), row.why) for row in rows),
        drop=("graphs", "target"),
    )
    counts = Counter(row.did for row in rows)
    print_line(", ".join(f"{counts[did]} {did}" for did in ("baked", "hit", "missing", "failed") if counts[did]))
