"""Room for graphs that hold memory besides the weights: the least recently used ones are closed first."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

from ...common import memory, reasons
from ...common.log import logger
from ...common.reasons import Reason
from ...graph_cache.entry import Entry
from ..graphs.loaded_graph import LoadedGraph
from ..request import Request, Slot

log = logger("runtime")


class Eviction:
    """Keeps what loaded graphs hold below a share of the memory that is free without them.

    Args:
        graphs: the loaded graphs, from which evicted ones are removed.
        share: of that memory.
    """

    def __init__(self, graphs: MutableMapping[Slot, LoadedGraph], share: float = 0.5) -> None:
        self.share = share
        self._graphs = graphs
        self._closed: list[LoadedGraph] = []  # that still hold memory, because their backend does not release it yet

    def held_bytes(self) -> int:
        """Bytes that loaded graphs hold besides the weights, with what closed ones did not release."""
        self._closed = [graph for graph in self._closed if graph.held_bytes]
        return sum(graph.held_bytes for graph in (*self._closed, *dict(self._graphs).values()))

    def close(self, folder: Path) -> None:
        """Close the graphs that were loaded from a folder, which somebody wants to delete."""
        for slot, graph in dict(self._graphs).items():
            if graph.entry.folder == folder and self._graphs.pop(slot, None) is graph:
                graph.close()
                self._closed.append(graph)

    def make_room(self, request: Request, entry: Entry) -> Reason | None:
        """Close the graphs that were not used for longest until this one fits; else why it does not."""
        needed = request.backend.estimate_memory(entry.folder)
        if not needed:
            return None
        while True:
            held = self.held_bytes()
            left = int(self.share * (memory.available_bytes(request.device) + held)) - held
            if needed <= left:
                return None
            idle = [(graph.used, slot) for slot, graph in dict(self._graphs).items() if graph.held_bytes]
            if not idle or needed > left + held - sum(graph.held_bytes for graph in self._closed):
                return reasons.GraphDoesNotFit(request.backend.name, needed, request.label, max(left, 0))
            graph = self._graphs.pop(min(idle)[1])
            graph.close()
            self._closed.append(graph)
            log.info("closed %s to make room for %s", graph.entry.folder.name, request.label)
