"""Calls of a pipeline's modules with noise, at its usual size, so that there are graphs before its first image.

A model whose blocks are compiled is left out: only its pipeline knows what it is called with.
"""

from __future__ import annotations

import contextlib
import inspect
import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ..common.log import logger
from .component import PipeComponent
from .families.blocks import Blocks

log = logger("pipelines")

_HALVES = (".encoder", ".decoder")  # of a VAE


@torch.no_grad()
def first_calls(pipe: Any, components: Mapping[str, PipeComponent]) -> None:
    """Call each component once, on the device and in the dtype that the pipeline would."""
    for name, component in components.items():
        owner = getattr(pipe, name.partition(".")[0])
        if name.endswith(".encoder") and not _encodes(pipe):
            continue
        if isinstance(component.family, Blocks):
            log.warning("%s has no graphs to save yet: run the pipeline once, then save it", name)
            continue
        module = operator.attrgetter(name)(pipe)
        with _as_it_runs(owner) if name.endswith(_HALVES) else contextlib.nullcontext():
            call = component.family.example(module, pipe)
            module(*call.args, **call.kwargs)


def _encodes(pipe: Any) -> bool:
    """Whether a pipeline encodes an image: an argument `image` may be a ControlNet's, where that has no other name."""
    parameters = inspect.signature(pipe.__call__).parameters
    return "image" in parameters and (getattr(pipe, "controlnet", None) is None or "control_image" in parameters)


@contextlib.contextmanager
def _as_it_runs(vae: Any) -> Iterator[None]:
    """A VAE that overflows in float16 runs in float32, in every pipeline."""
    upcasts = vae.dtype == torch.float16 and getattr(vae.config, "force_upcast", False)
    if upcasts:
        vae.to(torch.float32)
    try:
        yield
    finally:
        if upcasts:
            vae.to(torch.float16)
