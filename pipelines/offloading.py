"""Blocks whose weights diffusers brings to the device for each call and takes away after it (`enable_group_offload`).

diffusers' hook on a block brings the weights of its group before the block's own forward and takes them away after it,
prefetching the next group's where it may. A graph stands in for that own forward alone, so all of this stays as it is.
What the hooks are and how they call each other is read from diffusers' private names; where anything is not as it is
known here, the block counts as one whose forward was replaced.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch

from ..common.refused import Refused
from ..runtime.calls.routing import MethodSlot, own_slot
from ..runtime.calls.weight_source import Brought

_MODULE = "diffusers.hooks.group_offloading"
# The second one is there during a first call, the third one on a whole model then.
_HOOKS = {"GroupOffloadingHook", "LayerExecutionTrackerHook", "LazyPrefetchGroupOffloadingHook"}


def slot(module: torch.nn.Module) -> MethodSlot:
    """Where a module's own forward is called: behind the hooks of group offloading where it has nothing but these."""
    inner = inner_of(module)
    return own_slot(module) if inner is None else MethodSlot(vars(inner), type(module).forward.__get__(module))


def inner_of(module: torch.nn.Module) -> Any:
    """What refers to a module's own forward behind the hooks of group offloading, as `forward`; None: nothing."""
    references = _references(module)
    return references[0] if references else None


def is_offloaded(block: torch.nn.Module) -> bool:
    """Whether diffusers brings a block's weights for each call."""
    return inner_of(block) is not None


def _references(block: torch.nn.Module) -> list[Any]:
    """The chain of hooks around a block's forward, the inner one first; empty: there is none, or another one."""
    registry = vars(block).get("_diffusers_hook")
    if registry is None:
        return []
    references: list[Any] = [*getattr(registry, "_fn_refs", ())]
    hooks: dict[str, Any] = {**getattr(registry, "hooks", {})}
    order: list[str] = [*getattr(registry, "_hook_order", ())]
    if not references or len(references) != len(hooks) or [*hooks] != order:
        return []
    over: Any = vars(block).get("forward")
    for name, reference in zip(reversed(order), reversed(references), strict=True):
        hook = hooks[name]
        offloads = type(hook).__module__ == _MODULE and type(hook).__name__ in _HOOKS
        calls = reference.pre_forward == hook.pre_forward and reference.post_forward == hook.post_forward
        if not offloads or not calls or reference.original_forward is not None or _called_by(over) is not reference:
            return []
        over = reference.forward
    return references


def _called_by(forward: Any) -> Any:
    """What diffusers' wrapper around a forward refers to for what it calls, or None."""
    function = forward.func if isinstance(forward, functools.partial) else None
    cells: tuple[Any, ...] = getattr(function, "__closure__", None) or ()
    return cells[0].cell_contents if len(cells) == 1 and function.__module__ == "diffusers.hooks.hooks" else None


class OffloadedBlocks:
    """The weights of blocks, of which diffusers brings some for each call.

    Args:
        block_of: gives a block by its name, and it as graphs are compiled for it.
    """

    def __init__(self, block_of: Callable[[str], tuple[torch.nn.Module, torch.nn.Module]]) -> None:
        self._block_of = block_of

    @contextlib.contextmanager
    def weights(self, name: str, without: Collection[str] = ()) -> Iterator[Brought | Refused]:
        """See `WeightSource`. They are there: the block's own forward is being called."""
        block, skeleton = self._block_of(name)
        size = sum(one.nbytes for one in block.parameters()) if is_offloaded(block) else 0
        yield Brought(skeleton, size, block)

    def most(self) -> contextlib.AbstractContextManager[None]:
        """See `WeightSource`: weights are brought for each call."""
        return contextlib.nullcontext()

    def facts(self, name: str, module: str) -> Any:
        """See `WeightSource`: diffusers has brought all weights before the block is called."""
        return None

    def results(self, name: str, module: str, arguments: Sequence[torch.Tensor]) -> list[Any] | Refused:
        """See `WeightSource`."""
        return [*map(self._block_of(name)[0].get_submodule(module), arguments)]
