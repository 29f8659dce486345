"""Adds up what came of the cases of a run: a table for people, JSON for programs, and the limits that must hold."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..scenes.workflow import Case, prompt_of
from .judge import FAILURES, Kind, Verdict

SILENT: tuple[Kind, ...] = ("discarded", "unsteady", "chaotic")  # cases without a verdict
LEAST_COMPILED = 0.4  # of all calls; ingredients that no graph serves take part in about half of the cases
LEAST_CASES = 20  # fewer are no measure of the share
MOST_DISCARDED = 0.25  # of all cases


def describe(case: Case, verdict: Verdict) -> str:
    """A case in a few lines, with its recipe and its workflow as API JSON."""
    lines = [f"{verdict.kind}: {verdict.message}", f"  settings: {case.settings}"]
    lines += [f"  ingredient: {ingredient}" for ingredient in case.ingredients] or ["  no ingredients"]
    lines += [f"  recipe: {case.to_json()}", f"  workflow: {json.dumps(prompt_of(case))}"]
    return "\n".join(lines)


@dataclass
class Tally:
    """All cases of a run."""

    seed: int = 0
    starts: int = 1
    verdicts: list[tuple[Case, Verdict]] = field(default_factory=list)
    findings: list[dict[str, Any]] = field(default_factory=list)

    def add(self, case: Case, verdict: Verdict) -> None:
        self.verdicts.append((case, verdict))

    def add_finding(self, case: Case, verdict: Verdict, shrunk: tuple[Case, Verdict] | None) -> str:
        """Note a failed case and give the text that a person reads."""
        small, what = shrunk or (case, verdict)
        before = next((done.name for done, _ in reversed(self.verdicts[:-1])), "")
        self.findings.append(
            {
                "case": case.name,
                "after": before,
                "kind": verdict.kind,
                "message": what.message,
                "shrinks": shrunk is not None,
                "recipe": json.loads(case.to_json()),
                "shrunk": json.loads(small.to_json()),
                "workflow": prompt_of(small),
            }
        )
        text = f"case {case.name}: {describe(case, verdict)}\n"
        if shrunk is None:
            return f"{text}Not shrunk: it fails only after other cases (the last: {before}), or many failed like it."
        return f"{text}shrunk to {describe(*shrunk)}"

    def count(self, *kinds: str) -> int:
        return sum(verdict.kind in kinds for _, verdict in self.verdicts)

    @property
    def compiled(self) -> int:
        return sum(verdict.compiled for _, verdict in self.verdicts)

    @property
    def eager(self) -> int:
        return sum(verdict.eager for _, verdict in self.verdicts)

    @property
    def share(self) -> float:
        """Compiled calls of all calls of UNet and VAE through OneGraph's nodes."""
        calls = self.compiled + self.eager
        return self.compiled / calls if calls else 0.0

    def problems(self) -> list[str]:
        """What must not be, over all cases."""
        found = []
        cases = len(self.verdicts)
        if self.share < LEAST_COMPILED:
            found.append(f"only {self.share:.0%} of {self.compiled + self.eager} calls were compiled")
        if cases and self.count(*SILENT) / cases > MOST_DISCARDED:
            found.append(f"{self.count(*SILENT)} of {cases} cases have no verdict")
        return found

    def to_json(self) -> dict[str, Any]:
        reasons: Counter[str] = Counter()
        used: Counter[str] = Counter()
        for case, verdict in self.verdicts:
            reasons += verdict.reasons
            used.update(i.kind for i in case.ingredients)
        off = [verdict.difference for _, verdict in self.verdicts if verdict.kind not in SILENT]
        return {
            "seed": self.seed,
            "cases": len(self.verdicts),
            "same": self.count("same"),
            **{kind: self.count(kind) for kind in SILENT},
            **{kind: self.count(kind) for kind in FAILURES},
            "flat_images": sum(verdict.flat for _, verdict in self.verdicts),
            "largest_difference_255": max(off, default=0),
            "compiled_calls": self.compiled,
            "eager_calls": self.eager,
            "share_compiled": round(self.share, 4),
            "server_starts": self.starts,
            "seconds": round(sum(verdict.seconds for _, verdict in self.verdicts), 1),
            "reasons": dict(reasons.most_common()),
            "ingredients": dict(used.most_common()),
            "discarded_errors": dict(Counter(v.message for _, v in self.verdicts if v.kind == "discarded")),
            "unsteady_cases": [
                {"message": v.message, "recipe": json.loads(c.to_json())}
                for c, v in self.verdicts
                if v.kind in ("unsteady", "chaotic")
            ],
            "findings": self.findings,
        }

    def table(self) -> list[str]:
        """The figures as aligned lines."""
        data = self.to_json()
        shown = ["cases", "same", *SILENT, *FAILURES, "flat_images", "largest_difference_255"]
        shown += ["compiled_calls", "eager_calls", "share_compiled", "server_starts", "seconds"]
        lines = [f"{name.replace('_', ' '):<24}{data[name]:>10}" for name in shown]
        lines += ["", "eager calls by reason:"] + [f"{n:>6}  {reason}" for reason, n in data["reasons"].items()]
        lines += ["", "cases discarded, by error:"]
        lines += [f"{n:>6}  {error[:150].strip()}" for error, n in data["discarded_errors"].items()]
        return lines

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_json(), indent=1) + "\n")
