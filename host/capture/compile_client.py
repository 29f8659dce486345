"""How the compiling process rebuilds ComfyUI's models: the `Client` of the ComfyUI host.

`state()` runs in the server, `prepare` and `wrap` in the worker.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ...compiler.blocks.capture import Settings
from ...compiler.code.fingerprint import Rules
from ...compiler.process.job import ClientModule
from ...runtime.family import ModuleCall, modules_of
from .. import families
from ..weights import ggml

_PLAIN = (bool, int, float, str)


def client() -> ClientModule:
    """The client for compiles started by this ComfyUI, with the command-line options it runs under."""
    import comfy
    from comfy.cli_args import args

    plain = {k: v for k, v in vars(args).items() if v is None or isinstance(v, _PLAIN)}
    state = {"comfyui": str(Path(next(iter(comfy.__path__))).parent), "args": plain, "packs": ggml.folders()}
    return ClientModule(".host.capture.compile_client", {**state, "families": modules_of(families.registered())})


@functools.cache
def environment() -> str:
    """The versions around a graph that are no part of its key: a change has it compared with eager again."""
    with contextlib.suppress(ImportError):
        from comfyui_version import __version__ as host

        return f"ComfyUI {host}, torch {torch.__version__}"
    return f"torch {torch.__version__}"


def rules() -> Rules:
    """How ComfyUI's modules are to be read. After `prepare`."""
    from ..weights import eligibility

    return eligibility.rules()


def prepare(state: Mapping[str, Any]) -> None:
    """Import ComfyUI in the worker under the server's options, without its command line."""
    sys.path.insert(0, state["comfyui"])
    sys.argv = sys.argv[:1]
    import comfy.options

    comfy.options.enable_args_parsing(False)
    from comfy.cli_args import args

    for name, value in state["args"].items():
        setattr(args, name, value)
    import comfy.model_management

    for name in state["families"]:
        importlib.import_module(name)
    ggml.load(state["packs"])


def class_of(name: str) -> type:
    """One of ComfyUI's classes that stand in a function, by `module:name`. After `prepare`."""
    from ..weights import quantised

    return quantised.class_of(name)


def block_settings() -> Settings:
    """How ComfyUI's blocks are captured. After `prepare`."""
    from . import rewrites

    return rewrites.settings()


def wrap(component: str, module: torch.nn.Module, inputs: Sequence[str]) -> torch.nn.Module:
    """The function of tensors to capture for a component, which takes the inputs of these names."""
    from ..weights import plain

    family = next(one for one in families.registered() if one.component == component and one.serves(module))
    return ModuleCall(family, plain.plain(module), inputs)
