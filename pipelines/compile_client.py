"""How the compiling process rebuilds diffusers' models: the `Client` of pipelines.

`client` and `environment` run in the user's process, `prepare` and `wrap` in the worker.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..compiler.fingerprint import Rules
from ..compiler.job import Client
from . import reading
from .families.unet import has_text_time, run_unet

PREFIX = "module."  # under which every wrapper below holds what it wraps
_MANY = 40  # upsamplers: no size is a multiple of 2**40


def client() -> Client:
    """The client for compiles of diffusers' models."""
    return Client(".pipelines.compile_client", {})


@functools.cache
def environment() -> str:
    """The versions around a graph that are no part of its key: a change has it compared with eager again."""
    import diffusers

    return f"diffusers {diffusers.__version__}, torch {torch.__version__}"


def rules() -> Rules:
    """How diffusers' modules are to be read."""
    return reading.rules()


def prepare(state: Mapping[str, Any]) -> None:
    """Nothing is ever fetched by the worker."""
    os.environ["HF_HUB_OFFLINE"] = "1"


class UnetCall(torch.nn.Module):
    """sample [B,C,H,W], timesteps [B], context [B,T,D] -> [B,C,H,W]."""

    def __init__(self, unet: torch.nn.Module) -> None:
        super().__init__()
        self.module = unet
        # The UNet asks whether sizes are multiples of what its levels need, and else says how large each upsampled
        # image is. Saying so is right for all sizes, and one graph serves them.
        unet.num_upsamplers = _MANY  # type: ignore[assignment]

    def forward(self, sample: torch.Tensor, timesteps: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        return run_unet(self.module, sample, timesteps, context)


class TextTimeUnetCall(UnetCall):
    """The same with text_embeds [B,A] and time_ids [B,N], as SDXL takes them."""

    def forward(  # type: ignore[override]
        self,
        sample: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        text_embeds: torch.Tensor,
        time_ids: torch.Tensor,
    ) -> torch.Tensor:
        return run_unet(self.module, sample, timesteps, context, text_embeds, time_ids)


class VaeHalfCall(torch.nn.Module):
    """A VAE's decoder or encoder: x [1,C,h,w] -> [1,C',h',w']."""

    def __init__(self, half: torch.nn.Module) -> None:
        super().__init__()
        self.module = half

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.module(x)
        return result


def wrap(component: str, module: torch.nn.Module, inputs: Sequence[str]) -> torch.nn.Module:
    """The function of tensors to capture for a component, given the names of the tensors."""
    if component != "unet":
        return VaeHalfCall(module)
    return TextTimeUnetCall(module) if has_text_time(module) else UnetCall(module)
