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

from .output import print_json, print_line, print_table, size

NOT_ALL = 3


def bake_absent(path: Path, targets: str, platforms: str, comfyui: Path | None, as_json: bool) -> NoReturn:
    """Bake the models that a file or a workflow names. Ends the command: 0 if all graphs are there, else 3.

    Args:
        targets: architectures of GPUs, separated by commas.
        platforms: systems, separated by commas.
    """
    from ..backends import CompilesForAbsent, get

    backend = get("inductor")
    assert isinstance(backend, CompilesForAbsent)
    named, systems = _named(targets, backend.absent_devices()), _named(platforms, backend.platforms())
    if comfyui is None or not (comfyui / "main.py").is_file():
        raise typer.BadParameter("ComfyUI is not there; name its folder with --comfyui or COMFYUI_PATH.")
    rows: list[dict[str, Any]] = []
    for target, system in itertools.product(named, systems):
        task = {"comfyui": str(comfyui.resolve()), "file": str(path.resolve()), "target": target, "platform": system}
        for event in _events(task):
            row = {"target": target, "platform": system, **event}
            rows.append(row)
            if not as_json:
                print_line(_line(row))
    failed = any(row["event"] == "failed" for row in rows)
    if as_json:
        print_json({"graphs": rows})
    elif rows:
        _report(rows)
    raise typer.Exit(NOT_ALL if failed else 0)


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
        print_line("None of them was run: each machine compares a graph with eager when it first uses it.")
