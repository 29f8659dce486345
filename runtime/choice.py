"""Which backend serves a client's choice, `auto` among them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .. import backends
from ..common import reasons
from ..common.reasons import Reason
from ..common.shapes import Refused
from .registry import registry
from .request import Request


def choose(
    name: str, device: torch.device, build: Callable[[backends.Backend], Request | Refused]
) -> Request | Refused:
    """Make the request for a choice of backend.

    `auto` takes the first backend that can compile here or has the graph already; `build` makes its request.
    """
    if name != "auto":
        backend = backends.get(name)
        runs = backend.can_run(device)
        return build(backend) if runs.ok else Refused(reasons.Unavailable(runs.reason))
    refusals: list[Reason] = []
    for candidate in backends.known():
        backend = backends.get(candidate)
        runs = backend.can_run(device)
        if not runs.ok:
            refusals.append(reasons.Unavailable(runs.reason))
            continue
        request = build(backend)
        compiles = backend.can_compile(device)
        if isinstance(request, Request) and (compiles.ok or registry().has(request)):
            return request
        refusals.append(request.reason if isinstance(request, Refused) else reasons.Unavailable(compiles.reason))
    return Refused(refusals[0])


def describe(name: str, device: torch.device) -> str:
    """Describe the backend of a choice, and for `auto` why not the one before."""
    if name != "auto":
        runs = backends.get(name).can_run(device)
        return name if runs.ok else f"{name}, which cannot run here: {runs.reason}"
    refusals: list[str] = []
    for candidate in backends.known():
        compiles = backends.get(candidate).can_compile(device)
        if compiles.ok:
            return f"{candidate} ({'; '.join(refusals)})" if refusals else candidate
        refusals.append(f"no {candidate}: {compiles.reason}")
    return f"cached graphs only ({'; '.join(refusals)})"
