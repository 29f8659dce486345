"""What happened in a run, as text and as numbers."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ..common import memory
from ..common.reasons import Reason
from .block_report import BlockReport


@dataclass
class RunReport:
    """One sampling run of one node.

    Attributes:
        label: the shapes of the graph in use, e.g. `any size 64-2048`.
        compile_s, restore_s: seconds, when this run compiled or restored a graph. `restore_s` is find, check, load,
            bind and the first call.
        speedup: how many times as fast as eager a call was at the graph's first use.
        step_ms: mean of all calls after the first, milliseconds.
        call_ms: the last call alone, milliseconds; None for tiles, for which nothing waits one by one.
        captured_bytes: that captured CUDA graphs hold on the device after the run.
        instead_of: why a graph that was there could not be loaded, so that this run compiled another.
        rule: of a VAE, the rule for changing resolutions that applied, and why.
        blocks: of a model whose blocks are compiled. A call of such a model is compiled if one of its blocks is.
    """

    label: str = ""
    speedup: float | None = None
    compile_s: float | None = None
    restore_s: float | None = None
    compiled_calls: int = 0
    eager: Counter[Reason] = field(default_factory=Counter)
    step_ms: float | None = None
    call_ms: float | None = None
    captured_bytes: int = 0
    instead_of: Reason | None = None
    rule: str = ""
    blocks: BlockReport = field(default_factory=BlockReport)
    _second_start: float = 0.0

    @property
    def eager_texts(self) -> dict[str, int]:
        """Eager calls by the sentence that says why."""
        found: Counter[str] = Counter()
        for reason, calls in self.eager.copy().items():
            found[reason.text] += calls
        return dict(found)

    @property
    def eager_codes(self) -> dict[str, int]:
        """Eager calls by the code of the reason, for programs."""
        found: Counter[str] = Counter()
        for reason, calls in self.eager.copy().items():
            found[reason.code] += calls
        return dict(found)

    @property
    def calls(self) -> int:
        """Compiled and eager ones."""
        return self.compiled_calls + sum(self.eager.values())

    def call_starts(self) -> None:
        if self.calls == 1:
            self._second_start = time.perf_counter()

    def restart(self) -> None:
        """Count from the beginning: the calls so far are done once more in another way."""
        self.compiled_calls, self._second_start = 0, 0.0
        self.eager.clear()

    def finish(self) -> None:
        """To be called when the device is idle: closes the measurement of `step_ms`."""
        if self.calls > 1 and self._second_start:
            self.step_ms = 1e3 * (time.perf_counter() - self._second_start) / (self.calls - 1)

    def text(self) -> str:
        """What the node shows."""
        if not self.compiled_calls:
            return "eager: " + "; ".join(self.eager_texts) if self.eager else "stopped before the first step was done"
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
            parts.append(f"{self.speedup:.1f}x eager")
        text = ", ".join(parts)
        if self.rule:
            text += f" ({self.rule})"
        if self.captured_bytes:
            text += f", CUDA graphs hold {memory.in_words(self.captured_bytes)}"
        if self.instead_of is not None:
            text += f"; compiled anew: {self.instead_of.text}"
        if self.eager:
            text = f"{self.compiled_calls} of {self.calls} calls {text}; eager: " + "; ".join(self.eager_texts)
        return text

    def to_json(self) -> dict[str, Any]:
        return {
            "text": self.text(),
            "compile_s": self.blocks.compile_s if self.blocks.of else self.compile_s,
            "restore_s": self.blocks.restore_s if self.blocks.of else self.restore_s,
            "compiled_calls": self.compiled_calls,
            "eager_calls": self.eager_texts,
            "eager_codes": self.eager_codes,
            "step_ms": self.step_ms,
            "call_ms": self.call_ms,
            "captured_bytes": self.captured_bytes,
            "rule": self.rule,
            "instead_of": None if self.instead_of is None else self.instead_of.code,
            "speedup": None if self.blocks.of else self.speedup,
            "blocks": self.blocks.to_json(),
        }
