"""What a page hears over ComfyUI's websocket."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import websocket
from headless.standstill import PATIENCE, wait_until


class Listener:
    """Collects the pack's events, in order. Use `listening`."""

    def __init__(self, port: int) -> None:
        self._channel = websocket.create_connection(f"ws://127.0.0.1:{port}/ws?clientId=page", timeout=PATIENCE)
        self._events: list[tuple[str, dict[str, Any]]] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError, websocket.WebSocketException):
            while True:
                message = self._channel.recv()
                if isinstance(message, str) and message:
                    event = json.loads(message)
                    if event["type"].startswith("onegraph."):
                        self._events.append((event["type"], event["data"]))

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The data of the events of a kind so far."""
        return [data for name, data in [*self._events] if name == kind]

    def wait(self, kind: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first event of a kind for which something holds, as soon as it is there."""
        found: list[dict[str, Any]] = []

        def came() -> bool:
            found.extend(data for data in self.of(kind) if holds(data))
            return bool(found)

        wait_until(came, lambda: self._events[-5:])
        return found[0]

    def close(self) -> None:
        self._channel.close()
        self._thread.join(10)


@contextlib.contextmanager
def listening(port: int) -> Iterator[Listener]:
    """Listen to a server until the block ends."""
    listener = Listener(port)
    try:
        yield listener
    finally:
        listener.close()
