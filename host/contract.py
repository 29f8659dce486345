"""What OneGraph uses of ComfyUI, in one list, and what it refuses where a ComfyUI lacks some of it.

Names that a module has, and methods that a class has, are checked once, at the start. What ComfyUI keeps on its objects
(a patcher's `wrappers`, a layer's `_v`) shows only there: every run inspects it, and a model that is not as expected
runs eager. A test compares the list with what the modules of this package import and call.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

from ..common import reasons
from ..common.reasons import Reason

log = logging.getLogger("onegraph.host")

Feature = Literal["model", "ControlNet", "VAE", "DynamicVRAM", "memory", "texts", "loading"]
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


def _uses(prefix: str, *names: str) -> tuple[Use, ...]:
    return tuple(Use(f"{prefix}.{name}") for name in names)


_COMPILING = (
    *_uses("comfy", "__path__", "cli_args.args", "options.enable_args_parsing"),
    *_uses("comfy.model_management", "throw_exception_if_processing_interrupted"),
    Use("comfy.ops.scaled_dot_product_attention", ("q", "k", "v")),
    *_uses("comfy.model_patcher.ModelPatcher", "model_size", "loaded_size"),
    *_uses("folder_paths", "get_filename_list", "get_folder_paths", "get_full_path", "folder_names_and_paths"),
    *_uses("comfy.samplers.CFGGuider", "inner_sample", "outer_sample"),
    *_uses("comfy.patcher_extension", "WrapperExecutor"),
    *_uses("comfy.utils", "PROGRESS_BAR_HOOK"),
    Use("comfyui_version.__version__"),
)
_UNET = "comfy.ldm.modules.diffusionmodules.openaimodel"

USES: dict[Feature, tuple[Use, ...]] = {
    "model": (
        *_COMPILING,
        Use(f"{_UNET}.UNetModel._forward", ("x", "timesteps", "context", "y", "control", "transformer_options")),
        *_uses(_UNET, "VideoResBlock", "Downsample"),
        Use("comfy.ldm.modules.attention.attention_pytorch", ("q", "k", "v", "heads", "mask")),
        *_uses("comfy.patcher_extension", "WrappersMP.DIFFUSION_MODEL"),
        *_uses("comfy.patcher_extension.CallbacksMP", "ON_PRE_RUN", "ON_CLEANUP", "ON_DETACH"),
        Use("comfy.model_patcher.ModelPatcher.add_wrapper_with_key", ("wrapper_type", "key", "wrapper")),
        Use("comfy.model_patcher.ModelPatcher.add_callback_with_key", ("call_type", "key", "callback")),
        Use("comfy.model_patcher.ModelPatcher.remove_wrappers_with_key", ("wrapper_type", "key")),
        Use("comfy.model_patcher.ModelPatcher.remove_callbacks_with_key", ("call_type", "key")),
        Use("comfy.model_patcher.ModelPatcher.clone"),
        *_uses("comfy.model_base.BaseModel", "get_dtype_inference", "memory_required"),
    ),
    "ControlNet": (
        *_COMPILING,
        Use("comfy.cldm.cldm.ControlNet.forward", ("x", "hint", "timesteps", "context", "y")),
        Use("comfy.controlnet.ControlNet.copy"),
        Use(
            "comfy.controlnet.ControlNet.get_control", ("x_noisy", "t", "cond", "batched_number", "transformer_options")
        ),
        *_uses("comfy.ldm.modules.attention", "optimized_attention", "optimized_attention_masked"),
        *_uses("comfy.patcher_extension.CallbacksMP", "ON_CLEANUP", "ON_DETACH"),
    ),
    "VAE": (
        *_COMPILING,
        *_uses("comfy.ldm.models.autoencoder.AutoencoderKL", "decode", "encode"),
        *_uses("comfy.ldm.models.autoencoder.AutoencodingEngine", "decode", "encode"),
        *_uses("comfy.ldm.modules.diffusionmodules.model", "AttnBlock", "Decoder", "Encoder"),
        Use("comfy.ldm.modules.diffusionmodules.model.pytorch_attention", ("q", "k", "v")),
        *_uses("comfy.taesd.taesd.TAESD", "decode", "encode"),
        *_uses("comfy.sd.VAE", "decode", "encode"),
        *_uses("comfy.sd.VAE", "decode_tiled", "encode_tiled", "decode_tiled_", "encode_tiled_"),
    ),
    "DynamicVRAM": (
        Use("comfy.ops.cast_bias_weight", ("s", "input", "dtype", "device", "bias_dtype", "offloadable")),
        Use("comfy.ops.uncast_bias_weight", ("s", "weight", "bias", "offload_stream")),
    ),
    "memory": (
        *_uses("comfy.model_management", "current_loaded_models", "extra_reserved_memory", "minimum_inference_memory"),
        *_uses("comfy.model_management.LoadedModel", "model_load", "model_unload", "model_memory_required"),
        *_uses("comfy.model_management.LoadedModel", "model_offloaded_memory"),
        *_uses("comfy.model_patcher.ModelPatcher", "partially_load", "partially_unload", "detach"),
    ),
    "texts": (
        *_uses("server.PromptServer", "send_progress_text"),
        *_uses("comfy", "cli_args.args.listen"),
        *_uses("comfy.utils.ProgressBar", "update_absolute"),
        *_uses("comfy_execution.utils", "get_executing_context"),
    ),
    "loading": (
        *_uses("nodes", "CheckpointLoaderSimple.load_checkpoint", "ControlNetLoader.load_controlnet"),
        *_uses("nodes", "NODE_CLASS_MAPPINGS"),
        *_uses("comfy.sd", "load_checkpoint_guess_config"),
        *_uses("comfy.sample", "prepare_noise", "sample"),
    ),
}
_AS_SERVER = ("server", "nodes")  # modules that only a server has loaded; nothing of ours loads them


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


def _found(use: Use) -> bool:
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
def missing(feature: Feature) -> tuple[str, ...]:
    """What this ComfyUI lacks, or has with other parameters, of what a feature uses."""
    return tuple(use.name for use in USES[feature] if not _found(use))


def refusal(feature: Feature) -> Reason | None:
    """Why a feature is off under this ComfyUI, or None."""
    names = missing(feature)
    return reasons.HostLacks(feature, names) if names else None


def check() -> None:
    """Say in the log what this ComfyUI lacks. Never raises."""
    for feature in USES:
        try:
            lacking = refusal(feature)
        except Exception:  # an import of the host's own failed
            log.exception("OneGraph: what ComfyUI offers for %s could not be inspected", feature)
            continue
        if lacking is not None:
            log.warning("OneGraph: %s", lacking.text)
