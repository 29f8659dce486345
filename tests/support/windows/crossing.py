"""Graphs of toys that Linux compiles for Windows' CPUs, and what eager computes for the same inputs."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import torch

from onegraph.backends.inductor import InductorBackend, backend, for_windows, settings
from onegraph.compiler import export
from support.models import toy

SIZES = ((2, 24, 16, 7), (1, 32, 9, 3))  # batch, height, width, context
FARTHEST = 1e-5  # relative L2 from eager, of float32; measured: 3e-7
FEW_COSTS = {"cpu": 4}  # of a region, so that a small graph is cut
# mingw precompiles no headers. Vectors have 32 bytes, and its code may find the stack aligned to 16.
OF_MINGW = {"aot_inductor.precompile_headers": False, "cpp.simdlen": 1}


def example(size: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(sum(size))
    return toy.inputs(*size)


def compile_for_windows(module: torch.nn.Module, folder: Path) -> list[str]:
    """Compile a toy for any size into a folder, and write its weights, inputs and results beside it as `FOLDER.pt`.

    Returns:
        The names of the graph's files.
    """
    folder.mkdir()
    inductor, called = InductorBackend(), toy.Call(module)
    with torch.no_grad(), inductor.capture_settings():
        exported = export.capture(called, toy.shapes(), {"batch": 2, "height": 8}, toy.CPU)
    changed = mock.patch.dict(settings._CPU_OPTIONS, OF_MINGW), mock.patch.dict(backend._REGION_COSTS, FEW_COSTS)
    with torch.no_grad(), for_windows.compiling(toy.CPU), changed[0], changed[1]:
        files = inductor.compile(exported, example(SIZES[0]), folder)
    cases = [(example(size), module(*example(size))) for size in SIZES]
    torch.save({"weights": dict(called.named_parameters()), "cases": cases}, folder.with_suffix(".pt"))
    return files
