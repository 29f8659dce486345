"""When compiling processes are started ahead: a node was run whose graph nobody has."""

from __future__ import annotations

import torch

from ... import backends
from ...common import memory
from ...common.log import logger
from ...compiler.process import ready_workers
from .registry import registry

log = logger("runtime")

_ROOM = 8 << 30  # bytes of memory; elsewhere the compile may need all there is
_BACKEND = "inductor"  # whose compiler takes long to import


def expect(choice: str, device: torch.device, kinds: int) -> None:
    """Have processes ready for the compiles of some graphs, where the device is one on which that pays. Never raises.

    Args:
        choice: of the backend, or `auto`.
        kinds: how many graphs will probably be compiled side by side.
    """
    try:
        if choice not in ("auto", _BACKEND) or device.type not in registry().policy.preload_on:
            return
        if not backends.get(_BACKEND).can_compile(device).ok or memory.available_bytes(torch.device("cpu")) < _ROOM:
            return
        cache = registry().store.private.make_compiler_cache()
        if cache is not None:
            ready_workers.start(kinds, str(device), cache)
    except Exception:  # the compile starts its own
        log.debug("no compiling process was started ahead", exc_info=True)
