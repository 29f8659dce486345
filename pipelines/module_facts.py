"""How diffusers' modules are to be read: what of them is configuration, what is not, what no graph follows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..common import config_text, reasons
from ..common.reasons import Reason
from ..common.torch_private import COMPILED_CALL, Tables, drop_hooks, set_tables, tables
from ..compiler.code.fingerprint import Rules
from . import adapters, attention_backends, library_weights

# Where a module's weights are, and what its libraries note on it; none of it is computed with.
_ON_TOP = {
    "_hf_hook",
    "_old_forward",
    "_diffusers_hook",
    "_hf_peft_config_loaded",
    "peft_config",
    "hf_device_map",
    "hf_quantizer",
    "original_attn_processors",
    "lora_scale",
    "_safe_fusing",
    "_prepare_lora_hotswap_kwargs",
    "onegraph",
    "save_graph",
    "load_graph",
    "_torch_module",
    "__getstate__",  # ours, for copies
    "extra_repr",  # torchao's, of what a layer is printed as
}
# The usual size of images: checkpoints of one architecture differ in it.
_PLACEMENT = _ON_TOP | {"_gradient_checkpointing_func", COMPILED_CALL, "sample_size"}
# By the Python module that defines them.
_PROCESSORS = {
    "diffusers.models.attention_processor": {
        "AttnProcessor",
        "AttnProcessor2_0",
        "FusedAttnProcessor2_0",
        "JointAttnProcessor2_0",
    },
    "diffusers.models.transformers.transformer_flux": {"FluxAttnProcessor"},
}
_HOOKED = {"_hf_hook": "a hook of accelerate", "_diffusers_hook": "a hook of diffusers"}


def _is_placement(attribute: str) -> bool:
    return attribute in _PLACEMENT


def _is_processor(value: Any) -> bool:
    library = type(value).__module__.partition(".")[0]
    if library != "diffusers" or isinstance(value, torch.nn.Module | type):
        return False
    return "Processor" in type(value).__name__


def is_usual(processor: Any) -> bool:
    """Whether a graph follows an attention processor. One may be told to use kernels that no compiler sees into."""
    is_listed = type(processor).__name__ in _PROCESSORS.get(type(processor).__module__, ())
    return is_listed and attention_backends.of(processor) in (None, attention_backends.USUAL)


def is_own(processor: Any) -> bool:
    """Whether a processor is one of diffusers' own that computes with torch's attention, and nothing but plain values.

    Its code is captured as it stands, so that it need not be known here.
    """
    if not _is_processor(processor) or attention_backends.of(processor) not in (None, attention_backends.USUAL):
        return False
    attributes = {name: one for name, one in vars(processor).items() if name != attention_backends.ATTRIBUTE}
    return all(config_text.describe(one) is not None for one in attributes.values())


def describe(value: Any) -> str | None:
    """As for any module; besides, a model's configuration and the processor of an attention layer.

    What is turned off again, as FreeU may be, leaves attributes of None behind.
    """
    if value is None:
        return ""
    if type(value).__name__ == "FrozenDict" and isinstance(value, dict):
        items = [(key, value[key]) for key in sorted(value) if not key.startswith("_") and not _is_placement(key)]
        return f"config({','.join(f'{key}={config_text.describe(one)}' for key, one in items)})"
    if _is_processor(value):
        attributes = ((name, one) for name, one in sorted(vars(value).items()) if name != attention_backends.ATTRIBUTE)
        facts = ((name, config_text.describe(one)) for name, one in attributes)
        return f"{type(value).__qualname__}({','.join(f'{name}={text}' for name, text in facts)})"
    return config_text.describe(value)


@functools.cache
def rules() -> Rules:
    """How diffusers' modules are to be read."""
    return Rules(
        placement=_is_placement,
        roots=("diffusers",),
        intercepted=lambda module: frozenset({"forward"}),
        numbers=frozenset({"layer_id"}),
        describe=describe,
        composites=library_weights.composites(),
    )


@dataclass(frozen=True)
class ModuleFacts:
    """What a module is to a graph, until it changes.

    Attributes:
        bare: the module as a graph is compiled for it: without what its libraries and this package put on it.
        own_weights: whether its weights have other names than the module's.
        refusal: why no graph serves it, or None.
        dropouts: the attributes of what drops numbers out in training mode.
        processors: the attributes of attention processors, which nothing watches, and what they were.
        dispatches: whether an attention processor computes with the backend that diffusers has turned on.
        strengths: of adapters that compute, to be brought up to date before each call; None where none does.
    """

    bare: torch.nn.Module
    own_weights: bool
    refusal: Reason | None
    dropouts: tuple[dict[str, Any], ...]
    processors: tuple[tuple[dict[str, Any], dict[str, Any]], ...]
    dispatches: bool
    strengths: adapters.AdapterScales | None = None

    def holds(self) -> bool:
        """Whether attention processors are as they were."""
        return all(
            now.keys() == then.keys() and all(now[name] is then[name] for name in then) for now, then in self.processors
        )

    def refusal_now(self) -> Reason | None:
        """Why no graph serves a call just now, or None: it drops numbers out, or another attention backend is on."""
        if any(state["training"] for state in self.dropouts):
            return reasons.Dropout()
        return attention_backends.refusal() if self.dispatches else None


def read(
    module: torch.nn.Module,
    follows: Callable[[Any], bool] = is_usual,
    weights: Callable[[torch.nn.Module, str], Reason | None] = library_weights.foreign,
) -> ModuleFacts:
    """Look at all parts of a module. To be done again when it has changed.

    Args:
        follows: tells whether a graph follows an attention processor.
        weights: tells why no graph reads the weights of a layer itself, by its path.
    """
    bare, own_weights, reason, strengths = bare_of(module), False, None, None
    if adapters.first_of(module) is not None:
        reason = adapters.refusal(module)
        if reason is None:
            bare, strengths = adapters.as_compiled(bare)
            own_weights = True
    dropouts = tuple(vars(child) for child in module.modules() if isinstance(child, torch.nn.Dropout) and child.p > 0)
    attached = [getattr(child, "processor", None) for child in module.modules()]
    processors = [one for one in attached if one is not None and not isinstance(one, torch.nn.Module)]
    return ModuleFacts(
        bare,
        own_weights,
        reason or next(_refusals(module, follows, weights), None),
        dropouts,
        tuple((vars(one), dict(vars(one))) for one in processors if hasattr(one, "__dict__")),
        any(attention_backends.follows(one) for one in processors),
        strengths,
    )


def _refusals(
    module: torch.nn.Module,
    follows: Callable[[Any], bool],
    weights: Callable[[torch.nn.Module, str], Reason | None],
) -> Iterator[Reason]:
    for name, child in module.named_modules():
        state = vars(child)
        if child is not module:
            for attribute, what in _HOOKED.items():
                if state.get(attribute) is not None:
                    yield reasons.LibraryHook(what, name)
        unread = weights(child, name)
        if unread is not None:
            yield unread
        processor = getattr(child, "processor", None)
        if processor is not None and not follows(processor):
            yield reasons.AttentionProcessor(type(processor).__name__, name)


def bare_of(module: torch.nn.Module) -> torch.nn.Module:
    """The same children and weights in another object."""
    bare: torch.nn.Module = object.__new__(type(module))
    leave_out = rules().intercepted(module) | _ON_TOP
    state = {name: value for name, value in vars(module).items() if name not in leave_out}
    object.__setattr__(bare, "__dict__", state)
    return bare


def with_children(module: torch.nn.Module, made: Callable[[torch.nn.Module], torch.nn.Module]) -> torch.nn.Module:
    """The same weights in another object, with children of its own and without hooks."""
    bare, module_tables = bare_of(module), tables(module)
    drop_hooks(bare)
    children = {name: None if child is None else made(child) for name, child in module_tables.children.items()}
    set_tables(bare, Tables(module_tables.parameters, module_tables.buffers, children))
    return bare
