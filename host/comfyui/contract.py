"""What OneGraph uses of ComfyUI, and what it refuses where a ComfyUI lacks some of it.

Here is what all models need, by feature; what one family of models needs besides stands with the family (`uses`).

Names that a module has, and methods that a class has, are checked once, at the start. What ComfyUI keeps on its objects
(a patcher's `wrappers`, a layer's `_v`) shows only there: every run inspects it, and a model that is not as expected
runs eager. A test compares both lists with what the modules of this package import and call.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

from ...common import reasons
from ...common.log import logger
from ...common.reasons import Reason

log = logger("host")

Feature = Literal[
    "model", "blocks", "ControlNet", "VAE", "CLIP", "DynamicVRAM", "memory", "texts", "loading", "headers", "baking"
]
_MISSING = object()


@dataclass(frozen=True)
class Use:
    """Something of ComfyUI's.

    Attributes:
        name: dotted, its module first.
        parameters: for a function or method, its first parameters, in order; a class's `self` is left out.
    """

    name: str
    parameters: tuple[str, ...] = ()


def uses(prefix: str, *names: str) -> tuple[Use, ...]:
    """Names below one prefix."""
    return tuple(Use(f"{prefix}.{name}") for name in names)


_COMPILING = (
    *uses("comfy", "__path__", "cli_args.args", "options.enable_args_parsing"),
    *uses("comfy.model_management", "throw_exception_if_processing_interrupted"),
    Use("comfy.ops.scaled_dot_product_attention", ("q", "k", "v")),
    Use("comfy.ldm.modules.attention.attention_pytorch", ("q", "k", "v", "heads", "mask")),
    *uses("comfy.ldm.modules.attention", "optimized_attention", "optimized_attention_masked"),
    *uses("comfy.model_patcher.ModelPatcher", "model_size", "loaded_size"),
    *uses("folder_paths", "get_filename_list", "get_folder_paths", "get_full_path", "folder_names_and_paths"),
    *uses("comfy.samplers.CFGGuider", "inner_sample", "outer_sample"),
    *uses("comfy.patcher_extension", "WrapperExecutor"),
    *uses("comfy.utils", "PROGRESS_BAR_HOOK"),
    Use("comfyui_version.__version__"),
)

USES: dict[Feature, tuple[Use, ...]] = {
    "model": (
        *_COMPILING,
        *uses("comfy.patcher_extension", "WrappersMP.DIFFUSION_MODEL"),
        *uses("comfy.patcher_extension.CallbacksMP", "ON_PRE_RUN", "ON_CLEANUP", "ON_DETACH"),
        Use("comfy.model_patcher.ModelPatcher.add_wrapper_with_key", ("wrapper_type", "key", "wrapper")),
        Use("comfy.model_patcher.ModelPatcher.add_callback_with_key", ("call_type", "key", "callback")),
        Use("comfy.model_patcher.ModelPatcher.remove_wrappers_with_key", ("wrapper_type", "key")),
        Use("comfy.model_patcher.ModelPatcher.remove_callbacks_with_key", ("call_type", "key")),
        Use("comfy.model_patcher.ModelPatcher.clone"),
        *uses("comfy.model_base.BaseModel", "get_dtype_inference", "memory_required"),
        Use("comfy.model_patcher.ModelPatcher.get_free_memory", ("device",)),
        Use("comfy.model_management.get_free_memory", ("dev",)),
    ),
    "blocks": (
        Use("comfy.model_management.get_torch_device"),
        Use("comfy.lora.calculate_weight", ("patches", "weight", "key")),
        *uses("comfy.patcher_extension", "WrappersMP.APPLY_MODEL"),
        Use(
            "comfy.model_base.BaseModel.apply_model",
            ("x", "t", "c_concat", "c_crossattn", "control", "transformer_options"),
        ),
    ),
    "ControlNet": (
        *_COMPILING,
        *uses("comfy.controlnet", "ControlNet.copy", "ControlNetSD35"),
        Use(
            "comfy.controlnet.ControlNet.get_control", ("x_noisy", "t", "cond", "batched_number", "transformer_options")
        ),
        *uses("comfy.patcher_extension.CallbacksMP", "ON_CLEANUP", "ON_DETACH"),
    ),
    "VAE": (
        *_COMPILING,
        *uses("comfy.sd.VAE", "decode", "encode"),
        *uses("comfy.sd.VAE", "decode_tiled", "encode_tiled", "decode_tiled_", "encode_tiled_"),
        *uses("comfy.sd.VAE", "decode_tiled_3d", "encode_tiled_3d"),
    ),
    "CLIP": (
        *_COMPILING,
        *uses("comfy.sd.CLIP", "generate", "encode_from_tokens", "encode_from_tokens_scheduled", "clone"),
    ),
    "DynamicVRAM": (
        Use("comfy.ops.cast_bias_weight", ("s", "input", "dtype", "device", "bias_dtype", "offloadable")),
        Use("comfy.ops.uncast_bias_weight", ("s", "weight", "bias", "offload_stream")),
        *uses("comfy.model_management", "minimum_inference_memory", "get_free_memory"),
    ),
    "memory": (
        *uses("comfy.model_management", "current_loaded_models", "extra_reserved_memory", "minimum_inference_memory"),
        *uses("comfy.model_management.LoadedModel", "model_load", "model_unload", "model_memory_required"),
        *uses("comfy.model_management.LoadedModel", "model_offloaded_memory"),
        *uses("comfy.model_patcher.ModelPatcher", "partially_load", "partially_unload", "detach"),
    ),
    "texts": (
        *uses("server.PromptServer", "send_sync"),
        *uses("execution.PromptQueue", "get_current_queue_volatile"),
        *uses("comfy", "cli_args.args.listen"),
        *uses("comfy.utils.ProgressBar", "update_absolute"),
        *uses("comfy_execution.utils", "get_executing_context"),
    ),
    "baking": (
        *uses("server.PromptServer", "send_sync"),
        *uses("nodes", "NODE_CLASS_MAPPINGS"),
        *uses("execution.PromptQueue", "get_history", "get_current_queue_volatile"),
        Use("execution.PromptQueue.delete_queue_item", ("function",)),
        Use("execution.PromptQueue.interrupt_if_running", ("prompt_id",)),
    ),
    "loading": (
        *uses("nodes", "CheckpointLoaderSimple.load_checkpoint", "ControlNetLoader.load_controlnet"),
        *uses("nodes", "NODE_CLASS_MAPPINGS"),
        *uses("comfy.sd", "load_checkpoint_guess_config", "load_diffusion_model"),
        *uses("comfy.sample", "prepare_noise", "sample"),
    ),
    "headers": (
        *uses("folder_paths", "get_full_path"),
        *uses("server.PromptServer", "send_sync"),
        *uses("nodes", "NODE_CLASS_MAPPINGS"),
        Use("comfy.sd.load_state_dict_guess_config", ("sd", "output_vae", "output_clip")),
        Use("comfy.sd.load_diffusion_model_state_dict", ("sd", "model_options", "metadata")),
    ),
}
# What block graphs use of one model where it is as they know it. Elsewhere its blocks cannot be compiled.
MINIMAX = (
    Use("comfy.ldm.minimax.model._mod_scale_shift", ("h", "shift", "scale", "segments")),
    Use("comfy.ldm.minimax.model._mod_gate", ("x", "gate", "other", "segments")),
)
WAN = (Use("comfy.ldm.wan.model.repeat_e", ("e", "x")),)
KANDINSKY = (
    Use("comfy.ldm.kandinsky5.model.SelfAttention.forward", ("x", "freqs", "transformer_options")),
    Use("comfy.ldm.kandinsky5.model.SelfAttention._forward", ("x", "freqs", "transformer_options")),
    Use("comfy.ldm.kandinsky5.model.FeedForward.forward", ("x",)),
    Use("comfy.ldm.kandinsky5.model.FeedForward._forward", ("x",)),
)
PIXELDIT = (Use("comfy.ldm.pixeldit.modules.PiTBlock.forward", ("x", "s_cond", "image_height", "image_width")),)
SEEDVR = (
    *uses("comfy.ldm.seedvr.vae", "get_norm_limit", "math.prod", "MemoryState", "Upsample3D"),
    *uses("comfy.ldm.seedvr.vae", "InflatedCausalConv3d.memory_limit_conv"),
)
# An activation before a quantised layer, which some of its products compute on the way.
ACTIVATED = (
    Use("comfy.ops.linear_input_act", ("linear", "x", "input_act")),
    Use("comfy.ops.INPUT_ACT_EAGER"),
)
# What a layer of newer hosts attends by, where its checkpoint names a function (`comfy_kitchen_int8`).
PREFERRED = (Use("comfy.ldm.modules.attention.ComfyAttention"),)
# ComfyUI's own compiler: from 0.34 on it records what a model's call allocates and gives it the same memory again, and
# captures blocks as CUDA graphs. What block graphs allocate once (weights' buffers, comparisons) must not be in there:
# calls that graphs serve are made without a plan; while one is made or followed all the same, blocks run eager. Where a
# host plans in a way that cannot be seen, all of them do.
PLANNING = (Use("comfy.model_prefetch.malloc_graph_begin"),)
PLANS = (Use("comfy.model_prefetch.MALLOC_GRAPHS"),)
PLAN_OPTION = (
    Use("comfy.model_prefetch.malloc_graph_enabled", ("device",)),
    Use("comfy.cli_args.args.disable_comfy_compiler"),
)
# What graphs with quantised weights use. Without it a block with such weights runs eager.
QUANTISED = (
    Use("comfy.quant_ops.QuantizedTensor"),
    Use("comfy.ops.mixed_precision_ops", ("quant_config", "compute_dtype")),
)
# What brings the weights of one block after the other under DynamicVRAM. Without it a model has to fit as a whole.
STREAMING = (
    Use("comfy.ops.cast_modules_with_vbar", ("comfy_modules", "dtype", "device", "bias_dtype", "non_blocking")),
    Use(
        "comfy.ops.resolve_cast_module_with_vbar",
        ("s", "dtype", "device", "bias_dtype", "compute_dtype", "want_requant"),
    ),
    Use("comfy.model_management.sync_stream", ("device", "stream")),
    Use("comfy.model_patcher.LowVramPatch.clear_prepared"),
)
# Products of weights in float8 and an input that is quantised for each (--fast fp8_matrix_mult).
FAST = (Use("comfy.ops.fp8_linear", ("input",)),)
_AS_SERVER = ("server", "nodes", "execution")  # modules that only a server has loaded; nothing of ours loads them


def _module(name: str) -> tuple[ModuleType | None, str]:
    """The innermost module that a dotted name begins with, and the rest of the name."""
    parts = name.split(".")
    if parts[0] in _AS_SERVER:
        return sys.modules.get(parts[0]), ".".join(parts[1:])
    for length in range(len(parts) - 1, 0, -1):
        path = ".".join(parts[:length])
        try:
            return importlib.import_module(path), ".".join(parts[length:])
        except ModuleNotFoundError as error:
            if error.name is None or not f"{path}.".startswith(f"{error.name}."):
                raise  # a package that the host itself lacks
    return None, name


def _exists(use: Use) -> bool:
    """Whether this ComfyUI has something as it is used."""
    module, rest = _module(use.name)
    if module is None:
        return use.name.partition(".")[0] in _AS_SERVER  # no server, and no use of it
    value: Any = module
    for name in rest.split("."):
        value = getattr(value, name, _MISSING)
        if value is _MISSING:
            return False
    if not use.parameters:
        return True
    names = [name for name in inspect.signature(value).parameters if name != "self"]
    return tuple(names[: len(use.parameters)]) == use.parameters


@functools.cache
def missing(used: tuple[Use, ...]) -> tuple[str, ...]:
    """What this ComfyUI lacks, or has with other parameters, of what is used."""
    return tuple(use.name for use in used if not _exists(use))


def refusal(feature: Feature, of_family: tuple[Use, ...] = ()) -> Reason | None:
    """Why a feature is off under this ComfyUI, or None. `of_family`: what a family of models needs besides."""
    names = missing(USES[feature]) + missing(of_family)
    if feature == "blocks" and not missing(PLANNING):
        names += missing(PLANS)
    return reasons.HostLacks(feature, names) if names else None


def check(families: Iterable[tuple[Feature, tuple[Use, ...]]]) -> None:
    """Say in the log what this ComfyUI lacks of features, and of what families need for theirs. Never raises."""
    for feature, used in (*((feature, ()) for feature in USES), *families):
        try:
            lacking = refusal(feature, used)
        except Exception:  # an import of the host's own failed
            log.exception("what ComfyUI offers for %s could not be inspected", feature)
            continue
        if lacking is not None:
            log.warning("%s", lacking.text)
