"""What a workflow asks for that no graph serves."""

from __future__ import annotations

from .base import Reason


class NotCompilable(Reason):
    sentence = "{type} is not a model that OneGraph compiles{hint:()}"
    type: str
    hint: str = ""


class NewerHost(Reason):
    sentence = "this ComfyUI is newer than OneGraph knows ({type} without {method}); update OneGraph"
    type: str
    method: str


_WITHOUT = {
    "model": "no model runs compiled",
    "blocks": "no model runs by block graphs",
    "ControlNet": "no ControlNet runs compiled",
    "VAE": "no VAE runs compiled",
    "DynamicVRAM": "no model runs compiled under DynamicVRAM",
    "memory": "CUDA graphs keep their memory until their model goes",
    "texts": "nodes may show nothing",
    "loading": "nodes that load files list none",
    "headers": "nothing is told of a workflow's models without a run",
    "baking": "no workflow can be compiled ahead here",
}


class HostLacks(Reason):
    feature: str
    names: tuple[str, ...]

    def clause(self) -> str:
        return (
            f"{_WITHOUT.get(self.feature, self.feature)}, because this ComfyUI does not have {', '.join(self.names)} "
            "as OneGraph knows it; update OneGraph"
        )


class UnknownArgument(Reason):
    sentence = "the workflow passes {name} to the model"
    name: str


class VideoFrames(Reason):
    sentence = "this model computes the frames of a video together, which no graph does"


class UnionControlNet(Reason):
    code = "union_controlnet"
    sentence = "a union ControlNet chooses among its types at each call, which no graph does"


class ResidualSize(Reason):
    kind: str
    number: int
    shape: tuple[int, ...]
    wanted: tuple[int, ...]

    def clause(self) -> str:
        actual, wanted = (" x ".join(map(str, shape)) for shape in (self.shape, self.wanted))
        block = f"{self.kind} block {self.number}"
        return f"a ControlNet or an adapter gives {block} a residual of {actual}, and a graph takes {wanted}"


class UnusualResidual(Reason):
    sentence = "a ControlNet or an adapter gives this model residuals that no graph takes ({what})"
    what: str


class PatchedBy(Reason):
    code = "patched"
    sentence = "{name} patches this model ({where})"
    name: str
    where: str


class ReplacedBy(Reason):
    code = "replaced"
    sentence = "{name} replaces parts of this model ({where})"
    name: str
    where: str


class ModelOption(Reason):
    sentence = "the workflow sets the model option {name}, which no graph honours"
    name: str


class NotPlainInputs(Reason):
    sentence = "the call's inputs are not plain tensors"


class UnusualInputs(Reason):
    sentence = "the call's inputs have unusual dimensions"


class NotImages(Reason):
    sentence = "the call's input is not a batch of images"


class ForwardReplaced(Reason):
    sentence = "another custom node replaced {name} for this call{by:()}"
    name: str
    by: str


class NothingCompiled(Reason):
    sentence = "nothing compiled"


class NoNode(Reason):
    sentence = "the model that was called has no Compile Model node in this sampling"


class CallFailed(Reason):
    sentence = "a compiled call failed ({type}: {detail})"
    type: str
    detail: str


class NotInspected(Reason):
    sentence = "the {what} could not be inspected ({type}: {detail})"
    what: str
    type: str
    detail: str


class Injection(Reason):
    sentence = "{name} injects code into this model"
    name: str


class ObjectPatch(Reason):
    sentence = "an object patch replaces {name}"
    name: str


class WeightWrapper(Reason):
    sentence = "a weight wrapper changes {name} at each use"
    name: str


class LowVram(Reason):
    sentence = "part of the model stays in system memory (low VRAM)"


class TorchCompile(Reason):
    sentence = "another node runs this model through torch.compile"


class WeightComputed(Reason):
    sentence = "the weight of {where} is computed at each use"
    where: str


class WeightCast(Reason):
    sentence = "the weights of {where} are cast or moved at each use"
    where: str


class Gradients(Reason):
    sentence = "gradients are wanted through this call, and no graph computes them"


class Autocast(Reason):
    sentence = "another custom node runs this call under torch.autocast"


class DispatchMode(Reason):
    sentence = "another custom node watches or changes each operation of this call (a torch dispatch mode)"


class DefaultDtype(Reason):
    sentence = "another custom node made {dtype} torch's default dtype, and graphs are compiled with float32"
    dtype: str


class DynamicVramMoves(Reason):
    sentence = "DynamicVRAM computes or moves the {key} of {where} at each use"
    key: str
    where: str


class VaeOptions(Reason):
    sentence = "the workflow passes options to this VAE's {method}"
    method: str


class VaeMethodReplaced(Reason):
    sentence = "another node replaced this VAE's {method}"
    method: str


class VaeCopied(Reason):
    sentence = "another node copied this VAE's first_stage_model, so DynamicVRAM does not look after its weights"


class VideoVae(Reason):
    sentence = "{type} is a video or audio VAE"
    type: str


class OwnTiling(Reason):
    sentence = "{type} tiles its own work"
    type: str


class NoTextBlocks(Reason):
    sentence = "{type} has no blocks of texts that OneGraph compiles"
    type: str


class NotACompilableVae(Reason):
    sentence = "{type} is not a VAE that OneGraph compiles"
    type: str


class SeveralFrames(Reason):
    sentence = "this VAE computes {frames} frames one part after the other, and graphs serve single images"
    frames: int


class UnusualVae(Reason):
    sentence = "{type} has an unusual encoder or decoder"
    type: str


class SplitBatches(Reason):
    code = "normalised_latents"
    sentence = "{type} splits its batches"
    type: str


class VaeOverflows(Reason):
    dtype: str
    rescued: bool

    def clause(self) -> str:
        return f"this VAE itself overflows in {self.dtype} on this image" + (
            ", so it ran in float32; start ComfyUI with --fp32-vae" if self.rescued else "; use another VAE"
        )


class Float32Failed(Reason):
    sentence = "this VAE itself overflows, and float32 failed ({type})"
    type: str


class ResolutionVaries(Reason):
    sentence = "{rule}: the resolution varies ({seen} so far)"
    rule: str
    seen: int


class SizeCameOnce(Reason):
    sentence = "{rule}: compiles when this size comes up again"
    rule: str


class PagedWeights(Reason):
    sentence = "DynamicVRAM pages this model's weights; start ComfyUI with --disable-dynamic-vram to run it compiled"


class NoRoomForWeights(Reason):
    sentence = "the model does not fit into the VRAM that is free, so DynamicVRAM pages its weights"


class OffloadedWeights(Reason):
    sentence = "diffusers brings this model's weights to the device for each call"


class WeightsMoving(Reason):
    sentence = "DynamicVRAM is moving this model's weights"


class EachSizeOwnGraph(Reason):
    backend: str = ""

    def clause(self) -> str:
        return (
            f"{self.backend} has no graphs for any size, so each size has its own"
            if self.backend
            else "each size has its own graph"
        )


class OneGraphForAnySize(Reason):
    auto: bool

    def clause(self) -> str:
        return "auto: one graph for any size" if self.auto else "one graph for any size"


class SizeCameAgain(Reason):
    sentence = "{rule}: this size came up again"
    rule: str


class TilesNeverCompile(Reason):
    sentence = "tiles never compile"
