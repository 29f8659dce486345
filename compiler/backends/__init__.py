"""What a backend is, and the registry of those there are. A third backend is one file and one line here."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from ..shapes import ShapeRange


@dataclass(frozen=True)
class Availability:
    """Whether something can be done on this machine, and why (not)."""

    ok: bool
    reason: str


@dataclass(frozen=True)
class Constant:
    """A weight or buffer that a graph reads: its name in the captured module and what the code relies on."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str


class Runner(Protocol):
    """A loaded graph. Not thread-safe: its owner serialises `bind` and calls."""

    def constant_names(self) -> list[str]: ...

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Point the graph at these tensors. It keeps addresses only: the caller must know them alive at each call."""

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor: ...

    def close(self) -> None: ...


class Backend(Protocol):
    """One way to compile and run exported graphs."""

    name: str

    def can_run(self, device: torch.device) -> Availability:
        """Whether finished graphs run here."""

    def can_compile(self, device: torch.device) -> Availability:
        """Whether new graphs can be compiled here."""

    def supports(self, shapes: ShapeRange) -> bool: ...

    def target(self, device: torch.device) -> dict[str, str]:
        """Everything the machine code depends on. Two equal targets can exchange graphs."""

    def capture_settings(self) -> contextlib.AbstractContextManager[None]:
        """The settings under which a module must be captured for this backend."""

    def compile(self, exported: torch.export.ExportedProgram, folder: Path) -> list[str]:
        """Compile into `folder`; the names of the files written. Raises CompileError."""

    def load(self, folder: Path, device: torch.device) -> Runner:
        """Load what `compile` wrote. Raises LoadError."""

    def estimate_memory(self, exported: torch.export.ExportedProgram) -> int:
        """Bytes a loaded graph holds besides the weights, as far as known before compiling."""


def known() -> Sequence[str]:
    """The names of all backends, in the order `auto` tries them."""
    return ("inductor", "oneflow")


def get(name: str) -> Backend | None:
    """The backend of that name, or None when this version of the pack does not have it yet.

    Raises:
        KeyError: no backend has that name.
    """
    if name == "inductor":
        from .inductor import InductorBackend

        return InductorBackend()
    if name in known():
        return None
    raise KeyError(name)


def missing_reason(name: str) -> str:
    """Why `get(name)` gave None, for the user."""
    return f"the {name} backend is not in this version of OneGraph yet"
