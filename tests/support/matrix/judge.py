"""Run a case with one backend and say what is wrong."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from headless import server, workflows

from ..scenes.bench import Bench
from ..scenes.judge import MOST_OF_255, apart, broken, since
from ..scenes.workflow import Case as Flow
from ..scenes.workflow import plain, prompt_of
from .case import FREE, Case, without

LEAST_EFFECT = 20  # of 255
_NODES = ("OneGraphCompileModel", "OneGraphCompileVAE", "OneGraphCompileControlNet")


@dataclass(frozen=True)
class Row:
    """What came of a case with one backend: a row of build/faithfulness.json.

    Attributes:
        reasons: codes of the reasons for eager calls.
        max_abs_diff_255: between plain images and those with the nodes.
        effect_255: by how much what the case adds changes the plain image; None where it need not.
        compiled_promised: whether at least some calls must run compiled.
    """

    case: str
    backend: str
    compiled_calls: int
    eager_calls: int
    reasons: list[str]
    max_abs_diff_255: int
    effect_255: int | None
    compiled_promised: bool


def name_of(case: Case) -> str:
    """The case as rows name it."""
    return f"{case.group}: {case.name}"


def problems(case: Case, row: Row) -> Iterator[str]:
    """What is wrong with a row."""
    if row.max_abs_diff_255 > MOST_OF_255:
        yield f"the images are {row.max_abs_diff_255}/255 apart"
    if row.effect_255 is not None and row.effect_255 <= LEAST_EFFECT:
        yield f"what the case adds changes the image by {row.effect_255}/255 only"
    yield from broken(case.promised, case.codes, row.compiled_calls, row.eager_calls, row.reasons)


class Matrix:
    """Runs cases in one server, whose store has all graphs.

    Args:
        bench: the server. No case compiles: what has no graph runs eager.
    """

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._plain: dict[str, server.Outcome] = {}  # by prompt
        self.rows: list[Row] = []

    def run(self, case: Case, backend: str) -> Row:
        """Run a case; the row is kept."""
        before = self.bench.status()
        furthest = 0
        plain_images: list[server.Outcome] = []
        for run in case.runs:
            if run == FREE:
                self.bench.free()
                continue
            prompt = self.prompt(run, backend)
            plain_images.append(self._without(prompt))
            furthest = max(furthest, apart(plain_images[-1], self._outcome(prompt)))
        after = self.bench.status()
        compiled, eager = since(before, after)
        codes = [code for code, calls in after["codes"].items() if calls > before["codes"].get(code, 0)]
        row = Row(
            case=name_of(case),
            backend=backend,
            compiled_calls=compiled,
            eager_calls=eager,
            reasons=sorted(codes),
            max_abs_diff_255=furthest,
            effect_255=self._effect(case, plain_images) if case.changes else None,
            compiled_promised=case.promised != "none",
        )
        self.rows.append(row)
        return row

    def prompt(self, flow: Flow, backend: str) -> workflows.Prompt:
        """A workflow with a backend; what has no graph runs eager."""
        prompt = prompt_of(flow)
        for class_type in _NODES:
            if workflows.nodes(prompt, class_type):
                prompt = workflows.with_inputs(prompt, class_type, backend=backend, when_missing="eager")
        return prompt

    def _without(self, prompt: workflows.Prompt) -> server.Outcome:
        bare = plain(prompt)
        name = json.dumps(bare, sort_keys=True)
        if name not in self._plain:
            self._plain[name] = self._outcome(bare)
        return self._plain[name]

    def _outcome(self, prompt: workflows.Prompt) -> server.Outcome:
        outcome = self.bench.run(prompt)
        assert outcome.status == "success", outcome.error
        return outcome

    def _effect(self, case: Case, images: list[server.Outcome]) -> int:
        """The least that one run differs from the one before, or the only one from what is without the addition."""
        if len(images) == 1:
            base = self._without(self.prompt(without(case.flows[0]), "off"))
            return apart(base, images[0])
        return min(apart(a, b) for a, b in itertools.pairwise(images))

    def write(self, path: Path) -> None:
        """Write the rows."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([asdict(row) for row in self.rows], indent=1) + "\n")
