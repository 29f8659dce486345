"""`onegraph bake MODEL --target sm_86,sm_90`: graphs for GPUs that need not be here, one process for each."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import typer

from . import headers as fetching
from . import plans
from .output import print_json, print_line, print_table, size

NOT_ALL = 3


def bake_absent(path: Path, targets: str, platforms: str, comfyui: Path | None, as_json: bool) -> NoReturn:
    """Bake the models that a file, a workflow or a plan names. Ends the command: 0 if all graphs are there, else 3.

    Args:
        targets: architectures of GPUs, separated by commas; empty: those of the plan.
        platforms: systems, separated by commas; empty: those of the plan, or this one's kind, Linux.
    """
    from ..backends import CompilesForAbsent, get

    plan = _plan(path)
    if plan is not None and plan.absent is not None:
        targets = targets or ",".join(plan.absent.architectures)
        platforms = platforms or ",".join(plan.absent.platforms)
    platforms = platforms or "linux"
    backend = get("inductor")
    assert isinstance(backend, CompilesForAbsent)
    named, systems = _named(targets, backend.absent_devices()), _named(platforms, backend.platforms())
    if comfyui is None or not (comfyui / "main.py").is_file():
        raise typer.BadParameter("ComfyUI is not there; name its folder with --comfyui or COMFYUI_PATH.")
    rows, headers = list[dict[str, Any]](), list[dict[str, str]]()
    files = [path] if plan is None else [*_fetched(plan, path.parent, headers, as_json)]
    rows += [{"target": "", "platform": "", **one} for one in headers if "event" in one]
    for file, target, system in itertools.product(files, named, systems):
        task = {"comfyui": str(comfyui.resolve()), "file": str(file.resolve()), "target": target, "platform": system}
        for event in _events(task):
            row = {"target": target, "platform": system, **event}
            rows.append(row)
            if not as_json:
                print_line(_line(row))
    failed = any(row["event"] == "failed" for row in rows)
    if as_json:
        print_json({"graphs": rows, "headers": [one for one in headers if "event" not in one]})
    elif rows:
        _report(rows)
    raise typer.Exit(NOT_ALL if failed else 0)


def _plan(path: Path) -> plans.Plan | None:
    """Read a plan; None for another file."""
    try:
        plan = plans.read(path) if path.suffix == ".toml" else None
    except (plans.PlanError, OSError) as error:
        raise typer.BadParameter(str(error)) from error
    if plan is not None and plan.absent is None:
        raise typer.BadParameter(f"{path.name} is a plan for a fleet, which is baked without --target.")
    return plan


def _fetched(plan: plans.Plan, folder: Path, headers: list[dict[str, str]], as_json: bool) -> Iterator[Path]:
    """The files of a plan's models, or what is read of them; of each that is fetched, or cannot be, a row."""
    from ..graph_cache.layout import user_folder

    for bake in plan.bake:
        url = fetching.url_of(bake.model)
        file = folder / (bake.model.rpartition("/")[2] if url else bake.model)
        row = {"model": file.name, "name": bake.name}
        try:
            if not file.is_file():
                if not url:
                    raise OSError(f"{file} does not exist. Copy it there, or name its address in the plan.")
                file, row["sha256"] = fetching.fetch(url, user_folder() / "headers", bake.sha256, bake.dtype)
                headers.append(row)
                if not (bake.sha256 or as_json):
                    print_line(f'header  {file.name}: sha256 = "{row["sha256"]}"')
        except (fetching.HeaderNotFetchedError, OSError) as error:
            headers.append({"event": "failed", **row, "text": str(error)})
            if not as_json:
                print_line(f"failed  {file.name}: {error}")
            continue
        yield file


def _named(text: str, known: Sequence[str]) -> list[str]:
    """Names that are separated by commas. Raises BadParameter where one is not known, or there is none."""
    named = [one.strip() for one in text.split(",") if one.strip()]
    unknown = next((one for one in named if one not in known), None if named else "nothing")
    if unknown is not None:
        raise typer.BadParameter(f"{unknown} is not known here. Known are {', '.join(known)}.")
    return named


def _events(task: dict[str, str]) -> Iterator[dict[str, Any]]:
    """What a process tells of a task; a failure where it ends without telling."""
    command = [sys.executable, "-m", "onegraph.host.jobs.absent_bake", json.dumps(task)]
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # a machine's own GPU is another one
    told, last = False, list[str]()
    with tempfile.TemporaryFile("w+", errors="replace") as log:  # a pipe that nobody reads meanwhile would fill
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                event = json.loads(line)
                told = told or event["event"] == "done"
                if event["event"] != "done":
                    yield event
        log.seek(0)
        last = log.read().strip().splitlines()[-1:]
    if not told:
        text = f"the process ended with code {process.returncode}: {''.join(last)[-300:]}"
        yield {"event": "failed", "model": Path(task["file"]).name, "text": text}


def _line(row: dict[str, Any]) -> str:
    start = f"{row['event']}  {row['target']} {row['platform']}  {row['model']}"
    if row["event"] == "failed":
        return f"{start}: {row['text']}"
    made = f" ({row['seconds']} s, {size(row['bytes'])})" if row["event"] == "baked" else ""
    return f"{start}: {row['label']}{made}"


def _report(rows: Sequence[dict[str, Any]]) -> None:
    """What there is for each model and target, and what nobody has seen of it."""
    keys = dict.fromkeys((row["model"], row["target"], row["platform"]) for row in rows)
    table = []
    for key in keys:
        of_key = [row for row in rows if (row["model"], row["target"], row["platform"]) == key]
        baked = [row for row in of_key if row["event"] == "baked"]
        counts = [str(sum(row["event"] == event for row in of_key)) for event in ("baked", "found", "failed")]
        seconds = f"{sum(row['seconds'] for row in baked):.0f} s"
        table.append((*key, *counts, seconds, size(sum(row["bytes"] for row in baked))))
    print_table(("model", "target", "system", "baked", "found", "failed", "time", "size"), table)
    if any(row["event"] == "baked" for row in rows):
        print_line(
            "None of them was run: each machine compares a graph with the uncompiled model when it first uses it."
        )
