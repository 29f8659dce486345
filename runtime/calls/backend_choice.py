"""Which backend serves a client's choice, `auto` among them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ... import backends
from ...common.reasons import Reason
from ...common.refused import Refused
from ..obtain.registry import registry
from ..request import Request


def choose(
    name: str, device: torch.device, build: Callable[[backends.Backend], Request | Refused]
) -> Request | Refused:
    """Make the request for a choice of backend.

    `auto` takes the first backend that can compile here or has the graph already; `build` makes its request.
    """
    if name != "auto":
        backend = backends.get(name)
        unable = backend.can_run(device).reason
        return build(backend) if unable is None else Refused(unable)
    refusals: list[Reason] = []
    for candidate in backends.known():
        backend = backends.get(candidate)
        unable = backend.can_run(device).reason
        if unable is not None:
            refusals.append(unable)
            continue
        request = build(backend)
        if isinstance(request, Refused):
            refusals.append(request.reason)
            continue
        unable = backend.can_compile(device).reason
        if unable is None or registry().has(request):
            return request
        refusals.append(unable)
    return Refused(refusals[0])


def describe(name: str, device: torch.device) -> str:
    """Describe the backend of a choice, and for `auto` why not the one before."""
    if name != "auto":
        runs = backends.get(name).can_run(device)
        return name if runs.ok else f"{name}, which cannot run here: {runs.text}"
    refusals: list[str] = []
    for candidate in backends.known():
        compiles = backends.get(candidate).can_compile(device)
        if compiles.ok:
            return f"{candidate} ({'; '.join(refusals)})" if refusals else candidate
        refusals.append(f"no {candidate}: {compiles.text}")
    return f"cached graphs only ({'; '.join(refusals)})"
