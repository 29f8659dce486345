"""Sentences: what a workflow asks for that no graph serves."""

from __future__ import annotations

from .. import reasons
from .base import text


@text.register
def _(r: reasons.NotCompilable) -> str:
    return f"{r.type} is not a model that OneGraph compiles{r.hint and f' ({r.hint})'}"


@text.register
def _(r: reasons.NewerHost) -> str:
    return "this ComfyUI is newer than OneGraph knows (UNetModel without _forward); update OneGraph"


_WITHOUT = {
    "model": "no model runs compiled",
    "ControlNet": "no ControlNet runs compiled",
    "VAE": "no VAE runs compiled",
    "DynamicVRAM": "no model runs compiled under DynamicVRAM",
    "memory": "CUDA graphs keep their memory until their model goes",
    "texts": "nodes may show nothing",
    "loading": "nodes that load files list none",
}


@text.register
def _(r: reasons.HostLacks) -> str:
    return (
        f"{_WITHOUT.get(r.feature, r.feature)}, because this ComfyUI does not have {', '.join(r.names)} "
        "as OneGraph knows it; update OneGraph"
    )


@text.register
def _(r: reasons.UnknownArgument) -> str:
    return f"the workflow passes {r.name} to the model"


@text.register
def _(r: reasons.VideoFrames) -> str:
    return "this model computes the frames of a video together, which no graph does"


@text.register
def _(r: reasons.UnionControlNet) -> str:
    return "a union ControlNet chooses among its types at each call, which no graph does"


@text.register
def _(r: reasons.ResidualSize) -> str:
    found, wanted = (" x ".join(map(str, shape)) for shape in (r.shape, r.wanted))
    return (
        f"a ControlNet or an adapter gives {r.kind} block {r.number} a residual of {found}, and a graph takes {wanted}"
    )


@text.register
def _(r: reasons.UnusualResidual) -> str:
    return f"a ControlNet or an adapter gives this model residuals that no graph takes ({r.what})"


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
