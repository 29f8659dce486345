"""`onegraph explain`: would a checkpoint or a workflow run through cached graphs here, and if not, what to do."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from . import child
from .output import Json, print_either, print_json, print_line
from .paths import comfyui_in, workflow_file
from .workflow import explain_workflow

WOULD_NOT_HIT = 3  # exit code

ComfyUI = Annotated[Path | None, typer.Option(metavar="FOLDER", envvar="COMFYUI_PATH", help="ComfyUI's folder.")]

# What to do about a field of the key that differs from the nearest graph's.
_REMEDIES = {
    "architecture": "it is another architecture, or its model options differ; it compiles once, at the first run",
    "shapes": "no graph serves these sizes yet; run that size once, or bake a workflow with --size",
    "dtype": "start ComfyUI with the dtype that the graph was made for, or let it compile once for this one",
    "backend": "choose that backend on the node, or let it compile once for this one",
    "format": "the graph was made by another version of OneGraph; it compiles once more",
    "target.torch": "the graph was made with another torch; it compiles once with this one",
    "target.device": "the graph is for another kind of device; it compiles once for this one",
    "target.capability": "the graph is for another GPU class; it compiles once for this one",
    "target.cuda": "the graph was made with another CUDA; it compiles once with this one",
    "target.cpu": "the graph is for a CPU with other instructions; it compiles once for this one",
}
_TO_DO = {
    "miss": "it compiles at the first run; `onegraph bake` does so before",
    "recorded": "run a workflow once, or bake one with `onegraph bake`",
    "refused": "it runs uncompiled until that changes; `onegraph retry` has failed compiles tried again",
}


def explain(
    target: Annotated[
        Path,
        workflow_file("A checkpoint, a workflow, or one of ComfyUI's templates.", metavar="CHECKPOINT|WORKFLOW.json"),
    ],
    comfyui: ComfyUI = None,
    backend: Annotated[str, typer.Option(help="Of a checkpoint: the backend that is chosen on the node.")] = "auto",
    cpu: Annotated[bool, typer.Option("--cpu", help="For the CPU although there is a GPU.")] = False,
    server: Annotated[str, typer.Option(help="Of a workflow: the address of a running ComfyUI to ask.")] = "",
    option: Annotated[
        list[str] | None, typer.Option(help="Of a workflow: an option for ComfyUI, such as --option=--novram.")
    ] = None,
    no_run: Annotated[
        bool, typer.Option("--no-run", help="Of a workflow: tell what its files do, and run nothing.")
    ] = False,
    custom_node: Annotated[
        str, typer.Option(help="Of a checkpoint: a custom node pack to import first, for model families of its own.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Tell whether a checkpoint or a workflow finds its graphs here, and what to do if not.

    A workflow that the editor saved and that has no node of OneGraph is asked for with Compile Model behind each loader
    of a model. Compiles nothing. Exit code 0 if all graphs are found, 3 if not, 1 if nobody can tell.
    """
    if target.suffix == ".json":
        explain_workflow(target, comfyui, server, [*(["--cpu"] if cpu else []), *(option or [])], no_run, as_json)
    job = {
        "comfyui": str(comfyui_in(comfyui)), "checkpoint": os.path.abspath(target), "backend": backend,  # noqa: PTH100
        "cpu": cpu or not _has_gpu(), "custom_node": custom_node,
    }  # fmt: skip
    try:
        findings: list[dict[str, Any]] = child.result("host.jobs.explain", json.dumps(job))
    except child.ChildFailedError as error:
        print_either(as_json, {"error": str(error)}, errors=[f"Can't tell: {error}"])
        raise typer.Exit(1) from None
    if as_json:
        print_json({"checkpoint": str(target), "graphs": findings})
    else:
        for finding in findings:
            _print(finding)
    raise typer.Exit(0 if all(finding["verdict"] == "hit" for finding in findings) else WOULD_NOT_HIT)


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _print(finding: dict[str, Any]) -> None:
    text = f": {finding['text']}" if finding["text"] else ""
    print_line(f"{finding['verdict']}  {finding['component']} {finding['shapes']}{text}".rstrip())
    if finding["folder"]:
        print_line(f"  {'graph' if finding['verdict'] == 'hit' else 'nearest graph'}: {finding['folder']}")
    for field in finding["fields"]:
        if field["equal"]:
            print_line(f"  {field['field']}: {_brief(field['wanted'])}, equal")
        elif not finding["folder"]:
            print_line(f"  {field['field']}: {_brief(field['wanted'])}")
        else:
            print_line(f"  {field['field']}: {_brief(field['wanted'])}, the graph has {_brief(field['found'])}")
            if field["field"] in _REMEDIES:
                print_line(f"    {_REMEDIES[field['field']]}")
    if finding["verdict"] in _TO_DO:
        print_line(f"  {_TO_DO[finding['verdict']]}")


def _brief(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
