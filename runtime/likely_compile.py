"""When compiling processes are started ahead: a node was run whose graph nobody has."""

from __future__ import annotations

import logging

import torch

from .. import backends
from ..common import memory
from ..compiler import ready_workers
from .policy import Policy

log = logging.getLogger("onegraph.runtime")

_ROOM = 8 << 30  # bytes of memory; elsewhere the compile may need all there is
_BACKEND = "inductor"  # whose compiler takes long to import


def expect(choice: str, device: torch.device, kinds: int, policy: Policy) -> None:
    """Have processes ready for the compiles of some graphs, where the device is one on which that pays. Never raises.

    Args:
        choice: of the backend, or `auto`.
        kinds: how many graphs will probably be compiled side by side.
    """
    try:
        if choice not in ("auto", _BACKEND) or device.type not in policy.preload_on:
            return
        if backends.get(_BACKEND).can_compile(device).ok and memory.available_bytes(torch.device("cpu")) >= _ROOM:
            ready_workers.start(kinds)
    except Exception:  # the compile starts its own
        log.debug("no compiling process was started ahead", exc_info=True)
