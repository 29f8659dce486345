"""Whether calls of a graph that was baked on another machine can be captured: a child process tries, once a machine.

Where a graph is compiled the compiling process tries, for a capture may take a process down. A baked graph was never
called. Its first run launches each kernel, and the trial follows in the background.
"""

from __future__ import annotations

import threading

import torch

from ...common import memory
from ...common.log import logger
from ...graph_cache.store import Store
from ..graphs.loaded_graph import LoadedGraph
from ..request import Request
from .child_load_test import load_in_child

log = logger("runtime")

_ROOM = 2 << 30  # bytes on the device: a process' own, and a call at the smallest sizes
_NICENESS = 10


class CaptureTrials:
    """The trials of one process, one at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[tuple[Request, LoadedGraph]] = []
        self._thread: threading.Thread | None = None

    def note(self, request: Request, graph: LoadedGraph) -> None:
        """Note a graph that was loaded: it waits for a trial, if it was baked and nobody has tried here."""
        whole = graph.entry.manifest.call_rules is None  # blocks' calls are captured by themselves nowhere
        untried = graph.entry.manifest.unmeasured and graph.first_use.result.captured is None
        if whole and untried and graph.captures.permitted and request.device.type == "cuda":
            self._waiting.append((request.without_module(), graph))

    def start(self, device: torch.device) -> None:
        """Begin the next trial, of a graph whose first use is over, where there is room. Called when a run ends."""
        busy = self._thread is not None and self._thread.is_alive()
        if busy or not self._waiting or memory.available_bytes(device) < _ROOM:
            return
        self._waiting = [(request, graph) for request, graph in self._waiting if graph.retired is None]
        used = next((one for one in self._waiting if one[1].first_use.result.compiled_ms is not None), None)
        if used is not None:
            self._waiting.remove(used)
            self._thread = threading.Thread(target=self._try, args=used, name="onegraph-capture-trial", daemon=True)
            self._thread.start()

    def _try(self, request: Request, graph: LoadedGraph) -> None:
        try:
            tried = load_in_child(request, graph.entry, self._store, lambda progress: None, _NICENESS)
            if tried.wrong is not None:  # the graph itself is right: it was compared with eager
                log.debug("whether calls of %s can be captured is unknown: %s", request.label, tried.wrong.text)
                return
            graph.first_use.note_captured(tried.captured)
            if tried.captured:
                graph.allow_captures()
        except Exception:  # nothing of a run depends on it
            log.exception("whether calls of %s can be captured could not be tried", request.label)
