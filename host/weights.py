"""Can a graph stand in for this patcher's model right now? Everything that shows neither in a call's inputs nor in
its transformer_options: placement of weights, casts, injections, patched modules, hooks."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from ..compiler.backends.inductor import has_forward_hooks

# Instance attributes by which ComfyUI says how a module is placed in memory right now. Its patcher keeps the second
# half on the model itself, which for a VAE is the very module that is compiled.
_PLACEMENT = {
    "weight_function",
    "bias_function",
    "current_device",
    "device",
    "training",
    "model_loaded_weight_memory",
    "model_offload_buffer_memory",
    "model_lowvram",
    "lowvram_patch_counter",
    "current_weight_patches_uuid",
}


def volatile(attribute: str) -> bool:
    """Whether an attribute says where a module's weights are, not what it computes."""
    return "comfy" in attribute or attribute in _PLACEMENT


_VAE_SOURCES = (
    "comfy.ldm.models.autoencoder",
    "comfy.ldm.modules.diffusionmodules.model",
    "comfy.taesd.taesd",
    "comfy.ops",
)
# By component: modules whose functions its forward calls, besides those that define its classes.
SOURCES = {
    "unet": (
        "comfy.ldm.modules.diffusionmodules.openaimodel",
        "comfy.ldm.modules.diffusionmodules.util",
        "comfy.ldm.modules.attention",
        "comfy.ops",
    ),
    "vae_decoder": _VAE_SOURCES,
    "vae_encoder": _VAE_SOURCES,
}


def epoch(patcher: Any) -> tuple[Any, ...]:
    """Cheap counters that change when ComfyUI moves or patches the weights."""
    model = patcher.model
    return (
        getattr(model, "current_weight_patches_uuid", None),
        getattr(model, "model_loaded_weight_memory", None),
        getattr(model, "model_lowvram", None),
        str(getattr(model, "device", None)),
    )


def patcher_refusal(patcher: Any, prefix: str) -> str | None:
    """Why no graph can stand in for the part of this patcher's model whose keys start with `prefix`, or None."""
    injections = [name for name, found in getattr(patcher, "injections", {}).items() if found]
    if injections:
        return f"{injections[0]} injects code into this model"
    objects = [key for key in getattr(patcher, "object_patches", {}) if key.startswith(prefix)]
    if objects:
        return f"an object patch replaces {objects[0]}"
    wrapped = [key for key, found in getattr(patcher, "weight_wrapper_patches", {}).items() if found]
    if wrapped:
        return f"a weight wrapper changes {wrapped[0]} at each use"
    if getattr(patcher.model, "model_lowvram", False):
        return "part of the model stays in system memory (low VRAM)"
    wrappers = getattr(patcher, "wrappers", {}).get("apply_model", {})
    if wrappers.get("torch.compile"):
        return "another node runs this model through torch.compile"
    return None


def module_refusal(module: torch.nn.Module, is_paged: bool = False) -> str | None:
    """Why a module does not compute what its class and weights say, or None.

    Args:
        is_paged: DynamicVRAM looks after the module; then every layer asks for its weights, and only the class of a
            layer says whether they are cast, too.
    """
    for name, child in module.named_modules():
        where = f"{name or 'the model'} ({type(child).__name__})"
        if has_forward_hooks(child):
            return f"a forward hook sits on {where}"
        attributes = child.__dict__
        if "forward" in attributes or "_forward" in attributes:
            return f"another custom node replaced the forward of {where}"
        if attributes.get("weight_function") or attributes.get("bias_function"):
            return f"the weight of {where} is computed at each use"
        casts = getattr(type(child), "comfy_cast_weights", False) if is_paged else attributes.get("comfy_cast_weights")
        if casts:
            return f"the weights of {where} are cast or moved at each use"
    return _foreign_method(module)


def _foreign_method(module: torch.nn.Module) -> str | None:
    """A class whose forward comes from another file than the class: a monkeypatch the compiler would not see."""
    for cls in {type(child) for child in module.modules()}:
        for base in cls.__mro__:
            forward = vars(base).get("forward")
            code = getattr(inspect.unwrap(forward), "__code__", None) if callable(forward) else None
            if code is None:
                continue
            origin = inspect.getsourcefile(base) if base.__module__ != "builtins" else None
            if origin is not None and code.co_filename != origin:
                return f"another custom node replaced {base.__name__}.forward"
            break
    return None
