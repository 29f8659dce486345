"""Which attention the user chose, and what of it block graphs follow.

ComfyUI's models refer to its `optimized_attention` by names of their own modules, which other packages replace; a
model's options may hold an override besides, and layers may prefer a function that their checkpoint names. As long as
all of these are the host's exact functions, graphs have torch's attention in them. Any other is called by the graph.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

import torch

from ...compiler.blocks.attention import StandIn
from ...runtime.guards.code_guard import is_defined_in
from ...runtime.guards.named_functions import foreign_below
from ...runtime.guards.watched_names import WatchedNames
from ...signature.call_rules import Attention
from ..comfyui import contract
from ..families.family import attention as torch_attention
from ..weights.eligibility import BESIDE

OVERRIDE = "optimized_attention_override"
_NAMES = ("optimized_attention", "optimized_attention_masked")
_ATTENTION = "comfy.ldm.modules.attention"
_EXACT = ("attention_basic", "attention_sub_quad", "attention_split", "attention_pytorch")  # of softmax(q k) v
_INSIDE = "_inside_attn_wrapper"  # the host's note to itself that an override was asked


class ChosenAttention:
    """The attention of one model's calls.

    Args:
        model: whose blocks are compiled.
        packages: of which the modules are looked at.
    """

    def __init__(self, model: torch.nn.Module, packages: Sequence[str]) -> None:
        from comfy.ldm.modules import attention

        self._host = attention
        modules = {
            id(one): one for one in (attention, *_modules(model, packages)) if any(n in vars(one) for n in _NAMES)
        }
        self._spaces = [vars(one) for one in modules.values()]
        preferring = () if contract.missing(contract.PREFERRED) else (attention.ComfyAttention,)
        self._preferring = [one for one in model.modules() if isinstance(one, preferring)]
        self._of_host: Attention = "captured"
        self._named, self._before, self._foreign = WatchedNames(), set[int](), False
        self.look()

    def look(self) -> None:
        """Look at the functions in place now."""
        exact = {id(getattr(self._host, name, None)) for name in _EXACT}
        chosen = [space[name] for space in self._spaces for name in _NAMES if name in space]
        chosen += [one.function for one in self._preferring if one.function is not None]
        are_exact = all(id(one) in exact for one in chosen) and not self._call_others({id(one): one for one in chosen})
        self._of_host = "captured" if are_exact else "called"

    def _call_others(self, chosen: Mapping[int, Any]) -> bool:
        """Whether one of the host's functions is, or calls, another package's: then it is not exact any more."""
        if self._before != chosen.keys() or not self._named.same():
            self._named, self._before = WatchedNames(), {*chosen}
            foreign = [one for function in chosen.values() for one in foreign_below(function, self._named, BESIDE)]
            self._foreign = bool(foreign) or not all(is_defined_in(one, "comfy") for one in chosen.values())
            self._named.note()
        return self._foreign

    def of_call(self, options: Any) -> Attention:
        """How a call with these options attends."""
        return "called" if type(options) is dict and OVERRIDE in options else self._of_host


def _modules(model: torch.nn.Module, packages: Sequence[str]) -> Iterator[ModuleType]:
    """The modules of a model's classes, and of the functions that these import."""
    names = {cls.__module__ for one in model.modules() for cls in type(one).__mro__}
    for name in sorted(names):
        module = sys.modules.get(name)
        if module is None or name.partition(".")[0] not in packages:
            continue
        yield module
        for value in [*vars(module).values()]:
            home = sys.modules.get(value.__module__ or "") if isinstance(value, FunctionType) else None
            if home is not None and home.__name__.partition(".")[0] in packages:
                yield home


def compared(options: Any) -> Any:
    """The options with torch's attention in place of the user's."""
    return {**options, OVERRIDE: torch_attention} if type(options) is dict else {OVERRIDE: torch_attention}


# In the compiling process -----------------------------------------------------------------------------------


@contextlib.contextmanager
def standing_in() -> Iterator[None]:
    """Have stand-ins in place of the host's attention function wherever its modules refer to it."""
    from comfy.ldm.modules import attention

    chosen = {id(getattr(attention, name)) for name in _NAMES}
    before: list[tuple[ModuleType, str, Any]] = []
    for module in [one for one in [*sys.modules.values()] if isinstance(one, ModuleType)]:
        before += [(module, name, value) for name, value in [*vars(module).items()] if id(value) in chosen]
    try:
        for module, name, _ in before:
            setattr(module, name, _stand_in(f"{module.__name__}:{name}"))
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def overridden(func: Any, *args: Any, **kwargs: Any) -> Any:
    """The override of a capture: blocks may call other functions of the host's than the chosen one with options."""
    from comfy.ldm.modules import attention

    arguments = {name: value for name, value in kwargs.items() if name != _INSIDE}
    for name, value in vars(attention).items():
        if getattr(value, "__wrapped__", None) is func:
            return _stand_in(f"{_ATTENTION}:{name}")(*args, **arguments)
    raise TypeError("an attention function that is not ComfyUI's")


def _stand_in(name: str) -> StandIn:
    from comfy.ldm.modules.attention import attention_pytorch

    return StandIn(name, attention_pytorch, _shape)


def _shape(
    q: Any,
    k: Any,
    v: Any,
    heads: Any,
    mask: Any = None,
    attn_precision: Any = None,
    skip_reshape: bool = False,
    skip_output_reshape: bool = False,
    **kwargs: Any,
) -> Sequence[Any]:
    """The shape of the host's attention functions' result, by their parameters."""
    q, v = (getattr(one, "tensor", one) for one in (q, v))  # newer hosts hand tensors over in containers
    if skip_reshape:
        batch, _, tokens, _ = q.shape
        width = v.shape[-1]
    else:
        batch, tokens, inner = q.shape
        width = inner // heads
    return (batch, heads, tokens, width) if skip_output_reshape else (batch, tokens, heads * width)
