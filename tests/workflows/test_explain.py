"""What `onegraph explain` says of each workflow of the table comes true when it runs, and `bake` leaves no compile."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from headless import workflows
from support.comfyui.commands import ask
from support.matrix.case import Case
from support.matrix.judge import Matrix, name_of
from support.matrix.table import CASES

from onegraph.host.jobs import trial_runs

pytestmark = pytest.mark.full

# Some of their calls run without a node, or in an earlier workflow of the row: explain is asked of the last one alone.
WHOLE_FOR_ITS_NODES = {"Patches inside the model: FreeU V2 on and off again", "Guiders: dual model, one compiled"}

Runs: TypeAlias = dict[str, list[dict[str, Any]]]


def verdicts(runs: Runs) -> dict[str, set[tuple[str, bool, tuple[str, ...]]]]:
    """By node: its parts, whether calls of these ran compiled, and why others did not."""
    return {
        node: {(one["part"], bool(one["compiled_calls"]), tuple(sorted(one["eager_codes"]))) for one in reports}
        for node, reports in runs.items()
    }


def queued_anew(prompt: workflows.Prompt) -> workflows.Prompt:
    """With seeds that no prompt had before, as the server runs nothing again that is as it was."""
    found = {name: {**node, "inputs": {**node["inputs"]}} for name, node in prompt.items()}
    for node in found.values():
        for name in ("seed", "noise_seed"):
            if isinstance(node["inputs"].get(name), int):
                node["inputs"][name] = random.randrange(2**32)
        if node["class_type"].startswith("OneGraph"):
            node["inputs"]["when_missing"] = "wait"
    return found


@pytest.mark.parametrize("case", [pytest.param(case, id=name_of(case)) for case in CASES])
def test_what_explain_says_comes_true(case: Case, matrix: Matrix, tmp_path: Path) -> None:
    prompt = matrix.prompt(case.flows[-1], "inductor")
    running = matrix.bench.server
    before = matrix.bench.status()["compiles"]
    explained, found = ask("explain", prompt, running, tmp_path)
    assert not found["error"], found
    said = verdicts(found["sizes"]["as it is"])
    baked, found = ask("bake", prompt, running, tmp_path)
    assert (baked, found["compiles"], found["error"]) == (explained, 0, "")
    outcome = matrix.bench.run(queued_anew(prompt))
    assert outcome.status == "success", outcome.error
    status = matrix.bench.status()
    assert status["compiles"] == before
    ours = trial_runs.nodes_of_ours(prompt)
    assert verdicts({node: runs for node, runs in status["all_runs"].items() if node in ours}) == said
    assert (explained == 0) is (case.promised == "all" or name_of(case) in WHOLE_FOR_ITS_NODES)
