"""What tells whether the weights of a module are what they were, where nothing is bound to their memory.

ComfyUI gives a layer other tensors or other patches where a LoRA or a file changes it. Whoever writes into a weight
itself is told by torch's own count where the tensor has one, and by some of its bytes where it has none, as tensors of
ComfyUI's nodes have not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ...common.tensor_bytes import bytes_of
from .quantised import tensors_of_weight

_PLACES, _BYTES = 32, 16  # of each weight that are looked at: few, for others' memory may have gone to the disk


class _Same:
    """An object, equal to itself alone, which it keeps alive."""

    __slots__ = ("_one",)

    def __init__(self, one: Any) -> None:
        self._one = one

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._one is other._one

    def __hash__(self) -> int:
        return id(self._one)


def facts_of(module: torch.nn.Module) -> tuple[Any, ...]:
    """Describe the weights of a module and its children, and what is done to them at each use, for comparison."""
    facts: list[Any] = []
    for layer in module.modules():
        for key in ("weight", "bias"):
            facts += _flat([getattr(layer, f"{key}_function", ()), getattr(layer, f"{key}_lowvram_function", None)])
        for name, weight in layer.named_parameters(recurse=False):
            facts.append(name)
            facts += _flat(getattr(weight, "patches", ()))
            for tensor in tensors_of_weight(weight):
                facts.append((tensor.data_ptr(), tensor.shape, tensor.dtype, _written(tensor)))
    return tuple(facts)


def _flat(value: Any) -> Iterator[Any]:
    """Numbers, names and objects within what is done to a weight."""
    if isinstance(value, list | tuple):
        yield len(value)
        for one in value:
            yield from _flat(one)
    elif value is None or isinstance(value, bool | int | float | str):
        yield value
    elif getattr(value, "is_lowvram_patch", False):
        yield from _flat(value.patches.get(value.key))
    else:
        yield _Same(value)


def _written(tensor: torch.Tensor) -> Any:
    """What changes when a tensor is written to, as far as that is to be seen."""
    version = None if tensor.is_inference() else tensor._version
    if tensor.device.type != "cpu" or not tensor.is_contiguous() or not tensor.nbytes:
        return version
    values = tensor.detach().view(-1).view(torch.uint8)
    step = max(1, (len(values) - _BYTES) // (_PLACES - 1))
    places = min(_PLACES, (len(values) - _BYTES) // step + 1) if len(values) > _BYTES else 0
    some = values.as_strided((places, _BYTES), (step, 1)) if places else values
    return version, bytes_of(some)
