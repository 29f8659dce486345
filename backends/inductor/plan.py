"""The plan of a graph that is made up of regions: which region runs when, with which weights, on which values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Step:
    """One region of the graph.

    Attributes:
        region_type: number of the compiled region that computes it.
        weights: the graph's weights that it reads; the compiled region calls them w0, w1, ...
        inputs: numbers of the values that it takes, the graph's own inputs first.
        outputs: numbers of the values that it gives.
    """

    region_type: int
    weights: tuple[str, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class RegionPlan:
    """How regions make up the graph.

    Values 0 to `input_count - 1` are the graph's inputs, `results` are what it returns.
    """

    input_count: int
    steps: tuple[Step, ...]
    results: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads; this is a format on disk."""
        steps = [
            {"kind": s.region_type, "weights": s.weights, "inputs": s.inputs, "outputs": s.outputs} for s in self.steps
        ]
        return {"given": self.input_count, "steps": steps, "result": self.results}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RegionPlan:
        """Read a plan. Raises KeyError or TypeError for what is none."""
        steps = (Step(s["kind"], *(tuple(s[name]) for name in ("weights", "inputs", "outputs"))) for s in data["steps"])
        return cls(data["given"], tuple(steps), tuple(data["result"]))

    def last_uses(self) -> tuple[tuple[int, ...], ...]:
        """Return for each step the values, other than the graph's inputs, that no later step takes.

        >>> first, second = Step(0, (), (0,), (1, 2)), Step(1, (), (0, 1), (3,))
        >>> RegionPlan(1, (first, second), (3,)).last_uses()
        ((2,), (1,))
        """
        last: dict[int, int] = {}
        for number, step in enumerate(self.steps):
            for value in (*step.inputs, *step.outputs):
                last[value] = number
        return tuple(
            tuple(v for v, at in last.items() if at == number and v >= self.input_count and v not in self.results)
            for number in range(len(self.steps))
        )
