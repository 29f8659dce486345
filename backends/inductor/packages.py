"""A graph's files, and how Inductor compiles into them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from ...common.torch_private import require

GRAPH_FILE = "graph.aoti"  # a graph compiled whole
PLAN_FILE = "plan.json"  # or how its regions make it up, which are files of their own


def region_file(region_type: int) -> str:
    """Return the name of a compiled region's file; names on disk, older than the word region."""
    return f"part{region_type}.aoti"


def _options_for(weights: Iterable[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options under which none of these weights is taken for a constant.

    When it folds constants, Inductor takes a weight of one element for its value, as the blending factors of video
    models are: every other checkpoint would run with this one's. Graphs without such weights keep the folding.
    """
    single = any(isinstance(weight, torch.Tensor) and weight.numel() == 1 for weight in weights)
    if not single:
        return dict(options)
    require("torch._inductor.config.joint_graph_constant_folding")
    return {**options, "joint_graph_constant_folding": False}


def compile_whole(exported: torch.export.ExportedProgram, options: Mapping[str, Any], folder: Path) -> None:
    """Compile a graph as it is into `GRAPH_FILE`."""
    package = folder / "graph.pt2"  # the packager insists on the suffix; ComfyUI would list it as a model
    require("torch._inductor").aoti_compile_and_package(
        exported, package_path=str(package), inductor_configs=_options_for(exported.state_dict.values(), options)
    )
    package.rename(folder / GRAPH_FILE)


def compile_region(module: torch.fx.GraphModule, options: Mapping[str, Any], folder: Path, region_type: int) -> None:
    """Compile a region, whose placeholders carry the fake tensors that the export ended with, into its file."""
    examples = tuple(node.meta["val"] for node in module.graph.nodes if node.op == "placeholder")
    # Inductor would name its folder after the region's code, which regions of different sizes share.
    output = {"aot_inductor.package": True, "aot_inductor.output_path": str(folder / f"region{region_type}")}
    own = _options_for([*module.parameters(), *module.buffers()], options)
    files = require("torch._inductor").aot_compile(module, examples, options={**own, **output})
    package = folder / f"region{region_type}.pt2"
    require("torch._inductor.package").package_aoti(str(package), files)
    package.rename(folder / region_file(region_type))
