"""PEFT's adapter layers, which LoRA files of diffusers become.

A layer whose adapters are merged, as `fuse_lora` does, or turned off computes what the layer inside it does. Then the
graph of the plain model serves, with the inner layers' weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..common import reasons
from ..common.reasons import Reason
from ..common.torch_private import Tables, set_tables, tables

_LIBRARY = "peft"
_INNER = "base_layer"


def _is_adapter(module: torch.nn.Module) -> bool:
    return type(module).__module__.partition(".")[0] == _LIBRARY


def _layers(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """The outermost adapter layers by name."""
    if _is_adapter(module):
        yield "", module
        return
    for name, child in module.named_children():
        for inner, layer in _layers(child):
            yield f"{name}.{inner}" if inner else name, layer


def first_of(module: torch.nn.Module) -> str | None:
    """The name of the first adapter layer, or None."""
    return next((name for name, _ in _layers(module)), None)


def refusal(module: torch.nn.Module) -> Reason | None:
    """Why a module with adapter layers does not compute what it does without them, or None."""
    for name, layer in _layers(module):
        plain = isinstance(getattr(layer, _INNER, None), torch.nn.Module)
        if not plain or bool(layer.merged) == bool(layer.disable_adapters):
            return reasons.AdapterLayers("PEFT", name)
    return None


def without(module: torch.nn.Module) -> torch.nn.Module:
    """The module with the layers inside the adapter layers in their place. It shares all weights."""
    if _is_adapter(module):
        inner = getattr(module, _INNER)
        assert isinstance(inner, torch.nn.Module)
        return inner
    if first_of(module) is None:
        return module
    plain: torch.nn.Module = object.__new__(type(module))
    object.__setattr__(plain, "__dict__", dict(vars(module)))
    own = tables(module)
    children = {name: None if child is None else without(child) for name, child in own.children.items()}
    set_tables(plain, Tables(own.parameters, own.buffers, children))
    return plain
