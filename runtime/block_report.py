"""What happened to the blocks of a model in a run, as text and as numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..common.reasons import Reason

if TYPE_CHECKING:
    from .first_use import FirstUseCheck
    from .loaded_graph import LoadedGraph


@dataclass
class BlockReport:
    """The blocks of one run; nothing where the model is compiled as a whole.

    Attributes:
        of: how many blocks the model has.
        compiled: names of those that a graph served at least once.
        calls: of blocks by graphs.
        eager: calls of blocks that ran eager, by why.
        streamed: by names of blocks, the bytes of weights that each call of them has to bring, as the device has no
            room for all; nothing where all weights stay.
        compile_s, restore_s: seconds, when this run compiled or restored graphs.
    """

    of: int = 0
    compiled: set[str] = field(default_factory=set)
    calls: int = 0
    eager: Counter[Reason] = field(default_factory=Counter)
    streamed: dict[str, int] = field(default_factory=dict)
    compile_s: float | None = None
    restore_s: float | None = None
    _first_uses: dict[int, FirstUseCheck] = field(default_factory=dict)  # by the ids of graphs, which are not kept
    _served: Counter[int] = field(default_factory=Counter)  # calls by the ids of graphs

    def found(self, graph: LoadedGraph, seconds: float) -> None:
        """Note that this run obtained a graph, which took so long; those that are compiled at once take as long."""
        if id(graph) in self._first_uses:
            return
        if graph.fresh and graph.origin == "compiled":
            self.compile_s = max(self.compile_s or 0.0, seconds)
        elif graph.fresh:
            self.restore_s = (self.restore_s or 0.0) + seconds
        self._first_uses[id(graph)] = graph.first_use

    def served(self, graph: LoadedGraph, name: str, streamed: int = 0) -> None:
        """Count a call of a block by a graph. `streamed`: bytes of weights that were brought for it alone."""
        self.compiled.add(name)
        if streamed:
            self.streamed[name] = streamed
        else:
            self.streamed.pop(name, None)
        self.calls += 1
        self._served[id(graph)] += 1

    @property
    def kinds(self) -> int:
        """How many graphs served."""
        return len(self._served)

    @property
    def speedup(self) -> float | None:
        """How many times as fast as eager the blocks are that graphs serve, by their first uses; None: not known.

        What a step does beside its blocks is in no first use, nor is bringing weights that have no room.
        """
        if self.streamed:
            return None
        eager = compiled = 0.0
        for number, calls in self._served.items():
            result = self._first_uses[number].result if number in self._first_uses else None
            if result is None or result.eager_ms is None or result.compiled_ms is None:
                return None
            eager, compiled = eager + calls * result.eager_ms, compiled + calls * result.compiled_ms
        return eager / compiled if compiled else None

    def text(self) -> str:
        """Say what ran compiled.

        `block graphs: 57 of 57 blocks compiled, 3 kinds, restored in 0.4 s, blocks 1.3x eager at first use`. Where not
        all weights have room, `22 resident, 38 streamed` comes after the number of blocks.
        """
        kinds = f"{self.kinds} kind" if self.kinds == 1 else f"{self.kinds} kinds"
        parts = [f"block graphs: {len(self.compiled)} of {self.of} blocks compiled", kinds]
        if self.streamed:
            resident = len(self.compiled) - len(self.streamed)
            parts[1:1] = [f"{resident} resident", f"{len(self.streamed)} streamed"]
        if self.compile_s is not None:
            parts.append(f"compiled in {self.compile_s:.0f} s")
        elif self.restore_s is not None:
            parts.append(f"restored in {self.restore_s:.1f} s")
        if self.speedup is not None:
            parts.append(f"blocks {self.speedup:.1f}x eager at first use")
        return ", ".join(parts) + self.eager_text()

    def eager_text(self) -> str:
        """Say which calls of blocks ran eager and why; empty where none did."""
        if not self.eager:
            return ""
        clauses = (f"{calls} block calls: {text}" for text, calls in _texts(self.eager).items())
        return f"; eager: {'; '.join(clauses)}"

    def to_json(self) -> dict[str, Any] | None:
        if not self.of:
            return None
        codes: Counter[str] = Counter()
        for reason, calls in self.eager.copy().items():
            codes[reason.code] += calls
        return {
            "of": self.of,
            "compiled": len(self.compiled),
            "kinds": self.kinds,
            "calls": self.calls,
            "speedup": self.speedup,
            "streamed": len(self.streamed),
            "streamed_bytes": sum(self.streamed.values()),
            "eager_calls": dict(_texts(self.eager)),
            "eager_codes": dict(codes),
        }


def _texts(eager: Mapping[Reason, int]) -> Counter[str]:
    found: Counter[str] = Counter()
    for reason, calls in {**eager}.items():
        found[reason.text] += calls
    return found
