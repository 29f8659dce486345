"""Compiles that wait until the host has nothing to do, and then run in the background one after the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from ...common.log import logger

log = logger("compiler")

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")

_IN_A_ROW = 2  # looks that must find the host idle: between two prompts of a script it is, too, for a moment


class DeferredCompiles(Generic[Key, Item]):
    """Items that wait, by key, and one daemon thread while there are any: it never keeps the process alive.

    Args:
        ready: whether an item may start now.
        start: does the work; what it raises puts the item back.
    """

    def __init__(
        self, ready: Callable[[Item], bool], start: Callable[[Key, Item], None], poll_seconds: float = 2.0
    ) -> None:
        self._ready = ready
        self._start = start
        self._poll_seconds = poll_seconds
        self._items: dict[Key, Item] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._items)

    def put(self, key: Key, item: Item) -> None:
        """Have an item wait, in place of one of the same key."""
        with self._lock:
            self._items[key] = item
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="onegraph-deferred", daemon=True)
                self._thread.start()

    def take(self, key: Key) -> Item | None:
        """The item, which waits no longer."""
        with self._lock:
            return self._items.pop(key, None)

    def _work(self) -> None:
        in_a_row: dict[Key, int] = {}
        while True:
            time.sleep(self._poll_seconds)
            with self._lock:
                if not self._items:
                    self._thread = None
                    return
                waiting = dict(self._items)
            in_a_row = {key: in_a_row.get(key, 0) + 1 for key, item in waiting.items() if self._is_ready(item)}
            for key, count in in_a_row.items():
                if count >= _IN_A_ROW:
                    self._try(key)
                    in_a_row = {}  # the host may have begun something meanwhile
                    break

    def _is_ready(self, item: Item) -> bool:
        try:
            return self._ready(item)
        except Exception:  # of the host's own
            log.debug("nobody can tell whether a deferred compile may start", exc_info=True)
            return False

    def _try(self, key: Key) -> None:
        item = self.take(key)
        if item is None:
            return
        try:
            self._start(key, item)
        except Exception:
            log.debug("a deferred compile waits again", exc_info=True)
            with self._lock:
                self._items.setdefault(key, item)
