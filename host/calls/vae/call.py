"""A whole decode or encode of a VAE from outside, and the calls of the proxy that belong to it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

import torch

from ....common.outputs import Output
from ....common.reasons import Reason
from ....common.refused import Refused
from ....runtime.calls.dispatch import Accepted, Substituted, fault_of
from ....runtime.request import Request
from ...families import Half, VaeHalf
from ..run import HostRun
from .finite import Flags, recomputed_in_float32
from .resolutions import ResolutionDecision


@dataclass
class VaeCall:
    """A whole decode or encode of the VAE, from outside; its chunks and tiles all belong to it.

    Attributes:
        run: from the first call of the proxy on.
        decisions: of the rule, by whether the backend has graphs for any size.
        finite: for tiles, the requests by key digest, each with a flag on the device: were all its results finite?
        by_blocks: whether the run is one of blocks, which `lasting` has served.
        rerun: set while tiles whose graph gave values that are not finite run once more, without it.
    """

    part: Half
    vae: Any
    tiles: bool
    run: HostRun | None = None
    by_blocks: bool = False
    lasting: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    decisions: dict[bool, ResolutionDecision] = field(default_factory=dict)
    finite: Flags = field(default_factory=dict)
    rerun: EagerRerun | None = None


@dataclass
class EagerRerun:
    """What tiles show when they run without the graph that gave values that are not finite.

    Attributes:
        tiles: how many ran.
        overflow: why, when the VAE itself overflowed on one of them.
    """

    tiles: int = 0
    overflow: Reason | None = None


@dataclass(frozen=True)
class Served:
    """What a call of the proxy gives.

    Attributes:
        whole: the class's own method gave it; else what follows a graph is still to come.
    """

    tensor: Any
    whole: bool


@dataclass(frozen=True)
class Chunk:
    """One call of the proxy, with what it belongs to."""

    family: VaeHalf
    call: VaeCall
    run: HostRun
    module: torch.nn.Module


def resolve_not_finite(chunk: Chunk, request: Request, image: torch.Tensor, reference: Output) -> Accepted:
    """A result that must not leave: is it the graph or the model itself? `reference` is eager's."""
    fault = fault_of(request, reference)
    if fault is not None:
        return Refused(fault)
    exact, reason = recomputed_in_float32(chunk.family, chunk.run, chunk.module, image)
    if exact is None:
        chunk.run.refusal = reason
        return Refused(reason)
    return Substituted(exact, reason)


def call_bytes(part: Half, vae: Any, x: torch.Tensor) -> int:
    """What decoding or encoding one image takes by the host's own estimate; 0: it has none."""
    try:
        estimate = vae.memory_used_decode if part == "decoder" else vae.memory_used_encode
        return int(estimate((1, *x.shape[1:]), x.dtype))
    except Exception:  # of the host's own
        return 0
