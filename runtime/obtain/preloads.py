"""Loading cached graphs before their first call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch

from ...common import memory
from ...common.log import logger
from ...common.reasons import Reason
from ...common.refused import Refused
from ...compiler.blocks.attention import Zeros, attending
from ...graph_cache.lookup import Miss
from ..counters import Counters
from ..graphs.loaded_graph import LoadedGraph
from ..request import Request, Slot
from .failures import Failures

log = logger("runtime")


class Preloads:
    """Loads graphs and warms them up, in threads beside whatever comes before their first call.

    Args:
        claim: takes a slot unless somebody else obtains its graph just now.
        cached: what this process has for a slot already.
        restore: loads a graph from the store.

    Attributes:
        refusals: why graphs could not be preloaded, which the next run is to say.
    """

    def __init__(
        self,
        claim: Callable[[Slot], contextlib.AbstractContextManager[bool]],
        cached: Callable[[Slot], LoadedGraph | Refused | None],
        restore: Callable[[Request], LoadedGraph | Refused | Miss],
        failures: Failures,
        counters: Counters,
    ) -> None:
        self.refusals: dict[Slot, Reason] = {}
        self._claim = claim
        self._cached = cached
        self._restore = restore
        self._failures = failures
        self._counters = counters

    def run(self, request: Request, room: int, modules: int = 1) -> bool:
        """Load a cached graph and warm it up. Never raises.

        Args:
            room: bytes that must still be free to warm it up.
            modules: that the graph will serve.

        Returns:
            Whether there is no graph to load, so that a call will probably compile one.
        """
        device = request.device
        try:
            on_device = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
            with torch.inference_mode(), on_device:  # both are a thread's own
                restored = self._restored(request)
                if isinstance(restored, Miss):
                    return self._failures.why_not(request) is None
                if restored is not None and memory.unused_bytes(device) >= room:
                    with attending(Zeros()):
                        restored.warm(request.some_inputs(restored.entry.manifest.call_rules), modules)
                    self._counters.preloads += 1
        except Exception:  # the first call does without
            log.debug("a graph could not be preloaded", exc_info=True)
        return False

    def _restored(self, request: Request) -> LoadedGraph | Miss | None:
        # Whoever else obtains this graph may be compiling it, and a process that ends waits for this thread.
        slot = request.slot
        with self._claim(slot) as claimed:
            if not claimed or self._cached(slot) is not None or slot in self.refusals:
                return None
            restored = self._restore(request)
            if isinstance(restored, Refused) and not restored.passing:  # nobody listens here
                self.refusals[slot] = restored.reason
            return restored if isinstance(restored, LoadedGraph | Miss) else None
