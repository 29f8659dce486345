"""Can a graph stand in for this patcher's model right now? Where its weights are, what the host does to them at each
use, and how ComfyUI's modules are to be read."""

from __future__ import annotations

from typing import Any

from ...common import reasons
from ...common.reasons import Reason
from ...compiler.code.fingerprint import Rules
from ...runtime.guards.module_guard import ModuleGuard
from ...signature import views
from . import ggml, paged_weights, skeletons
from .low_vram_blocks import whole_refusal
from .quantised import composites

# Instance attributes by which ComfyUI says how a module is placed in memory right now. Its patcher keeps the second
# half on the model itself, which for a VAE is the very module that is compiled.
_PLACEMENT = (
    {
        "weight_function", "bias_function", "current_device", "device", "training", "model_loaded_weight_memory",
        "model_offload_buffer_memory", "model_lowvram", "lowvram_patch_counter", "current_weight_patches_uuid",
    }
    | skeletons.BOOKKEEPING
    | ggml.BOOKKEEPING
)  # fmt: skip
_FUNCTIONS = "weight_function", "bias_function"
_ATTENTION = "comfy.ldm.modules.attention"
# What functions ask of these says where weights are and how to compute, and not what.
BESIDE = frozenset({"model_management", "comfy_aimdo"})


def is_placement(attribute: str) -> bool:
    """Tell whether an attribute says where a module's weights are, or is part of its calls: not what it computes."""
    return "comfy" in attribute or attribute in _PLACEMENT or views.is_kept(attribute)


def rules() -> Rules:
    """Return the rules for reading ComfyUI's modules. All its attention functions compute the same."""
    from comfy.cli_args import args

    upcasts = (f"{name}={getattr(args, name, None)}" for name in ("force_upcast_attention", "dont_upcast_attention"))
    names = ("optimized_attention", "optimized_attention_masked")
    return Rules(
        placement=is_placement,
        interchangeable=frozenset({"optimized_attention", *(f"{_ATTENTION}:{name}" for name in names)}),
        beside=BESIDE,
        options=tuple(upcasts),
        roots=("comfy", "comfy_kitchen"),
        chosen_among=frozenset({"comfy_kitchen.backends"}),
        composites=composites(),
    )


def epoch(patcher: Any) -> tuple[Any, ...]:
    """Cheap counters that change when ComfyUI moves or patches the weights."""
    model = patcher.model
    return (
        getattr(model, "current_weight_patches_uuid", None),
        getattr(model, "model_loaded_weight_memory", None),
        getattr(model, "model_lowvram", None),
        str(getattr(model, "device", None)),
    )


def refusal(patcher: Any, guard: ModuleGuard, prefix: str) -> Reason | None:
    """Say why no graph can stand in for the watched part of a patcher's model, or None."""
    return patcher_refusal(patcher, prefix) or whole_refusal(patcher) or placement_refusal(patcher, guard)


def patcher_refusal(patcher: Any, prefix: str | tuple[str, ...]) -> Reason | None:
    """Say why no graph can stand in for the part of this patcher's model whose keys start so, or None."""
    injections = [name for name, injected in getattr(patcher, "injections", {}).items() if injected]
    if injections:
        return reasons.Injection(str(injections[0]))
    objects = [key for key in getattr(patcher, "object_patches", {}) if key.startswith(prefix)]
    if objects:
        return reasons.ObjectPatch(str(objects[0]))
    wrapped = [key for key, functions in getattr(patcher, "weight_wrapper_patches", {}).items() if functions]
    if wrapped:
        return reasons.WeightWrapper(str(wrapped[0]))
    wrappers = getattr(patcher, "wrappers", {}).get("apply_model", {})
    if wrappers.get("torch.compile"):
        return reasons.TorchCompile()
    return None


def placement_refusal(patcher: Any, guard: ModuleGuard, whole: bool = True) -> Reason | None:
    """Say why the weights of a module are not what its layers compute with, or None.

    Args:
        whole: whether the module is compiled as a whole. A block's layers that cast their weights do so in its graph.

    Where DynamicVRAM looks after the module, every layer asks for its weights, and only the class of a layer says
    whether they are cast, too. Elsewhere a layer casts its weights to the dtype of its input: because it lies in system
    memory, or each layer does since a compute dtype was chosen (ModelComputeDtype). A graph is captured with these
    casts. It serves no other models, for its key has the dtypes of the inputs and of all weights.
    """
    where = guard.where_set(*_FUNCTIONS) or guard.where_class_set(*_FUNCTIONS)
    if where is not None:
        return reasons.WeightComputed(where)
    if paged_weights.is_paged(patcher):
        where = guard.where_class_set("comfy_cast_weights") if whole else None
    else:
        where = None if getattr(patcher, "force_cast_weights", False) else guard.where_set("comfy_cast_weights")
    return reasons.WeightCast(where) if where is not None else None
