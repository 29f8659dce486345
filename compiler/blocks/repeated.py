"""The blocks of a model: the outermost modules that stand in a list with others of their class."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any

import torch

from ...signature.views import is_holder, view_of
from ..code.fingerprint import Rules, digest, names_in


def repeated_blocks(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Return the repeated blocks of a model by their names, in order.

    A block has weights and submodules. Lists of single layers are none, and blocks within blocks are parts of them. One
    with a view (`signature.views`) is a block wherever it stands.
    """
    return dict(_blocks(model, ""))


def _blocks(module: torch.nn.Module, path: str) -> Iterator[tuple[str, torch.nn.Module]]:
    classes = [type(one) for one in module.children()] if isinstance(module, torch.nn.ModuleList) else []
    sequence = isinstance(module, torch.nn.ModuleList | torch.nn.Sequential)
    for name, child in module.named_children():
        repeated = classes.count(type(child)) > 1 or (sequence and view_of(child) is not None)
        if repeated and _is_block(child):
            yield f"{path}{name}", child
        else:
            yield from _blocks(child, f"{path}{name}.")


def _is_block(module: torch.nn.Module) -> bool:
    has_weights = next(module.parameters(), None) is not None
    return has_weights and next(module.children(), None) is not None and not is_holder(module)


def entries_of(block: torch.nn.Module) -> frozenset[str]:
    """Return the methods by which a model may call a block: its forward, and public ones that use a submodule with
    submodules, as ComfyUI's Wan Animate 2 calls `forward_pose` and `forward_gen`. Those of torch itself are none."""
    cls: Any = type(block)
    parts = {name for name, child in block.named_children() if next(child.children(), None) is not None}
    return frozenset({"forward", *(name for name, names in _public(cls).items() if not parts.isdisjoint(names))})


@functools.cache
def _public(cls: type) -> Mapping[str, frozenset[str]]:
    """The public methods of a class but forward, and which names are in their code."""
    own = [base for base in reversed(cls.__mro__[:-1]) if base.__module__.partition(".")[0] != "torch"]
    found = {name: value for base in own for name, value in vars(base).items() if not name.startswith("_")}
    methods = {name: one for name, one in found.items() if type(one) is FunctionType and name != "forward"}
    return {name: frozenset(names_in(one.__code__)) for name, one in methods.items()}


def structures(blocks: dict[str, torch.nn.Module], rules: Rules) -> dict[str, list[str]]:
    """Return the names of blocks by their architecture digests: those of one digest share their graphs."""
    by_digest: dict[str, list[str]] = {}
    for name, block in blocks.items():
        by_digest.setdefault(digest(block, rules), []).append(name)
    return by_digest
