"""What a workflow asks for that no graph serves."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Reason


@dataclass(frozen=True)
class NotCompilable(Reason):
    code = "not_compilable"
    type: str
    hint: str = ""


@dataclass(frozen=True)
class NewerHost(Reason):
    code = "newer_host"


@dataclass(frozen=True)
class HostLacks(Reason):
    code = "host_lacks"
    feature: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class UnknownArgument(Reason):
    code = "unknown_argument"
    name: str


@dataclass(frozen=True)
class VideoFrames(Reason):
    code = "video_frames"


@dataclass(frozen=True)
class UnionControlNet(Reason):
    code = "union_controlnet"


@dataclass(frozen=True)
class ResidualSize(Reason):
    code = "residual_size"
    kind: str
    number: int
    shape: tuple[int, ...]
    wanted: tuple[int, ...]


@dataclass(frozen=True)
class UnusualResidual(Reason):
    code = "unusual_residual"
    what: str


@dataclass(frozen=True)
class PatchedBy(Reason):
    code = "patched"
    name: str
    where: str


@dataclass(frozen=True)
class ReplacedBy(Reason):
    code = "replaced"
    name: str
    where: str


@dataclass(frozen=True)
class ModelOption(Reason):
    code = "model_option"
    name: str


@dataclass(frozen=True)
class NotPlainInputs(Reason):
    code = "not_plain_inputs"


@dataclass(frozen=True)
class UnusualInputs(Reason):
    code = "unusual_inputs"


@dataclass(frozen=True)
class NotImages(Reason):
    code = "not_images"


@dataclass(frozen=True)
class ForwardReplaced(Reason):
    code = "forward_replaced"
    by: str


@dataclass(frozen=True)
class NothingCompiled(Reason):
    code = "nothing_compiled"


@dataclass(frozen=True)
class NoNode(Reason):
    code = "no_node"


@dataclass(frozen=True)
class CallFailed(Reason):
    code = "call_failed"
    type: str
    detail: str


@dataclass(frozen=True)
class NotInspected(Reason):
    code = "not_inspected"
    what: str
    type: str
    detail: str


@dataclass(frozen=True)
class Injection(Reason):
    code = "injection"
    name: str


@dataclass(frozen=True)
class ObjectPatch(Reason):
    code = "object_patch"
    name: str


@dataclass(frozen=True)
class WeightWrapper(Reason):
    code = "weight_wrapper"
    name: str


@dataclass(frozen=True)
class LowVram(Reason):
    code = "low_vram"


@dataclass(frozen=True)
class TorchCompile(Reason):
    code = "torch_compile"


@dataclass(frozen=True)
class WeightComputed(Reason):
    code = "weight_computed"
    where: str


@dataclass(frozen=True)
class WeightCast(Reason):
    code = "weight_cast"
    where: str


@dataclass(frozen=True)
class Gradients(Reason):
    code = "gradients"


@dataclass(frozen=True)
class Autocast(Reason):
    code = "autocast"


@dataclass(frozen=True)
class DispatchMode(Reason):
    code = "dispatch_mode"


@dataclass(frozen=True)
class DynamicVramMoves(Reason):
    code = "dynamic_vram_moves"
    key: str
    where: str


@dataclass(frozen=True)
class VaeOptions(Reason):
    code = "vae_options"
    method: str


@dataclass(frozen=True)
class VaeMethodReplaced(Reason):
    code = "vae_method_replaced"
    method: str


@dataclass(frozen=True)
class VaeCopied(Reason):
    code = "vae_copied"


@dataclass(frozen=True)
class VideoVae(Reason):
    code = "video_vae"
    type: str


@dataclass(frozen=True)
class OwnTiling(Reason):
    code = "own_tiling"
    type: str


@dataclass(frozen=True)
class NotACompilableVae(Reason):
    code = "not_a_compilable_vae"
    type: str


@dataclass(frozen=True)
class UnusualVae(Reason):
    code = "unusual_vae"
    type: str


@dataclass(frozen=True)
class NormalisedLatents(Reason):
    code = "normalised_latents"
    type: str


@dataclass(frozen=True)
class VaeOverflows(Reason):
    code = "vae_overflows"
    dtype: str
    rescued: bool


@dataclass(frozen=True)
class Float32Failed(Reason):
    code = "float32_failed"
    type: str


@dataclass(frozen=True)
class ResolutionVaries(Reason):
    code = "resolution_varies"
    rule: str
    seen: int


@dataclass(frozen=True)
class SizeCameOnce(Reason):
    code = "size_came_once"
    rule: str


@dataclass(frozen=True)
class PagedWeights(Reason):
    code = "paged_weights"


@dataclass(frozen=True)
class NoRoomForWeights(Reason):
    code = "no_room_for_weights"


@dataclass(frozen=True)
class WeightsMoving(Reason):
    code = "weights_moving"


@dataclass(frozen=True)
class EachSizeOwnGraph(Reason):
    code = "each_size_own_graph"
    backend: str = ""


@dataclass(frozen=True)
class OneGraphForAnySize(Reason):
    code = "one_graph_for_any_size"
    auto: bool


@dataclass(frozen=True)
class SizeCameAgain(Reason):
    code = "size_came_again"
    rule: str


@dataclass(frozen=True)
class TilesNeverCompile(Reason):
    code = "tiles_never_compile"
