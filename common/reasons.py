"""Why something was refused: values that programs compare by `code`, and that `messages.text` turns into sentences.

A reason is immutable and hashable, so that reports count by it. Facts are plain values (numbers, names, other reasons);
no reason holds a sentence of its own, except those that carry the text of a foreign error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Reason:
    """Base of all reasons. `code` names the kind for programs and never changes once released."""

    code: ClassVar[str]


# A call's inputs against a graph's shape range -----------------------------------------------------------------


@dataclass(frozen=True)
class InputCount(Reason):
    code = "input_count"
    got: int
    wanted: int


@dataclass(frozen=True)
class InputDevice(Reason):
    code = "input_device"
    name: str
    got: str
    wanted: str


@dataclass(frozen=True)
class InputDtype(Reason):
    code = "input_dtype"
    name: str
    got: str
    wanted: str


@dataclass(frozen=True)
class InputRank(Reason):
    code = "input_rank"
    name: str
    got: int
    wanted: int


@dataclass(frozen=True)
class InputLength(Reason):
    code = "input_length"
    name: str
    shape: tuple[int, ...]
    got: int
    wanted: int


@dataclass(frozen=True)
class InputsDisagree(Reason):
    code = "inputs_disagree"
    name: str
    dim: str
    got: int
    other: int


@dataclass(frozen=True)
class OutOfRange(Reason):
    code = "out_of_range"
    dim: str
    got: int
    low: int
    high: int
    unit: int = 0


@dataclass(frozen=True)
class OtherSize(Reason):
    code = "other_size"
    dim: str
    got: int
    wanted: int
    unit: int = 0


@dataclass(frozen=True)
class NotAMultiple(Reason):
    code = "not_a_multiple"
    dim: str
    got: int
    multiple: int
    unit: int = 0


@dataclass(frozen=True)
class NotAdmitted(Reason):
    code = "not_admitted"
    because: Reason
    label: str


# The store -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NoGraph(Reason):
    """No cached graph of the model has the key; `difference` is how the nearest one's differs, empty without any."""

    code = "no_graph"
    difference: str = ""


@dataclass(frozen=True)
class OtherKey(Reason):
    """The entry in the folder that the key names has another key."""

    code = "other_key"
    difference: str


@dataclass(frozen=True)
class Damaged(Reason):
    """An entry's files are not what its manifest lists; each way has a class of its own."""

    code = "damaged"


@dataclass(frozen=True)
class MissingFile(Damaged):
    """A file is not there, or something else is in its place."""

    code = "missing_file"
    file: str


@dataclass(frozen=True)
class WrongSize(Damaged):
    """A file was cut short or grew; sizes in bytes."""

    code = "wrong_size"
    file: str
    got: int
    wanted: int


@dataclass(frozen=True)
class DigestDiffers(Damaged):
    """A file of the right size has other contents."""

    code = "digest_differs"
    file: str


@dataclass(frozen=True)
class UnreadableFile(Damaged):
    code = "unreadable_file"
    file: str
    detail: str


@dataclass(frozen=True)
class UnreadableManifest(Damaged):
    code = "unreadable_manifest"
    detail: str


@dataclass(frozen=True)
class DiedWhileLoading(Reason):
    """A process of this machine ended while it loaded the entry or called it for the first time."""

    code = "died_while_loading"


# Backends and compiling ----------------------------------------------------------------------------------------


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
    code = "compiles_in_background"


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
class WaitsForMemory(Reason):
    code = "waits_for_memory"
    because: Reason
    wanted: int


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
    code = "not_saved"
    detail: str


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


# Weights, functions and first use ------------------------------------------------------------------------------


@dataclass(frozen=True)
class OtherHostVersion(Reason):
    """The host has another version of a function than the graph was captured from.

    Attributes:
        name: of the function, as users know it: `ResBlock._forward`, `openaimodel.timestep_embedding`.
    """

    code = "other_host_version"
    name: str


@dataclass(frozen=True)
class FunctionReplaced(Reason):
    """A function of the host was replaced at run time, and may be put back.

    Attributes:
        name: of the function, as users know it.
        by: the custom node that the replacement comes from; empty where nobody can tell.
    """

    code = "function_replaced"
    name: str
    by: str = ""


@dataclass(frozen=True)
class ForwardHook(Reason):
    """A forward hook sits on a module.

    Attributes:
        where: the module's path and class, e.g. `out.2 (Conv2d)`, or `every module`.
    """

    code = "forward_hook"
    where: str


@dataclass(frozen=True)
class ReplacedPart(Reason):
    """An attribute of a module hides what its class computes with.

    Attributes:
        what: the attribute, e.g. `forward`.
        where: the module's path and class.
        by: the custom node that it comes from; empty where nobody can tell.
    """

    code = "replaced_part"
    what: str
    where: str
    by: str = ""


@dataclass(frozen=True)
class NoSuchWeight(Reason):
    code = "no_such_weight"
    name: str


@dataclass(frozen=True)
class NotPlainWeight(Reason):
    code = "not_plain_weight"
    type: str


@dataclass(frozen=True)
class WeightElsewhere(Reason):
    code = "weight_elsewhere"
    got: str
    wanted: str


@dataclass(frozen=True)
class WeightDiffers(Reason):
    code = "weight_differs"
    name: str
    got: str
    wanted: str


@dataclass(frozen=True)
class BindFailed(Reason):
    code = "bind_failed"
    detail: str


@dataclass(frozen=True)
class SlowerThanEager(Reason):
    code = "slower_than_eager"
    speedup: float


@dataclass(frozen=True)
class OtherResult(Reason):
    code = "other_result"
    got: str
    wanted: str


@dataclass(frozen=True)
class NotFinite(Reason):
    code = "not_finite"


@dataclass(frozen=True)
class EagerNotFinite(Reason):
    code = "eager_not_finite"


@dataclass(frozen=True)
class TooFarFromEager(Reason):
    code = "too_far_from_eager"
    rel_l2: float
    bound: float


@dataclass(frozen=True)
class FirstUseFailed(Reason):
    code = "first_use_failed"
    because: Reason


@dataclass(frozen=True)
class SpotCheckFailed(Reason):
    code = "spot_check_failed"
    because: Reason


@dataclass(frozen=True)
class GraphNotFinite(Reason):
    code = "graph_not_finite"


@dataclass(frozen=True)
class MemoryRanOut(Reason):
    code = "memory_ran_out"


# The workflow --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NotCompilable(Reason):
    code = "not_compilable"
    type: str
    hint: str = ""


@dataclass(frozen=True)
class NewerHost(Reason):
    code = "newer_host"


@dataclass(frozen=True)
class UnknownArgument(Reason):
    code = "unknown_argument"
    name: str


@dataclass(frozen=True)
class ControlNet(Reason):
    code = "controlnet"


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
