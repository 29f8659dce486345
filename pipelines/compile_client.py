"""How the compiling process rebuilds diffusers' models: the `Client` of pipelines.

`client` and `environment` run in the user's process, the others in the worker.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..compiler.blocks.capture import Settings
from ..compiler.code.fingerprint import Rules
from ..compiler.process.job import ClientModule
from ..runtime.family import ModuleCall, modules_of
from . import capturing, module_facts
from .families import FAMILIES, family_of
from .weight_formats import FORMATS


def client() -> ClientModule:
    """The client for compiles of diffusers' models."""
    return ClientModule(".pipelines.compile_client", {"modules": modules_of([*FAMILIES, *FORMATS])})


@functools.cache
def environment() -> str:
    """The versions around a graph that are no part of its key: a change has it compared with eager again."""
    import diffusers

    return f"diffusers {diffusers.__version__}, torch {torch.__version__}"


def rules() -> Rules:
    """How diffusers' modules are to be read."""
    return module_facts.rules()


def prepare(state: Mapping[str, Any]) -> None:
    """Nothing is ever fetched by the worker, and attention is torch's own: compilers choose its kernel."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["DIFFUSERS_ATTN_BACKEND"] = "native"
    for name in state["modules"]:
        importlib.import_module(name)


def wrap(component: str, module: torch.nn.Module, inputs: Sequence[str]) -> torch.nn.Module:
    """The function of tensors to capture for a component, given the names of the tensors."""
    family = family_of(module)
    assert family is not None
    return ModuleCall(family, module, inputs)


def block_settings() -> Settings:
    """How diffusers' blocks are captured."""
    return capturing.settings()
