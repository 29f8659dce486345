"""How the compiling process rebuilds diffusers' models: the `Client` of pipelines.

`client` and `environment` run in the user's process, `prepare` and `wrap` in the worker.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..common.outputs import Output
from ..compiler.fingerprint import Rules
from ..compiler.job import Client
from . import reading
from .families import Family, family_of

PREFIX = "module."  # under which the wrapper below holds what it wraps


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
    """Nothing is ever fetched by the worker, and attention is torch's own: compilers choose its kernel."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["DIFFUSERS_ATTN_BACKEND"] = "native"


class ModuleCall(torch.nn.Module):
    """A model as a function of tensors."""

    def __init__(self, module: torch.nn.Module, family: Family, inputs: Sequence[str]) -> None:
        super().__init__()
        self.module = module
        self._family = family
        self._inputs = tuple(inputs)

    def forward(self, *inputs: torch.Tensor) -> Output:
        return self._family.run(self.module, dict(zip(self._inputs, inputs, strict=True)))


def wrap(component: str, module: torch.nn.Module, inputs: Sequence[str]) -> torch.nn.Module:
    """The function of tensors to capture for a component, given the names of the tensors."""
    family = family_of(module)
    assert family is not None
    family.prepare_capture(module)
    return ModuleCall(module, family, inputs)
