"""Blocks of a model that ComfyUI loaded in part (`--lowvram`, or no room, without DynamicVRAM): the weights of each one
come from system memory while it runs.

By the host's own function, the one that each uncompiled layer calls for its weights, LoRAs applied. It runs on one of
two streams of ours, so that a block's weights are copied while the block before computes; their memory is given back
when the device is done with the block.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...common import reasons
from ...common.reasons import Reason
from ...common.refused import Refused
from ...common.torch_private import Tables, set_tables, tables
from ...runtime.calls.weight_source import Brought
from . import ggml
from .paged_weights import cast_arguments
from .quantised import is_quantised, tensors_of_weight
from .skeletons import PagedCopies, copies_of, fill, without_storage
from .weight_facts import facts_of

_STREAMS = 2  # one block computes while the next one's weights are copied


def is_partly_loaded(patcher: Any) -> bool:
    """Tell whether some weights of a patcher's model stay in system memory, and DynamicVRAM does not page them."""
    return bool(getattr(patcher.model, "model_lowvram", False))


def whole_refusal(patcher: Any) -> Reason | None:
    """Say why no graph reads the weights of a patcher's model where they are, or None: those of blocks are brought."""
    if is_partly_loaded(patcher):
        return reasons.LowVram()
    return reasons.WeightComputed("a layer with a LoRA on GGUF") if ggml.is_patched(patcher) else None


def skeleton(patcher: Any, model: torch.nn.Module) -> torch.nn.Module:
    """Return the skeleton of a patcher's model for which the graphs of its blocks are compiled."""
    if not ggml.is_patched(patcher):
        return model
    return without_storage(model, patcher.model.get_dtype_inference())[0]


def copies(patcher: Any, block: torch.nn.Module, version: int) -> PagedCopies:
    """Copies of a block of a patcher's model, whose weights are brought."""
    return copies_of(block, version, patcher.model.get_dtype_inference())


def refusal(block: torch.nn.Module) -> Reason | None:
    """Say why the weights of a block cannot be brought as its layers have them, or None.

    A layer applies a LoRA to what it has cast its weight to; a graph casts afterwards.
    """
    for name, layer in block.named_modules():
        for key in ("weight", "bias"):
            if not getattr(layer, f"{key}_function", None):
                continue
            weight = tables(layer).parameters.get(key)
            if getattr(type(layer), "comfy_cast_weights", False) or weight is None or is_quantised(weight):
                return reasons.WeightComputed(f"{name} ({type(layer).__name__})")
    return None


@dataclass(eq=False)
class StagedBlocks:
    """Access to the weights of blocks, one block at a time, during one run.

    Attributes:
        versions: of each block as it is now, by names.
        cast: the host's function that gives a layer its weights.
        refusal: why no further block's weights are brought in this run, or None.
    """

    patcher: Any
    model: torch.nn.Module
    versions: Mapping[str, int]
    device: torch.device
    cast: Callable[..., Any]
    refusal: Reason | None = None
    _streams: Iterator[Any] | None = None

    @contextlib.contextmanager
    def weights(self, name: str, without: Collection[str] = ()) -> Iterator[Brought | Refused]:
        """See `WeightSource`."""
        block = self.model.get_submodule(name)
        filled = copies(self.patcher, block, self.versions[name]).filled
        stream = self._stream()
        try:
            brought: Brought | Refused
            try:
                brought = Refused(self.refusal) if self.refusal else self._brought(block, filled, stream, without)
            except torch.OutOfMemoryError:
                self.refusal = reasons.MemoryRanOut()
                brought = Refused(self.refusal)
            yield brought
        finally:
            for copied in filled:
                set_tables(copied, Tables({}, {}, tables(copied).children))
            if stream is not None:  # what the stream allocates next is for after this block
                stream.wait_stream(torch.get_device_module(self.device).current_stream(self.device))

    def most(self) -> contextlib.AbstractContextManager[None]:
        """See `WeightSource`: weights are brought for each call."""
        return contextlib.nullcontext()

    def facts(self, name: str, module: str) -> Any:
        """See `WeightSource`."""
        if self.refusal is not None:
            return Refused(self.refusal)
        if not is_partly_loaded(self.patcher):
            return None
        return facts_of(self.model.get_submodule(name).get_submodule(module))

    def results(self, name: str, module: str, arguments: Sequence[torch.Tensor]) -> list[Any] | Refused:
        """See `WeightSource`. The host brings the weights for each."""
        return [*map(self.model.get_submodule(name).get_submodule(module), arguments)]

    def _stream(self) -> Any:
        """The stream for the next block's weights; None: the device has none."""
        if self.device.type == "cpu":
            return None
        if self._streams is None:
            module = torch.get_device_module(self.device)
            self._streams = itertools.cycle([module.Stream(self.device) for _ in range(_STREAMS)])
        return next(self._streams)

    def _brought(
        self, block: torch.nn.Module, copies: tuple[torch.nn.Module, ...], stream: Any, without: Collection[str]
    ) -> Brought:
        """Put the weights into the copy of a block: those that are elsewhere or computed at each use, brought."""
        left = {id(one) for path in without for one in block.get_submodule(path).modules()}
        module = torch.get_device_module(self.device) if stream is not None else None
        parameters: dict[tuple[int, str], torch.Tensor] = {}
        streamed, computed = 0, self.patcher.model.get_dtype_inference()
        with contextlib.nullcontext() if module is None else module.stream(stream):
            for layer in block.modules():
                weight, bias = (tables(layer).parameters.get(key) for key in ("weight", "bias"))
                if weight is None or id(layer) in left:
                    continue
                got = ggml.brought(layer, self.device, computed)
                if got is None and self._is_brought(layer, weight, bias):
                    got = self.cast(layer, device=self.device, **cast_arguments(layer, weight, bias))
                if got is None:
                    continue
                for key, tensor in zip(("weight", "bias"), got, strict=True):
                    if tensor is not None:
                        parameters[id(layer), key] = torch.nn.Parameter(tensor, requires_grad=False)
                        streamed += sum(one.nbytes for one in tensors_of_weight(tensor))
        if module is not None:
            module.current_stream(self.device).wait_stream(stream)
        fill(copies, block, lambda owner, name, tensor: parameters.get((id(owner), name), tensor))
        return Brought(copies[0], streamed)

    def _is_brought(self, layer: Any, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
        """Whether a layer asks the host for its weights at each use, and gets others than it has."""
        if not getattr(layer, "comfy_cast_weights", False):
            return False
        elsewhere = any(one is not None and one.device != self.device for one in (weight, bias))
        return elsewhere or bool(layer.weight_function) or bool(layer.bias_function)


def staged(patcher: Any, model: torch.nn.Module, versions: Mapping[str, int]) -> StagedBlocks:
    """Access block by block to the weights of a patcher's model that is loaded in part, or whose weights are computed
    at each use."""
    import comfy.ops

    return StagedBlocks(patcher, model, versions, patcher.load_device, comfy.ops.cast_bias_weight)
