"""A graph's files, and how Inductor compiles into them."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.fx import Node

from ...common.torch_private import require
from ..base import OPERATIONS
from . import specialisation
from .specialisation import ANY, Served

GRAPH_FILE = "graph.aoti"  # a graph compiled whole
PLAN_FILE = "plan.json"  # or how its regions make it up, which are files of their own


def region_file(region_type: int) -> str:
    """Return the name of a compiled region's file; names on disk, older than the word region."""
    return f"part{region_type}.aoti"


def _options_for(weights: Iterable[Any], nodes: Iterable[Node], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a graph needs, by what is in it.

    When it folds constants, Inductor takes a weight of one element for its value, as the blending factors of video
    models are: every other checkpoint would run with this one's. Graphs without such weights keep the folding.

    A graph that calls functions of others must not write to a buffer twice: they may keep what they are given, and
    return what they have kept.
    """
    needed: dict[str, Any] = {}
    if any(isinstance(weight, torch.Tensor) and weight.numel() == 1 for weight in weights):
        needed["joint_graph_constant_folding"] = False
    if any(getattr(node.target, "namespace", "") == OPERATIONS for node in nodes):
        needed |= {"allow_buffer_reuse": False, "inplace_buffers": False}
    for name in needed:
        require(f"torch._inductor.config.{name}")
    return {**options, **needed}


def compile_whole(
    exported: torch.export.ExportedProgram, options: Mapping[str, Any], folder: Path, served: Served = ANY
) -> None:
    """Compile a graph as it is into `GRAPH_FILE`. Raises CompileError: see `specialisation.check`."""
    arguments, keywords = exported.example_inputs
    chosen = _options_for(exported.state_dict.values(), exported.graph.nodes, options)
    module: Any = exported.module()
    package = _compile(module, arguments, keywords, chosen, folder / "graph.pt2")
    specialisation.check(module, served)
    with_whole_metadata(package)
    package.rename(folder / GRAPH_FILE)


def _compile(module: Any, arguments: Any, keywords: Any, options: Mapping[str, Any], package: Path) -> Path:
    """Compile a module into an archive, whose C++ sources are empty: they name folders of this machine, and nothing
    reads them. torch 2.11 looks for a library by their names.

    Args:
        package: its suffix is torch's. ComfyUI would list it as a model.
    """
    files = require("torch._inductor").aot_compile(
        module, arguments, keywords, options={**options, "aot_inductor.package": True}
    )
    with tempfile.TemporaryDirectory(dir=package.parent) as empty:
        for number, file in enumerate(files):
            if isinstance(file, str) and file.endswith(".cpp"):
                files[number] = str(Path(empty) / Path(file).name)
                Path(files[number]).touch()
        require("torch._inductor.package").package_aoti(str(package), files)
    return package


def with_whole_metadata(package: Path) -> None:
    """Give an archive the metadata of its kernels or of its wrapper, which are the same, where torch wrote none.

    torch writes and copies them in the compiler's cache without a lock, while another process that compiles the same
    code may be doing so: what is read meanwhile is empty. torch reads them where it takes no folder.
    """
    with zipfile.ZipFile(package) as archive:
        sizes = {info.filename: info.file_size for info in archive.infolist()}
        metadata = [name for name in sizes if name.endswith((".kernel_metadata.json", ".wrapper_metadata.json"))]
        empty = [name for name in metadata if not sizes[name]]
        whole = next((name for name in metadata if sizes[name]), None)
        if not empty or whole is None:
            return
        contents = {name: archive.read(whole if name in empty else name) for name in sizes}
    with zipfile.ZipFile(package, "w", zipfile.ZIP_STORED) as archive:
        for name, data in contents.items():
            archive.writestr(name, data)


def compile_region(
    module: torch.fx.GraphModule,
    options: Mapping[str, Any],
    folder: Path,
    region_type: int,
    served: Served = ANY,
) -> None:
    """Compile a region, whose placeholders carry the fake tensors that the export ended with, into its file."""
    examples = tuple(node.meta["val"] for node in module.graph.nodes if node.op == "placeholder")
    # Inductor would name its folder after the region's code, which regions of different sizes share.
    output = {"aot_inductor.output_path": str(folder / f"region{region_type}")}
    chosen = _options_for([*module.parameters(), *module.buffers()], module.graph.nodes, options)
    package = _compile(module, examples, None, {**chosen, **output}, folder / f"region{region_type}.pt2")
    specialisation.check(module, served)
    package.rename(folder / region_file(region_type))
