"""Why a backend cannot serve, and why nothing compiles."""

from __future__ import annotations

from typing import Literal

from ..memory import in_words
from .base import Reason, ended


class TorchTooOld(Reason):
    sentence = "torch {version} is older than {oldest}, the first with AOTInductor packages"
    version: str
    oldest: str


class WrongDeviceType(Reason):
    """A backend has no graphs for a type of device.

    Attributes:
        graphs: whose graphs they would be, e.g. `OneFlow`.
    """

    sentence = "{graphs} graphs run on CPU and CUDA devices, not on {device}"
    graphs: str
    device: str


class NoCompiler(Reason):
    """There is no C++ compiler.

    Attributes:
        chosen: the one that the user's environment names; empty where it names none.
    """

    chosen: str = ""

    def clause(self) -> str:
        wanted = self.chosen or "g++ or clang++"
        return f"no C++ compiler ({wanted}) on PATH; install one, for instance the package g++"


class LoadsOnly(Reason):
    """On Windows graphs are loaded, and none is compiled."""

    def clause(self) -> str:
        return "on Windows graphs are loaded, not compiled; pull or import some that were compiled on Linux for Windows"


class MissingPackage(Reason):
    """A package that a backend needs is not installed.

    Attributes:
        wanted_by: what needs it, with its version; empty where it is the backend itself.
        install: command that installs it.
    """

    package: str
    install: str
    wanted_by: str = ""

    def clause(self) -> str:
        if self.wanted_by:
            return f"{self.wanted_by} needs the package {self.package}, even on a CPU ({self.install})"
        return f"{self.package} is not installed; {self.install} installs it on Linux x86-64 with Python 3.10 or older"


class OtherVersion(Reason):
    sentence = "{package} {found} is installed, graphs need {wanted} exactly ({install})"
    package: str
    found: str
    wanted: str
    install: str


class PackageTooNew(Reason):
    """A package is too new for another one.

    Attributes:
        below: first major version that is too new.
    """

    sentence = "{wanted_by} needs {package} below {below}, {found} is installed ({install})"
    package: str
    found: str
    below: int
    wanted_by: str
    install: str


class NoGpu(Reason):
    sentence = "{graphs} graphs need an NVIDIA GPU for the device cuda, there is none"
    graphs: str


class NoKernels(Reason):
    library: str
    capability: tuple[int, int]

    def clause(self) -> str:
        major, minor = self.capability
        return f"{self.library} has no kernels for sm_{major}{minor} (it has sm_60 to sm_86, which sm_89 runs too)"


class BackendCannotServe(Reason):
    sentence = "the {backend} backend cannot serve {label}"
    backend: str
    label: str


class CompilesInBackground(Reason):
    """This run is eager; `because` is why a graph that is there is of no use, where there is one."""

    sentence = "compiling in the background; a later run uses the graph{because:()}"
    because: Reason | None = None


class StillCompiling(Reason):
    seconds: int
    share: float | None

    def clause(self) -> str:
        share = "" if self.share is None else f", {self.share:.0%}"
        return f"still compiling in the background ({self.seconds} s so far{share})"


class CompileDoesNotFit(Reason):
    needed: int
    planned: int
    free: int

    def clause(self) -> str:
        beside = f" beside the {in_words(self.planned)} of this run" if self.planned else ""
        return f"compiling needs {in_words(self.needed)} of GPU memory{beside}, and {in_words(self.free)} are free"


class CompileDeferred(Reason):
    code = "put_off"
    sentence = "{because}; it compiles when the queue is empty"
    because: Reason


_A_DAY_LATER = "is tried again a day later, or after `onegraph retry`"


class TriedTooOften(Reason):
    sentence = f"{{because}} It was tried {{tries}} times and {_A_DAY_LATER}."
    because: Reason
    tries: int


class WaitsADay(Reason):
    """A compile ran out of memory or of a disk with so much of it free that there never is clearly more."""

    sentence = f"{{because}} It {_A_DAY_LATER}."
    because: Reason


_LATEST = "a day later, or after `onegraph retry`"


class WaitsForMemory(Reason):
    """A compile ran out of memory, and no more is free; `wanted` in bytes."""

    sentence = f"{{because}} It is tried again when {{wanted:bytes}} are free, {_LATEST}."
    because: Reason
    wanted: int


class WaitsForDisk(Reason):
    """A compiled graph could not be saved, and no more of the disk is free; `wanted` in bytes."""

    sentence = f"{{because}} It is tried again when {{wanted:bytes}} of the disk are free, {_LATEST}."
    because: Reason
    wanted: int


class WaitsForFolder(Reason):
    """A compiled graph could not be saved although there was room. Another folder is tried, or the same a day later."""

    code = "waits_for_place"
    because: Reason

    def clause(self) -> str:
        return f"{ended(self.because.text)} It is tried again in another folder, {_LATEST}."


_CHANGES = {
    "onegraph": "OneGraph",
    "torch": "torch",
    "host": "ComfyUI",
    "compiler": "the C++ compiler",
    "driver": "the driver",
}


class WaitsForChange(Reason):
    """Compiling failed, or gave a graph that is wrong, and would again while nothing has changed.

    Attributes:
        changes: what matters: `onegraph`, `torch`, `compiler`, `driver`, `host`, `timeout`.
        days: after which it is tried again all the same; 0: never.
    """

    because: Reason
    changes: tuple[str, ...]
    days: int = 0

    def clause(self) -> str:
        names = [name for code, name in _CHANGES.items() if code in self.changes]
        versions = f"with another version of {', '.join(names)}, " if names else ""
        limit = "with another ONEGRAPH_COMPILE_TIMEOUT, " if "timeout" in self.changes else ""
        later = f"{'a day' if self.days == 1 else f'{self.days} days'} later, " if self.days else ""
        return f"{ended(self.because.text)} It is tried again {versions}{limit}{later}or after `onegraph retry`."


class NeedsRestart(Reason):
    sentence = "{because}; restart ComfyUI to use the graph"
    because: Reason


class CaptureFailed(Reason):
    sentence = "{detail}"
    detail: str


class CompileFailed(Reason):
    sentence = "{detail}"
    detail: str


_SAVING_REMEDIES = {
    "full": "free some disk space",
    "files": "remove some files there, for the disk takes no more of them, whatever is free",
    "denied": "set ONEGRAPH_HOME to a folder that this user can write",
    "open": "set ONEGRAPH_HOME to a folder of this user alone",
    "": "set ONEGRAPH_HOME to a folder on another disk",
}


class NotSaved(Reason):
    """No folder took a graph: it is full, this user may not write it, or others may; or something else."""

    detail: str
    fault: Literal["full", "files", "denied", "open", ""] = ""

    def clause(self) -> str:
        return f"The graph could not be saved ({self.detail}); {_SAVING_REMEDIES[self.fault]}."


class SystemMemoryShort(Reason):
    """Python had no memory left for a graph's files, or for what a compile needs of this process."""

    sentence = "there is no memory left to find, compile or load a graph; close other programs, or give this one more"


class LoadFailed(Reason):
    sentence = "{detail}"
    detail: str


class GraphDoesNotFit(Reason):
    sentence = "{backend} would hold {needed:bytes} for {label}, and {left:bytes} are left for graphs"
    backend: str
    needed: int
    label: str
    left: int


class CompiledAgainLater(Reason):
    sentence = "{because}; a later run compiles it anew"
    because: Reason


class TooManyExactSizes(Reason):
    sentence = "{most} exact sizes were compiled already and {label} has no graph"
    most: int
    label: str


class GraphClosed(Reason):
    sentence = "the graph was closed to make room for others"
