"""Events for the pages that are open, over ComfyUI's websocket. Sending one never raises and never waits."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any, Literal

from ...common.log import logger
from ...graph_cache.layout import machine_id
from ...runtime.obtain.registry import registry
from ..comfyui.prompt_server import prompt_server

log = logger("host")

Event = Literal["onegraph.badge", "onegraph.text", "onegraph.graphs", "onegraph.bake"]
_PAUSE = 1.0  # seconds between two events that the list of graphs has changed


def send(event: Event, data: dict[str, Any]) -> None:
    """Send an event to all pages; without a server (in-process use) to nobody."""
    try:
        server = prompt_server()
        if server is not None:
            server.send_sync(event, data)
    except Exception as error:  # ComfyUI ends, or is another one
        log.debug("no event %s: %s", event, error)


class _Changes:
    """Tells that the list of graphs has changed, at most once in a while, and never too early to see the last change.

    What restores took is written on the way, in the same thread, for which no run waits.
    The revision says nothing but that it is another one: reading the disk would take time from a run.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._began = f"{machine_id()}{time.time_ns():x}"
        self._due = False
        self._last = 0.0

    def __call__(self) -> None:
        with self._lock:
            if self._due:
                return
            self._due = True
            timer = threading.Timer(max(0.0, self._last + _PAUSE - time.monotonic()), self._send)
        timer.daemon = True
        timer.start()

    def _send(self) -> None:
        with self._lock:
            self._due, self._last = False, time.monotonic()
        send("onegraph.graphs", {"revision": f"{self._began}-{next(self._numbers)}"})
        try:
            registry().remember_restores()
        except Exception:  # a time that nobody knows later
            log.debug("what restores took is not remembered", exc_info=True)


graphs_changed = _Changes()
