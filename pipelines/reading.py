"""How diffusers' modules are to be read: what of them is configuration, what is not, what no graph follows."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

from ..common import config_text, reasons
from ..common.reasons import Reason
from ..compiler.fingerprint import Rules

# Where a module's weights are, and what its libraries note on it; none of it is computed with.
_PLACEMENT = {
    "_hf_hook",
    "_old_forward",
    "_diffusers_hook",
    "_hf_peft_config_loaded",
    "peft_config",
    "hf_device_map",
    "hf_quantizer",
    "_gradient_checkpointing_func",
    "original_attn_processors",
    "_compiled_call_impl",
    # The usual size of images: checkpoints of one architecture differ in it.
    "sample_size",
}
_PROCESSORS = {"AttnProcessor", "AttnProcessor2_0", "FusedAttnProcessor2_0"}
_PROCESSORS_HOME = "diffusers.models.attention_processor"
_HOOKED = {"_hf_hook": "a hook of accelerate", "_diffusers_hook": "a hook of diffusers"}


def _is_placement(attribute: str) -> bool:
    return attribute in _PLACEMENT


def _is_processor(value: Any) -> bool:
    return type(value).__module__ == _PROCESSORS_HOME and "Processor" in type(value).__name__


def describe(value: Any) -> str | None:
    """As for any module; besides, a model's configuration and the processor of an attention layer."""
    if type(value).__name__ == "FrozenDict" and isinstance(value, dict):
        items = [(key, value[key]) for key in sorted(value) if not key.startswith("_") and not _is_placement(key)]
        return f"config({','.join(f'{key}={config_text.describe(one)}' for key, one in items)})"
    if _is_processor(value):
        facts = ((name, config_text.describe(one)) for name, one in sorted(vars(value).items()))
        return f"{type(value).__qualname__}({','.join(f'{name}={text}' for name, text in facts)})"
    return config_text.describe(value)


@functools.cache
def rules() -> Rules:
    """How diffusers' modules are to be read."""
    return Rules(placement=_is_placement, roots=("diffusers",), intercepted=frozenset({"forward"}), describe=describe)


def structure_refusal(module: torch.nn.Module) -> Reason | None:
    """Why no graph serves a module with such parts, or None. To be asked again when its structure has changed."""
    return next(_refusals(module), None)


def _refusals(module: torch.nn.Module) -> Iterator[Reason]:
    for name, child in module.named_modules():
        library = type(child).__module__.partition(".")[0]
        if library == "peft":
            yield reasons.AdapterLayers(library, name)
        if child is not module:
            for attribute, what in _HOOKED.items():
                if vars(child).get(attribute) is not None:
                    yield reasons.LibraryHook(what, name)
        processor = vars(child).get("processor")
        if processor is not None and not (_is_processor(processor) and type(processor).__name__ in _PROCESSORS):
            yield reasons.AttentionProcessor(type(processor).__name__, name)
        inner = getattr(child, "processor", None)
        if isinstance(inner, torch.nn.Module):
            yield reasons.AttentionProcessor(type(inner).__name__, name)


def has_dropout(module: torch.nn.Module) -> bool:
    """Whether training mode makes a difference."""
    return any(isinstance(child, torch.nn.Dropout) and child.p > 0 for child in module.modules())


def bare(module: torch.nn.Module) -> torch.nn.Module:
    """The module without what its libraries and this package put on it: the same children and weights."""
    twin: torch.nn.Module = object.__new__(type(module))
    leave_out = rules().intercepted | _PLACEMENT - {"sample_size"}
    state = {name: value for name, value in vars(module).items() if name not in leave_out}
    state["_gradient_checkpointing_func"] = None
    object.__setattr__(twin, "__dict__", state)
    return twin
