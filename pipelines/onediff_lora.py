"""OneDiffX's names for LoRAs, by diffusers' own methods: a fused LoRA is in the model's own weights.

A compiled pipeline takes LoRAs as they are, so new scripts call `load_lora_weights` and `set_adapters` instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch


class TensorInplaceAssign(contextlib.AbstractContextManager[None]):
    """Within the block, what is assigned to weights of modules (`weight.data = ...`) is copied into their own memory.

    OneFlow's graphs read weights where they were at the compile. Graphs here take them wherever they are.
    """

    def __init__(self, *modules: Any) -> None:
        self._modules = modules
        self._before: list[tuple[torch.nn.Parameter, torch.Tensor]] = []

    def __enter__(self) -> None:
        self._before = [(one, one.data) for module in self._modules for one in module.parameters()]

    def __exit__(self, *raised: object) -> None:
        for weight, memory in self._before:
            same = weight.shape == memory.shape and (weight.dtype, weight.device) == (memory.dtype, memory.device)
            if same and weight.data_ptr() != memory.data_ptr():
                with torch.no_grad():
                    memory.copy_(weight.data)
                weight.data = memory
        self._before = []


def update_graph_with_constant_folding_info(module: Any, info: Any = None) -> None:
    """Do nothing: OneFlow's graphs hold folded weights that a LoRA makes stale, and graphs here hold none."""


def load_and_fuse_lora(
    pipeline: Any, lora: Any, adapter_name: str | None = None, *, lora_scale: float = 1.0, **options: Any
) -> None:
    """Load a LoRA and add it to the weights; those that are there stay."""
    load_lora_and_optionally_fuse(pipeline, lora, adapter_name, fuse=True, lora_scale=lora_scale, **options)


def load_lora_and_optionally_fuse(
    pipeline: Any,
    lora: Any,
    adapter_name: str | None = None,
    *,
    fuse: bool,
    lora_scale: float | None = None,
    offload_device: Any = None,
    use_cache: bool = False,
    **options: Any,
) -> None:
    """Load a LoRA, and add it to the weights if asked to.

    Args:
        fuse, offload_device, use_cache: OneDiffX's arguments; the last two mean nothing here.
    """
    pipeline.load_lora_weights(lora, adapter_name=adapter_name, **options)
    if fuse:
        names = None if adapter_name is None else [adapter_name]
        pipeline.fuse_lora(lora_scale=1.0 if lora_scale is None else lora_scale, adapter_names=names)


def unfuse_lora(pipeline: Any) -> None:
    """Take all LoRAs out of the weights again. They stay loaded and compute nothing."""
    pipeline.unfuse_lora()
    pipeline.disable_lora()


def set_and_fuse_adapters(
    pipeline: Any, adapter_names: str | Sequence[str] | None = None, adapter_weights: Sequence[float] | None = None
) -> None:
    """Have the weights hold these LoRAs at these strengths and no others."""
    if pipeline.num_fused_loras:
        pipeline.unfuse_lora()
    pipeline.enable_lora()
    names = [adapter_names] if isinstance(adapter_names, str) else adapter_names or pipeline.get_active_adapters()
    pipeline.set_adapters([*names], None if adapter_weights is None else [*adapter_weights])
    pipeline.fuse_lora(adapter_names=[*names])


def delete_adapters(pipeline: Any, adapter_names: str | Sequence[str] | None = None, safe_delete: bool = True) -> None:
    """Take LoRAs out of the weights and forget those that are named, else all."""
    if pipeline.num_fused_loras:
        pipeline.unfuse_lora()
    if adapter_names is None:
        pipeline.unload_lora_weights()
    else:
        pipeline.delete_adapters(adapter_names)


def get_active_adapters(pipeline: Any) -> list[str]:
    """The names of the LoRAs that are in use."""
    names: list[str] = pipeline.get_active_adapters()
    return names
