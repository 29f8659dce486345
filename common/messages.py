"""Reasons as the sentences that users read: the only place that turns one into the other."""

from __future__ import annotations

import functools

from . import reasons
from .memory import in_words
from .reasons import Reason


@functools.singledispatch
def text(reason: Reason) -> str:
    """Describe a reason in one clause without a full stop, as it follows "eager: " on a node.

    Args:
        reason: any reason.

    Raises:
        TypeError: no sentence is registered for its class.
    """
    raise TypeError(f"no message for {type(reason).__name__}")


# A call's inputs against a graph's shape range -----------------------------------------------------------------


@text.register
def _(r: reasons.InputCount) -> str:
    return f"{r.got} inputs instead of {r.wanted}"


@text.register
def _(r: reasons.InputDevice) -> str:
    return f"{r.name} is on {r.got}, the graph is for {r.wanted}"


@text.register
def _(r: reasons.InputDtype) -> str:
    return f"{r.name} is {r.got}, the graph takes {r.wanted}"


@text.register
def _(r: reasons.InputRank) -> str:
    return f"{r.name} has {r.got} dimensions instead of {r.wanted}"


@text.register
def _(r: reasons.InputLength) -> str:
    return f"{r.name} has shape {list(r.shape)}, {r.got} should be {r.wanted}"


@text.register
def _(r: reasons.InputsDisagree) -> str:
    return f"{r.name} has {r.dim} {r.got}, another input has {r.other}"


@text.register
def _(r: reasons.OutOfRange) -> str:
    return f"{r.dim} {_size(r.got, r.unit)} is outside {_size(r.low, r.unit)}..{_size(r.high, r.unit)}{_pixels(r.unit)}"


@text.register
def _(r: reasons.OtherSize) -> str:
    return f"{r.dim} {_size(r.got, r.unit)} is not the {_size(r.wanted, r.unit)}{_pixels(r.unit)} it was compiled for"


@text.register
def _(r: reasons.NotAMultiple) -> str:
    return f"{r.dim} {_size(r.got, r.unit)} is not a multiple of {_size(r.multiple, r.unit)}{_pixels(r.unit)}"


@text.register
def _(r: reasons.NotAdmitted) -> str:
    return f"{text(r.because)} ({r.label})"


# The store -----------------------------------------------------------------------------------------------------


@text.register
def _(r: reasons.NoGraph) -> str:
    if not r.difference:
        return "no graph is cached for this model yet"
    return f"the graphs cached for this model differ in {r.difference}"


@text.register
def _(r: reasons.OtherKey) -> str:
    return f"the graph in its folder differs in {r.difference}"


@text.register
def _(r: reasons.Damaged) -> str:
    return f"the cached graph is damaged: {damage(r)}"


@functools.singledispatch
def damage(reason: reasons.Damaged) -> str:
    """Describe what is wrong with an entry's files, in a clause that follows "damaged: ".

    Raises:
        TypeError: no sentence is registered for its class.
    """
    raise TypeError(f"no message for {type(reason).__name__}")


@damage.register
def _(r: reasons.MissingFile) -> str:
    return f"its file {r.file} is missing"


@damage.register
def _(r: reasons.WrongSize) -> str:
    return f"its file {r.file} has {r.got} bytes instead of {r.wanted}"


@damage.register
def _(r: reasons.DigestDiffers) -> str:
    return f"the contents of its file {r.file} have changed"


@damage.register
def _(r: reasons.UnreadableFile) -> str:
    return f"its file {r.file} cannot be read ({r.detail})"


@damage.register
def _(r: reasons.UnreadableManifest) -> str:
    return f"its manifest cannot be read ({r.detail})"


@text.register
def _(r: reasons.DiedWhileLoading) -> str:
    return "the cached graph was quarantined, because the process that loaded it last died meanwhile"


# Backends and compiling ----------------------------------------------------------------------------------------


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
    return "compiling in the background; a later run uses the graph"


@text.register
def _(r: reasons.StillCompiling) -> str:
    return f"still compiling in the background ({r.seconds} s so far{_share(r.share)})"


@text.register
def _(r: reasons.CompileDoesNotFit) -> str:
    return f"compiling needs {in_words(r.needed)} of GPU memory{_beside(r.planned)}, and {in_words(r.free)} are free"


@text.register
def _(r: reasons.PutOff) -> str:
    return f"{text(r.because)}; it compiles when the queue is empty"


@text.register
def _(r: reasons.TriedTooOften) -> str:
    return f"{text(r.because)} It was tried {r.tries} times."


@text.register
def _(r: reasons.WaitsForMemory) -> str:
    return f"{text(r.because)} It is tried again when {in_words(r.wanted)} are free."


@text.register
def _(r: reasons.NeedsRestart) -> str:
    return f"{text(r.because)}; restart ComfyUI to use the graph"


@text.register
def _(r: reasons.CaptureFailed) -> str:
    return r.detail


@text.register
def _(r: reasons.CompileFailed) -> str:
    return r.detail


@text.register
def _(r: reasons.NotSaved) -> str:
    return f"The graph could not be saved ({r.detail}); free some disk space."


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


# Weights, functions and first use ------------------------------------------------------------------------------


@text.register
def _(r: reasons.OtherHostVersion) -> str:
    return f"this ComfyUI has another version of {r.name} than the graph was compiled from"


@text.register
def _(r: reasons.FunctionReplaced) -> str:
    return f"another custom node replaced {r.name}{r.by and f' ({r.by})'}"


@text.register
def _(r: reasons.ForwardHook) -> str:
    return f"a forward hook sits on {r.where}"


@text.register
def _(r: reasons.ReplacedPart) -> str:
    return f"another custom node replaced the {r.what} of {r.where}{r.by and f' ({r.by})'}"


@text.register
def _(r: reasons.NoSuchWeight) -> str:
    return f"the model has no weight {r.name}"


@text.register
def _(r: reasons.NotPlainWeight) -> str:
    return f"a weight is a {r.type}, not a plain tensor"


@text.register
def _(r: reasons.WeightElsewhere) -> str:
    return f"part of the model is on {r.got}, not on {r.wanted}"


@text.register
def _(r: reasons.WeightDiffers) -> str:
    return f"weight {r.name} is {r.got}, the graph was compiled for {r.wanted}"


@text.register
def _(r: reasons.BindFailed) -> str:
    return r.detail


@text.register
def _(r: reasons.SlowerThanEager) -> str:
    return f"the compiled graph is slower than eager here ({r.speedup:.2f}x)"


@text.register
def _(r: reasons.OtherResult) -> str:
    return f"it returns {r.got} where eager returns {r.wanted}"


@text.register
def _(r: reasons.NotFinite) -> str:
    return "it returns values that are not finite where eager's are"


@text.register
def _(r: reasons.EagerNotFinite) -> str:
    return "eager is not finite here either, and the graph differs from it"


@text.register
def _(r: reasons.TooFarFromEager) -> str:
    return f"it differs from eager by {r.rel_l2:.2g} (relative L2, at most {r.bound:.2g} is rounding)"


@text.register
def _(r: reasons.FirstUseFailed) -> str:
    return f"the graph failed its first-use check: {text(r.because)}"


@text.register
def _(r: reasons.SpotCheckFailed) -> str:
    return f"the graph failed a later check: {text(r.because)}"


@text.register
def _(r: reasons.GraphNotFinite) -> str:
    return "the graph returned values that are not finite where eager's are; it is not used again"


@text.register
def _(r: reasons.MemoryRanOut) -> str:
    return "memory ran out in a compiled call, also after captured CUDA graphs were released"


# The workflow --------------------------------------------------------------------------------------------------


@text.register
def _(r: reasons.NotCompilable) -> str:
    return f"{r.type} is not a model that OneGraph compiles{r.hint and f' ({r.hint})'}"


@text.register
def _(r: reasons.NewerHost) -> str:
    return "this ComfyUI is newer than OneGraph knows (UNetModel without _forward); update OneGraph"


@text.register
def _(r: reasons.UnknownArgument) -> str:
    return f"the workflow passes {r.name} to the model"


@text.register
def _(r: reasons.ControlNet) -> str:
    return "a ControlNet steers this model"


@text.register
def _(r: reasons.PatchedBy) -> str:
    return f"{r.name} patches this model ({r.where})"


@text.register
def _(r: reasons.ReplacedBy) -> str:
    return f"{r.name} replaces parts of this model ({r.where})"


@text.register
def _(r: reasons.ModelOption) -> str:
    return f"the workflow sets the model option {r.name}, which no graph honours"


@text.register
def _(r: reasons.NotPlainInputs) -> str:
    return "the call's inputs are not plain tensors"


@text.register
def _(r: reasons.UnusualInputs) -> str:
    return "the call's inputs have unusual dimensions"


@text.register
def _(r: reasons.NotImages) -> str:
    return "the call's input is not a batch of images"


@text.register
def _(r: reasons.ForwardReplaced) -> str:
    return f"another custom node replaced UNetModel._forward for this call{r.by and f' ({r.by})'}"


@text.register
def _(r: reasons.NothingCompiled) -> str:
    return "nothing compiled"


@text.register
def _(r: reasons.NoNode) -> str:
    return "the model that was called has no Compile Model node in this sampling"


@text.register
def _(r: reasons.CallFailed) -> str:
    return f"a compiled call failed ({r.type}: {r.detail})"


@text.register
def _(r: reasons.NotInspected) -> str:
    return f"the {r.what} could not be inspected ({r.type}: {r.detail})"


@text.register
def _(r: reasons.Injection) -> str:
    return f"{r.name} injects code into this model"


@text.register
def _(r: reasons.ObjectPatch) -> str:
    return f"an object patch replaces {r.name}"


@text.register
def _(r: reasons.WeightWrapper) -> str:
    return f"a weight wrapper changes {r.name} at each use"


@text.register
def _(r: reasons.LowVram) -> str:
    return "part of the model stays in system memory (low VRAM)"


@text.register
def _(r: reasons.TorchCompile) -> str:
    return "another node runs this model through torch.compile"


@text.register
def _(r: reasons.WeightComputed) -> str:
    return f"the weight of {r.where} is computed at each use"


@text.register
def _(r: reasons.WeightCast) -> str:
    return f"the weights of {r.where} are cast or moved at each use"


@text.register
def _(r: reasons.Gradients) -> str:
    return "gradients are wanted through this call, and no graph computes them"


@text.register
def _(r: reasons.Autocast) -> str:
    return "another custom node runs this call under torch.autocast"


@text.register
def _(r: reasons.DispatchMode) -> str:
    return "another custom node watches or changes each operation of this call (a torch dispatch mode)"


@text.register
def _(r: reasons.DynamicVramMoves) -> str:
    return f"DynamicVRAM computes or moves the {r.key} of {r.where} at each use"


@text.register
def _(r: reasons.VaeOptions) -> str:
    return f"the workflow passes options to this VAE's {r.method}"


@text.register
def _(r: reasons.VaeMethodReplaced) -> str:
    return f"another node replaced this VAE's {r.method}"


@text.register
def _(r: reasons.VaeCopied) -> str:
    return "another node copied this VAE's first_stage_model, so DynamicVRAM does not look after its weights"


@text.register
def _(r: reasons.VideoVae) -> str:
    return f"{r.type} is a video or audio VAE"


@text.register
def _(r: reasons.OwnTiling) -> str:
    return f"{r.type} tiles its own work"


@text.register
def _(r: reasons.NotACompilableVae) -> str:
    return f"{r.type} is not a VAE that OneGraph compiles"


@text.register
def _(r: reasons.UnusualVae) -> str:
    return f"{r.type} has an unusual encoder or decoder"


@text.register
def _(r: reasons.NormalisedLatents) -> str:
    return f"{r.type} normalises its latents or splits its batches"


@text.register
def _(r: reasons.VaeOverflows) -> str:
    return f"this VAE itself overflows in {r.dtype} on this image" + (
        ", so it ran in float32; start ComfyUI with --fp32-vae" if r.rescued else "; use another VAE"
    )


@text.register
def _(r: reasons.Float32Failed) -> str:
    return f"this VAE itself overflows, and float32 failed ({r.type})"


@text.register
def _(r: reasons.ResolutionVaries) -> str:
    return f"{r.rule}: the resolution varies ({r.seen} so far)"


@text.register
def _(r: reasons.SizeCameOnce) -> str:
    return f"{r.rule}: compiles when this size comes up again"


@text.register
def _(r: reasons.PagedWeights) -> str:
    return "DynamicVRAM pages this model's weights; start ComfyUI with --disable-dynamic-vram to run it compiled"


@text.register
def _(r: reasons.NoRoomForWeights) -> str:
    return "the model does not fit into the VRAM that is free, so DynamicVRAM pages its weights"


@text.register
def _(r: reasons.WeightsMoving) -> str:
    return "DynamicVRAM is moving this model's weights"


@text.register
def _(r: reasons.EachSizeOwnGraph) -> str:
    return (
        f"{r.backend} has no graphs for any size, so each size has its own"
        if r.backend
        else "each size has its own graph"
    )


@text.register
def _(r: reasons.OneGraphForAnySize) -> str:
    return "auto: one graph for any size" if r.auto else "one graph for any size"


@text.register
def _(r: reasons.SizeCameAgain) -> str:
    return f"{r.rule}: this size came up again"


@text.register
def _(r: reasons.TilesNeverCompile) -> str:
    return "tiles never compile"


def _size(value: int, unit: int) -> int:
    """A size in pixels where a unit is given: sizes inside are in latent units, users think in pixels."""
    return value * unit if unit else value


def _pixels(unit: int) -> str:
    return " pixels" if unit else ""


def _share(share: float | None) -> str:
    return "" if share is None else f", {share:.0%}"


def _beside(planned: int) -> str:
    return f" beside the {in_words(planned)} of this run" if planned else ""
