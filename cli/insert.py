"""`onegraph insert`: a workflow of the editor, with Compile Model behind whatever loads a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import child
from .output import Json, print_either
from .paths import existing_file


def insert(
    workflow: Annotated[Path, existing_file("As the editor saves it.", metavar="WORKFLOW.json")],
    to: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="The file to write; `<name>.onegraph.json` beside it when left out."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Copy a workflow, with Compile Model (OneGraph) behind each node that loads a model.

    The file itself stays as it is. Exit code 0 if one was written; 1 if not: nothing in it loads a model, it has a node
    of OneGraph, or it cannot be read or written.
    """
    target = to or workflow.with_suffix(".onegraph.json")
    try:
        told = child.result("host.jobs.inserting", str(workflow), str(target))
    except child.ChildFailedError as error:
        told = {"after": [], "error": str(error)}
    failed = str(told["error"])
    data = {"after": told["after"], "written": "" if failed else str(target), "error": failed}
    text = f"with Compile Model (OneGraph) after node {', '.join(told['after'])}: {target}"
    print_either(as_json, data, *([] if failed else [text]), errors=[failed] if failed else [])
    raise typer.Exit(1 if failed else 0)
