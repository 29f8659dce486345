"""The OneFlow backend: builds a job for exact sizes from a captured module or from a cached graph of other sizes."""

from __future__ import annotations

import contextlib
import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ...common.errors import CompileError, LoadError
from ...common.memory import available_bytes
from ...signature.declared import ShapeRange
from ..base import Availability
from ..inductor import settings
from ..worker_pool import WorkerPool
from . import graph, library, memory, program, runner
from .runner import OneFlowRunner

_LOWERING = "1"  # raised when graphs built by older versions of the lowering must not be used any more


@dataclass(frozen=True)
class OneFlowBackend:
    """Builds OneFlow jobs for exact shapes.

    Attributes:
        free_memory: the bytes that can be allocated on a device, which every graph is checked against.
    """

    free_memory: memory.FreeMemory = available_bytes

    name = "oneflow"

    def can_run(self, device: torch.device) -> Availability:
        return Availability(library.refused(device))

    def can_compile(self, device: torch.device) -> Availability:
        return Availability(library.refused(device))

    def compiler(self) -> str:
        return ""  # OneFlow alone, whose version is in the key

    def supports(self, shapes: ShapeRange) -> bool:
        return shapes.exact

    def target(self, device: torch.device) -> dict[str, str]:
        """Leave torch's version out: torch only captures, and the job that comes out does not use it.

        The CPU's instruction sets are no part of it either: OneFlow's kernels come compiled with its package.
        """
        target = {
            "oneflow": library.VERSION,
            "lowering": _LOWERING,
            "platform": platform.system().lower(),
            "machine": platform.machine(),
            "device": device.type,
        }
        if device.type == "cuda":
            major, minor = torch.cuda.get_device_capability(device)
            target |= {"capability": f"{major}.{minor}"}
        return target

    def capture_settings(self) -> contextlib.AbstractContextManager[None]:
        """Sizes of 1 stay symbolic, so that one program can be lowered for batch 1 and more, and any context length."""
        return settings.capture_settings()

    def workers(self, weights: int, device: torch.device) -> int:
        return 0  # lowering a graph takes seconds

    def prepare(self, device: torch.device, workers: int) -> None:
        pass

    def compile(
        self,
        exported: torch.export.ExportedProgram,
        inputs: Sequence[torch.Tensor],
        folder: Path,
        pool: WorkerPool | None = None,
        served: Sequence[Sequence[Sequence[int]]] = (),
    ) -> list[str]:
        """Build the graph for inputs like `inputs`, of whose tensors only shapes, dtypes and device count.

        Args:
            exported: captured with as many dynamic dimensions as possible, so that `rebuild` serves other sizes.

        Returns:
            Names of the files written into `folder`.

        Raises:
            CompileError: OneFlow lacks something that the model needs, or memory is short.
        """
        with self.capture_settings():
            captured = program.from_exported(exported)
        return self._build(captured, inputs, folder)

    def rebuild(self, cached: Path, inputs: Sequence[torch.Tensor], folder: Path) -> list[str]:
        """`compile` for other sizes from the program in `cached`, without capturing and without the model's code.

        Raises:
            CompileError: as `compile`; or the program is damaged or was not captured for these sizes.
        """
        captured = program.Program.read(cached)
        files = self._build(captured, inputs, folder)
        with contextlib.suppress(shutil.SameFileError):
            shutil.copyfile(cached / program.PROGRAM_FILE, folder / program.PROGRAM_FILE)
        return files

    def _build(self, captured: program.Program, inputs: Sequence[torch.Tensor], folder: Path) -> list[str]:
        captured.check_inputs(inputs)
        device = inputs[0].device
        if any(tensor.device != device for tensor in inputs):
            raise CompileError("The inputs are on several devices, a OneFlow graph runs on one.")
        try:
            data, description = graph.trace(captured, [tuple(t.shape) for t in inputs], str(device))
        except LoadError as error:
            raise CompileError(str(error)) from error
        short = memory.shortage(description.held_bytes, self.free_memory(device))
        if short is not None:
            raise CompileError(short, lasting=False, cause="device memory")
        captured.write(folder)
        graph.write(data, description, folder)
        return [program.PROGRAM_FILE, graph.JOB_FILE, graph.DESCRIPTION_FILE]

    def load(self, folder: Path, device: torch.device) -> OneFlowRunner:
        """Load the graph in a folder, without weights yet. Raises LoadError."""
        return runner.load(folder, device, self.free_memory)

    def estimate_memory(self, folder: Path) -> int:
        """Read how many bytes a loaded graph of this folder holds besides the weights. Raises LoadError."""
        return graph.read_description(folder).held_bytes
