"""A made-up network with a clock of its own, for `fleet.py`: links whose flows share them, and stores behind caches."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

SCALE = 1000  # bytes that the network counts for each of a graph's files


class Network:
    """One clock, one event queue, and the links."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def at(self, when: float, run: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, run))

    def run(self) -> None:
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()


@dataclass
class Link:
    """An uplink whose flows have equal shares, none above `most` MB/s."""

    network: Network
    uplink: float
    most: float
    requests: int = 0
    bytes: int = 0
    _served: float = 0.0  # MB that each flow got so far
    _since: float = 0.0
    _flows: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _number: int = 0
    _plan: int = 0

    def send(self, count: int, then: Callable[[], None]) -> int:
        """Call `then` when so many bytes have come through; a number by which nobody waits for them any more."""
        self.requests += 1
        self.bytes += count
        self._advance()
        self._number += 1
        heapq.heappush(self._flows, (self._served + count / 1e6, self._number, then))
        self._schedule()
        return self._number

    def cancel(self, number: int) -> None:
        """Stop sending, as when a connection is closed."""
        self._advance()
        left = [flow for flow in self._flows if flow[1] == number]
        self.bytes -= round(sum(target - self._served for target, _, _ in left) * 1e6)
        self._flows = [flow for flow in self._flows if flow[1] != number]
        heapq.heapify(self._flows)
        self._schedule()

    @property
    def _rate(self) -> float:
        return min(self.most, self.uplink / max(len(self._flows), 1))

    def _advance(self) -> None:
        self._served += (self.network.now - self._since) * (self._rate if self._flows else 0.0)
        self._since = self.network.now

    def _schedule(self) -> None:
        self._plan += 1
        if self._flows:
            plan, left = self._plan, max(0.0, self._flows[0][0] - self._served)
            self.network.at(self.network.now + left / self._rate, lambda: self._ended(plan))

    def _ended(self, plan: int) -> None:
        if plan != self._plan:  # others came or went meanwhile
            return
        self._advance()
        _, _, then = heapq.heappop(self._flows)
        self._schedule()
        then()


class Source:
    """A store, or a cache before one."""

    def __init__(self, folder: Path, link: Link, trip: float, behind: Source | None = None) -> None:
        self._folder, self._behind, self._trip = folder, behind, trip
        self.link = link
        self._there: dict[str, list[Callable[[], None]] | None] = {}  # None: it is here

    def get(self, name: str, then: Callable[[bytes | None], None]) -> Callable[[], None]:
        """Call `then` with a file's bytes, once they have come; what to call when nobody waits any more."""
        sent: list[int] = []
        given_up = False
        network = self.link.network
        path = self._folder / name
        data = path.read_bytes() if path.is_file() else None

        def send() -> None:
            scale = SCALE if name.startswith("objects/") and data is not None and data[:1] != b"{" else 1
            if not given_up:
                sent.append(self.link.send(len(data or b"") * scale + 500, lambda: then(data)))

        def have() -> None:
            if self._behind is None or self._there.get(name, []) is None:
                send()
            elif name in self._there:
                waiting = self._there[name]
                assert waiting is not None
                waiting.append(send)
            else:
                self._there[name] = [send]
                self._behind.get(name, lambda _: came())

        def came() -> None:
            waiting, self._there[name] = self._there[name], None
            for one in waiting or ():
                one()

        def give_up() -> None:
            nonlocal given_up
            given_up = True
            for number in sent:
                self.link.cancel(number)

        network.at(network.now + self._trip, have)
        return give_up
