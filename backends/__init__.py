"""What a backend is, and the registry of those there are. A third backend is one file and one line here."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from ..common.shapes import ShapeRange
from .cuda_graphs import Replayed
from .worker_pool import Crew


@dataclass(frozen=True)
class Availability:
    """Whether something can be done on this machine, and why (not)."""

    ok: bool
    reason: str


class Runner(Protocol):
    """A loaded graph. Not thread-safe: its owner serialises `bind` and calls.

    Attributes:
        reads_in_place: whether calls read the weights where they are. If not, `bind` must be called again whenever they
            may have been written to, though they are where they were.
    """

    reads_in_place: bool

    @property
    def replayed(self) -> Replayed | None:
        """What records and replays its calls as CUDA graphs, if anything does."""

    @property
    def held_bytes(self) -> int:
        """Bytes it keeps from others besides the weights, also after `close` where they do not come back."""

    def constant_names(self) -> list[str]: ...

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Compute with these tensors from now on, as they are at each call.

        Called again whenever the owner sees that one was replaced, has moved, or may have been written to; the caller
        must know them alive at each call. Raises BindError.
        """

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor: ...

    def close(self) -> None:
        """Let go of the weights and of all memory; `bind` would set the graph up again."""


class Backend(Protocol):
    """One way to compile and run exported graphs."""

    name: str
    rebuilds: bool  # whether `rebuild` can make a graph for other sizes from a kept one

    def can_run(self, device: torch.device) -> Availability:
        """Whether finished graphs run here."""

    def can_compile(self, device: torch.device) -> Availability:
        """Whether new graphs can be compiled here."""

    def supports(self, shapes: ShapeRange) -> bool: ...

    def target(self, device: torch.device) -> dict[str, str]:
        """Everything the machine code depends on. Two equal targets can exchange graphs."""

    def capture_settings(self) -> contextlib.AbstractContextManager[None]:
        """The settings under which a module must be captured for this backend."""

    def helpers(self, weights: int, device: torch.device) -> int:
        """How many further processes would make compiling a module with so many weights faster here."""

    def prepare(self, device: torch.device, helpers: int) -> None:
        """Begin with what every compile for the device needs besides the model, while that is captured.

        Called before anything uses the device.

        Args:
            helpers: how many processes compile with this one.
        """

    def help_with(self, folder: Path, device: torch.device, crew: Crew) -> None:
        """Do some of the work of another process' `compile` into that folder, until nothing is left to take.

        Raises:
            CompileError: this backend's compiles are not shared.
        """

    def compile(
        self,
        exported: torch.export.ExportedProgram,
        inputs: Sequence[torch.Tensor],
        folder: Path,
        crew: Crew | None = None,
    ) -> list[str]:
        """Compile into `folder`; the names of the files written.

        Args:
            inputs: an example call of the range that the graph shall serve.
            crew: the processes that share the work; None: this one alone.

        Raises:
            CompileError: the backend cannot.
        """

    def rebuild(self, kept: Path, inputs: Sequence[torch.Tensor], folder: Path) -> list[str]:
        """As `compile`, for the exact sizes of `inputs`, from a graph of the same architecture for other sizes."""

    def load(self, folder: Path, device: torch.device) -> Runner:
        """Load what `compile` or `rebuild` wrote. Raises LoadError."""

    def estimate_memory(self, folder: Path) -> int:
        """Bytes that a loaded graph will hold besides the weights, as long as it lives."""


def known() -> Sequence[str]:
    """The names of all backends, in the order `auto` tries them."""
    return ("inductor", "oneflow")


def get(name: str) -> Backend:
    """The backend of that name.

    Raises:
        KeyError: no backend has that name.
    """
    if name == "inductor":
        from .inductor import InductorBackend

        return InductorBackend()
    if name == "oneflow":
        from .oneflow import OneFlowBackend

        return OneFlowBackend()
    raise KeyError(name)
