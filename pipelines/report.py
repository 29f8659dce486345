"""What ran compiled in a pipeline and what did not: values, and the same as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..common.reasons import Reason
from ..runtime.calls.run_report import RunReport, faster


@dataclass(frozen=True)
class ComponentReport:
    """One component since its pipeline was compiled.

    Attributes:
        name: dotted, as in the pipeline.
        compiled_calls: served by a graph.
        eager: why other calls were not, with their numbers. A reason of no calls is why there never is a graph.
        label: sizes that the graph serves.
        compile_s, restore_s: seconds, where this process compiled or restored the graph.
        instead_of: why a graph that was there could not be loaded, so that this process compiled another.
        speedup: of a call against eager, measured at the graph's first use on this machine; of blocks, `blocks` has it.
        blocks: of a model whose blocks are compiled, what happened to them; empty for others. A call of such a model
            is compiled if one of its blocks is.
        blocks_text: the same as text.
    """

    name: str
    compiled_calls: int = 0
    eager: Mapping[Reason, int] = field(default_factory=dict)
    label: str = ""
    compile_s: float | None = None
    restore_s: float | None = None
    speedup: float | None = None
    instead_of: Reason | None = None
    blocks: Mapping[str, Any] = field(default_factory=dict)
    blocks_text: str = ""

    @classmethod
    def of(cls, name: str, report: RunReport, standing: Iterable[Reason]) -> ComponentReport:
        """Copy what was counted.

        Args:
            standing: reasons that hold whatever is called.
        """
        eager: dict[Reason, int] = dict(report.eager)
        for reason in standing:
            eager.setdefault(reason, 0)
        counted = report.blocks if report.blocks.of else report
        times = (counted.compile_s, counted.restore_s, None if report.blocks.of else report.speedup)
        blocks = report.blocks.to_json() or {}
        text = report.blocks.text() if blocks else ""
        return cls(name, report.compiled_calls, eager, report.label, *times, report.instead_of, blocks, text)

    @property
    def codes(self) -> dict[str, int]:
        """Eager calls by the code of the reason, for programs."""
        counts: dict[str, int] = {}
        for reason, calls in self.eager.items():
            counts[reason.code] = counts.get(reason.code, 0) + calls
        return counts

    @property
    def text(self) -> str:
        """One line without the name."""
        why = "; ".join(dict.fromkeys(reason.text for reason in self.eager))
        if not self.compiled_calls:
            return f"uncompiled: {why}" if why else "not called yet"
        parts = [f"{self.compiled_calls} calls compiled", self.blocks_text or self.label]
        if self.blocks:
            return ", ".join(parts) + self._eager_text(why)
        if self.compile_s is not None:
            parts.append(f"compiled in {self.compile_s:.0f} s")
        elif self.restore_s is not None:
            parts.append(f"restored in {self.restore_s:.2f} s")
        if self.speedup is not None:
            parts.append(faster(self.speedup))
        text = ", ".join(parts)
        if self.instead_of is not None:
            text += f"; compiled anew: {self.instead_of.text}"
        return text + self._eager_text(why)

    def _eager_text(self, why: str) -> str:
        return f"; {sum(self.eager.values())} calls uncompiled: {why}" if why else ""

    def to_json(self) -> dict[str, Any]:
        """Plain values for programs."""
        return {
            "compiled_calls": self.compiled_calls,
            "eager_calls": sum(self.eager.values()),
            "eager_codes": self.codes,
            "label": self.label,
            "compile_s": self.compile_s,
            "restore_s": self.restore_s,
            "speedup": self.speedup,
            "blocks": dict(self.blocks) or None,
            "text": self.text,
        }


@dataclass(frozen=True)
class PipeReport:
    """All components of a pipeline. `str()` of it is a line for each."""

    components: tuple[ComponentReport, ...]

    def __getitem__(self, name: str) -> ComponentReport:
        """One component by its dotted name. Raises KeyError."""
        for one in self.components:
            if one.name == name:
                return one
        raise KeyError(name)

    @property
    def compiled_calls(self) -> int:
        """Calls of all components that a graph served."""
        return sum(one.compiled_calls for one in self.components)

    def to_json(self) -> dict[str, Any]:
        """Plain values by dotted name."""
        return {one.name: one.to_json() for one in self.components}

    def __str__(self) -> str:
        return "\n".join(f"{one.name}: {one.text}" for one in self.components)
