"""Why a backend cannot serve, and why nothing compiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .base import Reason


@dataclass(frozen=True)
class TorchTooOld(Reason):
    code = "torch_too_old"
    version: str
    oldest: str


@dataclass(frozen=True)
class WrongDeviceType(Reason):
    """A backend has no graphs for a type of device.

    Attributes:
        graphs: whose graphs they would be, e.g. `OneFlow`.
    """

    code = "wrong_device_type"
    graphs: str
    device: str


@dataclass(frozen=True)
class NoCompiler(Reason):
    """There is no C++ compiler.

    Attributes:
        chosen: the one that the user's environment names; empty where it names none.
    """

    code = "no_compiler"
    chosen: str = ""


@dataclass(frozen=True)
class MissingPackage(Reason):
    """A package that a backend needs is not installed.

    Attributes:
        wanted_by: what needs it, with its version; empty where it is the backend itself.
        install: command that installs it.
    """

    code = "missing_package"
    package: str
    install: str
    wanted_by: str = ""


@dataclass(frozen=True)
class OtherVersion(Reason):
    code = "other_version"
    package: str
    found: str
    wanted: str
    install: str


@dataclass(frozen=True)
class PackageTooNew(Reason):
    """A package is too new for another one.

    Attributes:
        below: first major version that is too new.
    """

    code = "package_too_new"
    package: str
    found: str
    below: int
    wanted_by: str
    install: str


@dataclass(frozen=True)
class NoGpu(Reason):
    code = "no_gpu"
    graphs: str


@dataclass(frozen=True)
class NoKernels(Reason):
    code = "no_kernels"
    library: str
    capability: tuple[int, int]


@dataclass(frozen=True)
class BackendCannotServe(Reason):
    code = "backend_cannot_serve"
    backend: str
    label: str


@dataclass(frozen=True)
class CompilesInBackground(Reason):
    """This run is eager; `because` is why a graph that is there is of no use, where there is one."""

    code = "compiles_in_background"
    because: Reason | None = None


@dataclass(frozen=True)
class StillCompiling(Reason):
    code = "still_compiling"
    seconds: int
    share: float | None


@dataclass(frozen=True)
class CompileDoesNotFit(Reason):
    code = "compile_does_not_fit"
    needed: int
    planned: int
    free: int


@dataclass(frozen=True)
class PutOff(Reason):
    code = "put_off"
    because: Reason


@dataclass(frozen=True)
class TriedTooOften(Reason):
    code = "tried_too_often"
    because: Reason
    tries: int


@dataclass(frozen=True)
class WaitsADay(Reason):
    """A compile ran out of memory or of a disk with so much of it free that there never is clearly more."""

    code = "waits_a_day"
    because: Reason


@dataclass(frozen=True)
class WaitsForMemory(Reason):
    """A compile ran out of memory, and no more is free; `wanted` in bytes."""

    code = "waits_for_memory"
    because: Reason
    wanted: int


@dataclass(frozen=True)
class WaitsForDisk(Reason):
    """A compiled graph could not be saved, and no more of the disk is free; `wanted` in bytes."""

    code = "waits_for_disk"
    because: Reason
    wanted: int


@dataclass(frozen=True)
class WaitsForPlace(Reason):
    """A compiled graph could not be saved although there was room. Another folder is tried, or the same a day later."""

    code = "waits_for_place"
    because: Reason


@dataclass(frozen=True)
class WaitsForChange(Reason):
    """Compiling failed, or gave a graph that is wrong, and would again while nothing has changed.

    Attributes:
        changes: what matters: `onegraph`, `torch`, `compiler`, `driver`, `host`, `timeout`.
    """

    code = "waits_for_change"
    because: Reason
    changes: tuple[str, ...]


@dataclass(frozen=True)
class NeedsRestart(Reason):
    code = "needs_restart"
    because: Reason


@dataclass(frozen=True)
class CaptureFailed(Reason):
    code = "capture_failed"
    detail: str


@dataclass(frozen=True)
class CompileFailed(Reason):
    code = "compile_failed"
    detail: str


@dataclass(frozen=True)
class NotSaved(Reason):
    """No folder took a graph: it is full, this user may not write it, or others may; or something else."""

    code = "not_saved"
    detail: str
    fault: Literal["full", "denied", "open", ""] = ""


@dataclass(frozen=True)
class LoadFailed(Reason):
    code = "load_failed"
    detail: str


@dataclass(frozen=True)
class GraphDoesNotFit(Reason):
    code = "graph_does_not_fit"
    backend: str
    needed: int
    label: str
    left: int


@dataclass(frozen=True)
class CompiledAgainLater(Reason):
    code = "compiled_again_later"
    because: Reason


@dataclass(frozen=True)
class TooManyExactSizes(Reason):
    code = "too_many_exact_sizes"
    most: int
    label: str


@dataclass(frozen=True)
class GraphClosed(Reason):
    code = "graph_closed"
