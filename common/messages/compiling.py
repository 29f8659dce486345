"""Sentences: why a backend cannot serve, and why nothing compiles."""

from __future__ import annotations

from .. import reasons
from ..memory import in_words
from .base import text


@text.register
def _(r: reasons.TorchTooOld) -> str:
    return f"torch {r.version} is older than {r.oldest}, the first with AOTInductor packages"


@text.register
def _(r: reasons.WrongDeviceType) -> str:
    return f"{r.graphs} graphs run on CPU and CUDA devices, not on {r.device}"


@text.register
def _(r: reasons.NoCompiler) -> str:
    wanted = r.chosen or "g++ or clang++"
    return f"no C++ compiler ({wanted}) on PATH; install one, for instance the package g++"


@text.register
def _(r: reasons.MissingPackage) -> str:
    if r.wanted_by:
        return f"{r.wanted_by} needs the package {r.package}, even on a CPU ({r.install})"
    return f"{r.package} is not installed; {r.install} installs it on Linux x86-64 with Python 3.10 or older"


@text.register
def _(r: reasons.OtherVersion) -> str:
    return f"{r.package} {r.found} is installed, graphs need {r.wanted} exactly ({r.install})"


@text.register
def _(r: reasons.PackageTooNew) -> str:
    return f"{r.wanted_by} needs {r.package} below {r.below}, {r.found} is installed ({r.install})"


@text.register
def _(r: reasons.NoGpu) -> str:
    return f"{r.graphs} graphs need an NVIDIA GPU for the device cuda, there is none"


@text.register
def _(r: reasons.NoKernels) -> str:
    major, minor = r.capability
    return f"{r.library} has no kernels for sm_{major}{minor} (it has sm_60 to sm_86, which sm_89 runs too)"


@text.register
def _(r: reasons.BackendCannotServe) -> str:
    return f"the {r.backend} backend cannot serve {r.label}"


@text.register
def _(r: reasons.CompilesInBackground) -> str:
    why = "" if r.because is None else f" ({text(r.because)})"
    return f"compiling in the background; a later run uses the graph{why}"


@text.register
def _(r: reasons.StillCompiling) -> str:
    return f"still compiling in the background ({r.seconds} s so far{_share(r.share)})"


@text.register
def _(r: reasons.CompileDoesNotFit) -> str:
    return f"compiling needs {in_words(r.needed)} of GPU memory{_beside(r.planned)}, and {in_words(r.free)} are free"


@text.register
def _(r: reasons.PutOff) -> str:
    return f"{text(r.because)}; it compiles when the queue is empty"


_LATEST = "a day later, or after `onegraph retry`"
_A_DAY_LATER = "is tried again a day later, or after `onegraph retry`"


@text.register
def _(r: reasons.TriedTooOften) -> str:
    return f"{text(r.because)} It was tried {r.tries} times and {_A_DAY_LATER}."


@text.register
def _(r: reasons.WaitsADay) -> str:
    return f"{text(r.because)} It {_A_DAY_LATER}."


@text.register
def _(r: reasons.WaitsForMemory) -> str:
    return f"{text(r.because)} It is tried again when {in_words(r.wanted)} are free, {_LATEST}."


@text.register
def _(r: reasons.WaitsForDisk) -> str:
    return f"{text(r.because)} It is tried again when {in_words(r.wanted)} of the disk are free, {_LATEST}."


@text.register
def _(r: reasons.WaitsForPlace) -> str:
    return f"{sentence(text(r.because))} It is tried again in another folder, {_LATEST}."


_CHANGES = {
    "onegraph": "OneGraph",
    "torch": "torch",
    "host": "ComfyUI",
    "compiler": "the C++ compiler",
    "driver": "the driver",
}


@text.register
def _(r: reasons.WaitsForChange) -> str:
    names = [name for code, name in _CHANGES.items() if code in r.changes]
    versions = f"with another version of {', '.join(names)}, " if names else ""
    limit = "with another ONEGRAPH_COMPILE_TIMEOUT, " if "timeout" in r.changes else ""
    return f"{sentence(text(r.because))} It is tried again {versions}{limit}or after `onegraph retry`."


@text.register
def _(r: reasons.NeedsRestart) -> str:
    return f"{text(r.because)}; restart ComfyUI to use the graph"


@text.register
def _(r: reasons.CaptureFailed) -> str:
    return r.detail


@text.register
def _(r: reasons.CompileFailed) -> str:
    return r.detail


_SAVING_REMEDIES = {
    "full": "free some disk space",
    "denied": "set ONEGRAPH_HOME to a folder that this user can write",
    "open": "set ONEGRAPH_HOME to a folder of this user alone",
    "": "set ONEGRAPH_HOME to a folder on another disk",
}


@text.register
def _(r: reasons.NotSaved) -> str:
    return f"The graph could not be saved ({r.detail}); {_SAVING_REMEDIES[r.fault]}."


@text.register
def _(r: reasons.LoadFailed) -> str:
    return r.detail


@text.register
def _(r: reasons.GraphDoesNotFit) -> str:
    return f"{r.backend} would hold {in_words(r.needed)} for {r.label}, and {in_words(r.left)} are left for graphs"


@text.register
def _(r: reasons.CompiledAgainLater) -> str:
    return f"{text(r.because)}; a later run compiles it anew"


@text.register
def _(r: reasons.TooManyExactSizes) -> str:
    return f"{r.most} exact sizes were compiled already and {r.label} has no graph"


@text.register
def _(r: reasons.GraphClosed) -> str:
    return "the graph was closed to make room for others"


def sentence(clause: str) -> str:
    """End a clause as a sentence."""
    return clause if clause.endswith(".") else f"{clause}."


def _share(share: float | None) -> str:
    return "" if share is None else f", {share:.0%}"


def _beside(planned: int) -> str:
    return f" beside the {in_words(planned)} of this run" if planned else ""
