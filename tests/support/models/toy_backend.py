"""What one more backend costs: this file, and an entry point that names its class. A graph is the exported program."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from onegraph.backends import AVAILABLE, Availability
from onegraph.common.errors import LoadError
from onegraph.common.outputs import Output
from onegraph.signature.declared import ShapeRange

FILE = "program.pt2"


class ToyRunner:
    """A program that is run as it was captured."""

    reads_in_place = True
    cuda_graphs = None
    held_bytes = 0

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self._names = [*program.state_dict]
        self._module = program.module()
        self._tensors: dict[str, torch.Tensor] = {}

    def constant_names(self) -> list[str]:
        return self._names

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = dict(tensors)

    def __call__(self, *inputs: torch.Tensor) -> Output:
        result: Output = torch.func.functional_call(self._module, self._tensors, inputs)
        return result

    def close(self) -> None:
        self._tensors = {}


class ToyBackend:
    """Compiles nothing: it saves the program, and runs it operation by operation."""

    name = "toy"

    def can_run(self, device: torch.device) -> Availability:
        return AVAILABLE

    def can_compile(self, device: torch.device) -> Availability:
        return AVAILABLE

    def compiler(self) -> str:
        return ""

    def supports(self, shapes: ShapeRange) -> bool:
        return True

    def target(self, device: torch.device) -> dict[str, str]:
        return {"torch": torch.__version__, "device": device.type}

    def capture_settings(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def workers(self, weights: int, device: torch.device) -> int:
        return 0

    def prepare(self, device: torch.device, workers: int) -> None: ...

    def compile(
        self, exported: torch.export.ExportedProgram, inputs: Sequence[torch.Tensor], folder: Path, *others: Any
    ) -> list[str]:
        torch.export.save(exported, folder / FILE)
        return [FILE]

    def load(self, folder: Path, device: torch.device) -> ToyRunner:
        try:
            return ToyRunner(torch.export.load(folder / FILE))
        except Exception as error:
            raise LoadError(f"The program cannot be loaded ({type(error).__name__}).") from error

    def estimate_memory(self, folder: Path) -> int:
        return 0
