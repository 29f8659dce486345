"""A graph's files, and how Inductor compiles into them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ...common.torch_private import require

GRAPH_FILE = "graph.aoti"  # a graph compiled whole
PLAN_FILE = "plan.json"  # or how its regions make it up, which are files of their own


def region_file(region_type: int) -> str:
    """Return the name of a compiled region's file; names on disk, older than the word region."""
    return f"part{region_type}.aoti"


def compile_whole(exported: torch.export.ExportedProgram, options: Mapping[str, Any], folder: Path) -> None:
    """Compile a graph as it is into `GRAPH_FILE`."""
    package = folder / "graph.pt2"  # the packager insists on the suffix; ComfyUI would list it as a model
    require("torch._inductor").aoti_compile_and_package(
        exported, package_path=str(package), inductor_configs=dict(options)
    )
    package.rename(folder / GRAPH_FILE)


def compile_region(module: torch.fx.GraphModule, options: Mapping[str, Any], folder: Path, region_type: int) -> None:
    """Compile a region, whose placeholders carry the fake tensors that the export ended with, into its file."""
    examples = tuple(node.meta["val"] for node in module.graph.nodes if node.op == "placeholder")
    # Inductor would name its folder after the region's code, which regions of different sizes share.
    output = {"aot_inductor.package": True, "aot_inductor.output_path": str(folder / f"region{region_type}")}
    files = require("torch._inductor").aot_compile(module, examples, options={**options, **output})
    package = folder / f"region{region_type}.pt2"
    require("torch._inductor.package").package_aoti(str(package), files)
    package.rename(folder / region_file(region_type))
