"""What happened in a run, as text and as numbers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...common import memory, reasons
from ...common.reasons import Reason

if TYPE_CHECKING:
    from ..graphs.first_use import FirstUseCheck
    from ..graphs.loaded_graph import LoadedGraph


def faster(speedup: float) -> str:
    """Say how fast a graph is beside the uncompiled model.

    >>> faster(2.13), faster(0.84)
    ('2.1x faster', '0.8x as fast')
    """
    return f"{speedup:.1f}x {'faster' if speedup >= 1.05 else 'as fast'}"


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
        modulation: how many results of blocks' modulation were kept ones, and how many were computed; 0 where weights
            are in place.
        compile_s, restore_s: seconds, when this run compiled or restored graphs.
        note: what the client does besides, for people; empty: nothing.
    """

    of: int = 0
    compiled: set[str] = field(default_factory=set)
    calls: int = 0
    eager: Counter[Reason] = field(default_factory=Counter)
    streamed: dict[str, int] = field(default_factory=dict)
    modulation: tuple[int, int] = (0, 0)
    compile_s: float | None = None
    restore_s: float | None = None
    note: str = ""
    _first_uses: dict[int, FirstUseCheck] = field(default_factory=dict)  # by the ids of graphs, which are not kept
    _served: Counter[int] = field(default_factory=Counter)  # calls by the ids of graphs

    @property
    def obtained(self) -> int:
        """How many graphs this run has, whether they served a call or not."""
        return len(self._first_uses)

    def note_graph(self, graph: LoadedGraph, seconds: float, made: bool = False) -> None:
        """Note that this run obtained a graph, which took so long; those that are compiled at once take as long.

        Args:
            made: whether this run compiled it, where nobody restored it: a VAE's next run calls it first.
        """
        if id(graph) in self._first_uses:
            return
        if made and graph.origin == "compiled":
            self.compile_s = max(self.compile_s or 0.0, seconds)
        elif graph.fresh and graph.origin != "compiled":
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

    @property
    def inexact(self) -> tuple[Reason, ...]:
        """Why graphs of quantised blocks were compared with eager alone; empty where none was."""
        return tuple(dict.fromkeys(one.inexact for one in self._first_uses.values() if one.inexact is not None))

    def text(self) -> str:
        """Say what ran compiled.

        `block graphs: 57 of 57 blocks compiled, 3 kinds, restored in 0.4 s, blocks 1.3x faster at first use`. Where not
        all weights have room, `22 resident, 38 streamed` comes after the number of blocks.
        """
        parts = [f"block graphs: {len(self.compiled)} of {self.of} blocks compiled", _kinds(self.kinds)]
        if self.streamed:
            resident = len(self.compiled) - len(self.streamed)
            parts[1:1] = [f"{resident} resident", f"{len(self.streamed)} streamed"]
        if any(self.modulation):
            parts.append(f"modulation kept in {self.modulation[0]} of {sum(self.modulation)} calls")
        if self.compile_s is not None:
            parts.append(f"compiled in {self.compile_s:.0f} s")
        elif self.restore_s is not None:
            parts.append(f"restored in {self.restore_s:.1f} s")
        if self.speedup is not None:
            parts.append(f"blocks {faster(self.speedup)} at first use")
        parts += [reason.text for reason in self.inexact]
        if self.note:
            parts.append(self.note)
        return ", ".join(parts) + self.eager_text()

    def eager_text(self) -> str:
        """Say which calls of blocks ran eager and why; empty where none did."""
        if not self.eager:
            return ""
        clauses = (f"{calls} block calls: {text}" for text, calls in _texts(self.eager).items())
        return f"; uncompiled: {'; '.join(clauses)}"

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
            "resident": len(self.compiled) - len(self.streamed),
            "streamed": len(self.streamed),
            "streamed_bytes": sum(self.streamed.values()),
            "modulation": {"kept": self.modulation[0], "computed": self.modulation[1]},
            "inexact_codes": [reason.code for reason in self.inexact],
            "eager_calls": dict(_texts(self.eager)),
            "eager_codes": dict(codes),
        }


@dataclass
class RunReport:
    """One sampling run of one node.

    Attributes:
        label: the shapes of the graph in use, e.g. `any size 64-2048`.
        compile_s, restore_s: seconds, when this run compiled or restored a graph. `restore_s` is find, check, load,
            bind and the first call.
        speedup: how many times as fast as eager a call was at the graph's first use.
        seconds: from the first call until the last one was done.
        step_ms: mean of all calls after the first, milliseconds.
        call_ms: the last call alone, milliseconds; None for tiles, for which nothing waits one by one.
        captured_bytes: that captured CUDA graphs hold on the device after the run.
        instead_of: why a graph that was there could not be loaded, so that this run compiled another.
        rule: of a VAE, the rule for changing resolutions that applied, and why.
        blocks: of a model whose blocks are compiled. A call of such a model is compiled if one of its blocks is.
        without_blocks: calls of such a model that called no block by its forward.
    """

    label: str = ""
    speedup: float | None = None
    compile_s: float | None = None
    restore_s: float | None = None
    compiled_calls: int = 0
    eager: Counter[Reason] = field(default_factory=Counter)
    seconds: float = 0.0
    step_ms: float | None = None
    call_ms: float | None = None
    captured_bytes: int = 0
    instead_of: Reason | None = None
    rule: str = ""
    blocks: BlockReport = field(default_factory=BlockReport)
    without_blocks: int = 0
    _first_start: float = 0.0
    _second_start: float = 0.0

    @property
    def compiled_seconds(self) -> float:
        """Seconds of the calls that ran compiled, as their share of all."""
        return self.seconds * self.compiled_calls / self.calls if self.calls else 0.0

    @property
    def eager_texts(self) -> dict[str, int]:
        """Eager calls by the sentence that says why."""
        texts: Counter[str] = Counter()
        for reason, calls in self.eager.copy().items():
            texts[reason.text] += calls
        return dict(texts)

    @property
    def eager_codes(self) -> dict[str, int]:
        """Eager calls by the code of the reason, for programs."""
        codes: Counter[str] = Counter()
        for reason, calls in self.eager.copy().items():
            codes[reason.code] += calls
        return dict(codes)

    @property
    def reasons(self) -> frozenset[Reason]:
        """Why calls of the model, or of its blocks, ran eager."""
        return frozenset((*self.eager.copy(), *self.blocks.eager.copy()))

    @property
    def outcome(self) -> tuple[bool, frozenset[str]]:
        """Whether calls ran compiled, and the codes of why others will not next time either."""
        lasting = (reason for reason in self.reasons if not isinstance(reason, reasons.BlockRecorded))
        return self.compiled_calls > 0, frozenset(reason.code for reason in lasting)

    @property
    def has_compiled(self) -> bool:
        """Whether this run compiled a graph."""
        return (self.blocks if self.blocks.of else self).compile_s is not None

    @property
    def calls(self) -> int:
        """Compiled and eager ones."""
        return self.compiled_calls + sum(self.eager.values())

    def call_starts(self) -> None:
        self._first_start = self._first_start or time.perf_counter()
        if self.calls == 1:
            self._second_start = time.perf_counter()

    def restart(self) -> None:
        """Count from the beginning: the calls so far are done once more in another way."""
        self.compiled_calls, self.without_blocks, self._second_start = 0, 0, 0.0
        self.eager.clear()

    def finish(self) -> None:
        """To be called when the device is idle: closes the measurements of `seconds` and `step_ms`."""
        self.seconds = time.perf_counter() - self._first_start if self._first_start else 0.0
        if self.calls > 1 and self._second_start:
            self.step_ms = 1e3 * (time.perf_counter() - self._second_start) / (self.calls - 1)

    def text(self) -> str:
        """What the node shows."""
        if not self.compiled_calls:
            if self.eager or self.without_blocks:
                texts = [*(self.eager_texts or (reasons.BlocksNotCalled().text,))]
                if self.blocks.compile_s is not None:  # after the only call of the run
                    texts.append(f"{_kinds(self.blocks.obtained)} compiled in {self.blocks.compile_s:.0f} s")
                return "uncompiled: " + "; ".join(texts)
            return "stopped before the first step was done"
        if self.blocks.of:
            return self.blocks.text()
        if self.compile_s is not None:
            how = f"compiled in {self.compile_s:.0f} s"
        elif self.restore_s is not None:
            how = f"restored in {self.restore_s:.1f} s"
        else:
            how = "compiled"
        parts = [how, self.label]
        if self.speedup is not None:
            parts.append(faster(self.speedup))
        text = ", ".join(parts)
        if self.rule:
            text += f" ({self.rule})"
        if self.captured_bytes:
            text += f", CUDA graphs hold {memory.in_words(self.captured_bytes)}"
        if self.instead_of is not None:
            text += f"; compiled anew: {self.instead_of.text}"
        if self.eager:
            text = f"{self.compiled_calls} of {self.calls} calls {text}; uncompiled: " + "; ".join(self.eager_texts)
        return text

    def to_json(self) -> dict[str, Any]:
        return {
            "text": self.text(),
            "compile_s": self.blocks.compile_s if self.blocks.of else self.compile_s,
            "restore_s": self.blocks.restore_s if self.blocks.of else self.restore_s,
            "compiled_calls": self.compiled_calls,
            "eager_calls": self.eager_texts,
            "eager_codes": self.eager_codes,
            "seconds": self.seconds,
            "step_ms": self.step_ms,
            "call_ms": self.call_ms,
            "captured_bytes": self.captured_bytes,
            "rule": self.rule,
            "instead_of": None if self.instead_of is None else self.instead_of.code,
            "speedup": None if self.blocks.of else self.speedup,
            "blocks": self.blocks.to_json(),
        }


def _kinds(number: int) -> str:
    return f"{number} kind" if number == 1 else f"{number} kinds"


def _texts(eager: Mapping[Reason, int]) -> Counter[str]:
    texts: Counter[str] = Counter()
    for reason, calls in {**eager}.items():
        texts[reason.text] += calls
    return texts
