"""Times of calls in the demo: medians of several, since one alone may be anything on a machine that is busy."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headless import server, workflows

BINDING = 2  # first tokens of a text, by which its weights are bound


class Times:
    """By component, `eager` and `compiled`: ms of each step, or of each image of the VAE."""

    def __init__(self, components: Iterable[str]) -> None:
        self.samples: dict[str, dict[str, list[float]]] = {one: {} for one in components}

    def add(self, how: str, took: Mapping[str, list[float]], timed: Iterable[str]) -> None:
        """Take the times of the components `timed`."""
        for component in timed:
            if took.get(component):
                self.samples[component].setdefault(how, []).extend(round(one, 2) for one in took[component])

    def median(self, component: str, how: str) -> float | None:
        """The median of a component's times, ms; None: there is none."""
        samples = self.samples.get(component, {}).get(how)
        return round(statistics.median(samples), 2) if samples else None


def of_media(outcome: server.Outcome) -> dict[str, list[float]]:
    """Milliseconds of a video's decode and of a text's tokens, where the queue item had one.

    ComfyUI tells of progress ten times a second at most: what lies between two messages are several tokens.
    """
    decoded = outcome.seconds_of.get("decode")
    written = [(value, seconds) for value, _, seconds, node in outcome.ticks if node == "write" and value > BINDING]
    tokens = [
        1e3 * (after - before) / (value - earlier)
        for (earlier, before), (value, after) in itertools.pairwise(written)
        if value > earlier
    ]
    return {"video": [1e3 * decoded] if decoded else [], "text": tokens}


def steps(
    prompt: workflows.Prompt, outcome: server.Outcome, component_of: Callable[[Any], str]
) -> dict[str, list[float]]:
    """Milliseconds of each step after a sampler's first, by component: on a CPU, a call ends with its step.

    Args:
        component_of: tells a component by the link to its model.
    """
    took: dict[str, list[float]] = {}
    for node in workflows.nodes(prompt, "KSampler") + workflows.nodes(prompt, "KSamplerAdvanced"):
        ticks = [(value, seconds) for value, _, seconds, of in outcome.ticks if of == node]
        for (value, before), (following, after) in itertools.pairwise(ticks):
            if following == value + 1:
                took.setdefault(component_of(prompt[node]["inputs"]["model"]), []).append(1e3 * (after - before))
    return took
