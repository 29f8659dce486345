"""What a backend is: protocols for compiling graphs and for running them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

import torch

from ..common.outputs import Output
from ..common.reasons import Reason
from ..signature.declared import ShapeRange
from .cuda_graphs import CudaGraphs
from .worker_pool import WorkerPool

OPERATIONS = "onegraph"  # namespace of torch's operations that call functions which are no part of a graph


@dataclass(frozen=True)
class Availability:
    """Whether something can be done on this machine; `reason` says why not."""

    reason: Reason | None = None

    @property
    def ok(self) -> bool:
        return self.reason is None

    @property
    def text(self) -> str:
        """The reason as a clause for people; empty where there is none."""
        return "" if self.reason is None else self.reason.text


AVAILABLE = Availability()


class Runner(Protocol):
    """A loaded graph. Not thread-safe: its owner serialises `bind` and calls.

    Attributes:
        reads_in_place: whether calls read the weights where they are. If not, `bind` must be called again whenever they
            may have been written to, though they are where they were.
    """

    reads_in_place: bool

    @property
    def cuda_graphs(self) -> CudaGraphs | None:
        """What captures and replays its calls, if anything does."""

    @property
    def held_bytes(self) -> int:
        """Bytes it keeps from others besides the weights, also after `close` where they do not come back."""

    def constant_names(self) -> list[str]: ...

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Compute with these tensors from now on, as they are at each call.

        Called again whenever the owner sees that one was replaced, has moved, or may have been written to. The caller
        must know them alive at each call.

        Raises:
            BindError: they do not fit.
        """

    def __call__(self, *inputs: torch.Tensor) -> Output:
        """Compute. What is returned is the caller's own: it may write to it."""

    def close(self) -> None:
        """Release the weights and all memory; `bind` would set the graph up again."""


class Backend(Protocol):
    """One way to compile and run exported graphs."""

    name: str

    def can_run(self, device: torch.device) -> Availability:
        """Tell whether finished graphs run here."""

    def can_compile(self, device: torch.device) -> Availability:
        """Tell whether new graphs can be compiled here."""

    def compiler(self) -> str:
        """Name what compiles besides torch, so that a later process sees whether it has changed."""

    def supports(self, shapes: ShapeRange) -> bool:
        """Tell whether one graph can serve the whole range."""

    def target(self, device: torch.device) -> dict[str, str]:
        """Return everything the machine code depends on. Two equal targets can exchange graphs."""

    def capture_settings(self) -> contextlib.AbstractContextManager[None]:
        """Return the settings under which a module must be captured for this backend."""

    def workers(self, weights: int, device: torch.device) -> int:
        """Return how many further processes would make compiling a module with so many weights faster here."""

    def prepare(self, device: torch.device, workers: int) -> None:
        """Begin with what every compile for the device needs besides the model, while that is captured.

        Called before anything uses the device.

        Args:
            workers: how many processes compile with this one.
        """

    def compile(
        self,
        exported: torch.export.ExportedProgram,
        inputs: Sequence[torch.Tensor],
        folder: Path,
        pool: WorkerPool | None = None,
        served: Sequence[Sequence[Sequence[int]]] = (),
    ) -> list[str]:
        """Compile into `folder`; return the names of the files written.

        Args:
            inputs: an example call of the range that the graph shall serve.
            pool: the processes that share the work; None: this one alone.
            served: shapes of the inputs in some other calls that it shall serve: no graph comes of what would not.

        Raises:
            CompileError: the backend cannot.
        """

    def load(self, folder: Path, device: torch.device) -> Runner:
        """Load what a compile wrote.

        Raises:
            LoadError: the files are damaged, or cannot be used here.
        """

    def estimate_memory(self, folder: Path) -> int:
        """Return the bytes that a loaded graph will hold besides the weights, as long as it lives."""


@runtime_checkable
class Rebuilds(Backend, Protocol):
    """A backend that makes a graph for other sizes from a cached one, without the model."""

    def rebuild(self, cached: Path, inputs: Sequence[torch.Tensor], folder: Path) -> list[str]:
        """Compile for the exact sizes of `inputs`, as `compile` does, from a graph of the same architecture.

        Args:
            cached: folder of a graph for other sizes.
        """


@runtime_checkable
class ServesBlocks(Backend, Protocol):
    """A backend whose graphs can be loaded once for each of many modules, so that blocks of one kind share one."""

    def loader(self, folder: Path, device: torch.device) -> Callable[[], Runner]:
        """Return what loads a graph each time it is called: the same code, with weights of its own.

        Args:
            folder: may go once the first one is loaded.

        Raises:
            LoadError: the files are damaged, or cannot be used here; the loader raises it, too.
        """


@runtime_checkable
class SharesCompiles(Backend, Protocol):
    """A backend whose compiles hand work out to other processes."""

    def help_with(self, folder: Path, device: torch.device, pool: WorkerPool) -> None:
        """Do some of the work of another process' `compile` into that folder, until nothing is left to take.

        Raises:
            LoadError: something that is needed is not there.
        """


@runtime_checkable
class CompilesForAbsent(Backend, Protocol):
    """A backend that compiles for devices which this machine does not have, while the process pretends to have one."""

    def absent_devices(self) -> Sequence[str]:
        """Return the names of these devices, such as `sm_90`."""

    def platforms(self) -> Sequence[str]:
        """Return the systems that this one compiles for, as `platform.system` names them, in lower case."""

    def pretend(self, device: str, platform: str) -> None:
        """Have this process pretend to have a device, on some system, for as long as it lives.

        Raises:
            LoadError: it has one, or something is missing that a compile needs.
        """

    def check_absent(self, folder: Path, device: torch.device, weights: Mapping[str, torch.Tensor]) -> list[str]:
        """Return which weights a graph reads that a compile wrote into a folder.

        Raises:
            CompileError: its machine code is not that of the device and the system alone.
        """


def rebuilder(backend: Backend) -> Rebuilds | None:
    """Return the backend if it can rebuild cached graphs for other sizes."""
    # What `isinstance` would look for, which reads the whole protocol each time.
    return cast(Rebuilds, backend) if hasattr(backend, "rebuild") else None
