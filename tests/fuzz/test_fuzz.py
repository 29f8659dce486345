"""Random workflows through the real server: each must give eager's image, with no error in the queue.

`pytest tests/fuzz --fuzz-cases 300 --fuzz-seed 7` runs others; a failure prints its recipe, and
`--fuzz-replay FILE` runs the recipes in a file again. Those in recipes.jsonl failed once and run first, in their order.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from headless import workflows
from support.fuzz import cases
from support.fuzz.judge import Verdict, judge, leaves_traces, shrink
from support.fuzz.report import LEAST_CASES, Tally
from support.scenes.bench import Bench
from support.scenes.judge import MOST_OF_255, apart
from support.scenes.kinds import KINDS
from support.scenes.workflow import Case, Ingredient, Settings, plain, prompt_of

# What is done around the model, to which these few steps hardly react, and other nodes for the same.
WEAK = {"RescaleCFG", "Mahiro", "CFGZeroStar", "Epsilon Scaling", "compiled_again", "img2img", "img2img_tiled",
        "guider_cfg", "sampler_custom", "block_hook", "picture"}  # fmt: skip
MOST_SHRUNK = 5  # failures of one kind; more of them are most likely the same


def test_a_random_workflow_gives_the_plain_image(
    case: Case, bench: Bench, tally: Tally, pytestconfig: pytest.Config
) -> None:
    verdict = judge(bench, case)
    tally.add(case, verdict)
    if verdict.failed:
        smallest = shrink(bench, case, verdict) if tally.count(verdict.kind) <= MOST_SHRUNK else None
        text = tally.add_finding(case, verdict, smallest)
        tally.write(pytestconfig.getoption("fuzz_report"))  # what was found outlives a run that is stopped
        pytest.fail(text, pytrace=False)


@pytest.mark.full
def test_every_ingredient_changes_the_image(bench: Bench) -> None:
    """One that changes nothing would look right through a graph that ignores it."""
    without = []
    for name, kind in KINDS.items():
        settings = Settings(family="flux" if kind.of_transformers else kind.family or "sd15", steps=5)
        reference = bench.run(plain(prompt_of(Case("reference", settings))))
        seen = 0
        for number in range(3):
            case = Case(name, settings, (Ingredient(name, kind.draw(Random(number))),))
            result = bench.run(plain(prompt_of(case)))
            if leaves_traces(case):
                bench.free()
            seen = max(seen, apart(reference, result) if result.status == "success" else 0)
            if seen > MOST_OF_255:
                break
        else:
            without.append(name)
    assert set(without) <= WEAK


def test_most_calls_of_all_cases_went_through_graphs(tally: Tally) -> None:
    if len(tally.verdicts) < LEAST_CASES:
        pytest.skip(f"{len(tally.verdicts)} cases are too few to judge the share of compiled calls")
    assert tally.problems() == []


MANY_THINGS = Case(
    "many things",
    Settings(family="sd15", width=96, batch=2, steps=3, positive_words=160, model_node=1, vae_node="decoder"),
    (
        Ingredient("lora", {"number": 0, "strength": 0.7}),
        Ingredient("combine", {"words": 3}),
        Ingredient("decode_tiled", {"tile_size": 64, "overlap": 0}),
    ),
)


def _another_seed(prompt: workflows.Prompt) -> workflows.Prompt:
    return workflows.with_inputs(prompt, "KSampler", seed=2)


def test_another_image_is_reported_and_shrunk(bench: Bench) -> None:
    """The run with the nodes gets another seed: what would be a wrong image."""
    tally = Tally()
    verdict = judge(bench, MANY_THINGS, _another_seed)
    tally.add(MANY_THINGS, verdict)
    assert verdict.kind == "off" and verdict.difference > 20
    shrunk = shrink(bench, MANY_THINGS, verdict, _another_seed)
    assert shrunk is not None
    smallest, what = shrunk
    assert smallest.ingredients == () and what.kind == "off"
    assert replace(smallest.settings, loader="plain", model_node=0, vae_node="none") == Settings()
    text = tally.add_finding(MANY_THINGS, verdict, shrunk)
    assert '"class_type": "KSampler"' in text
    assert tally.to_json()["off"] == 1
    assert tally.findings[0]["workflow"] == prompt_of(smallest)


def test_an_error_with_the_nodes_alone_is_reported(bench: Bench) -> None:
    """The wrong width of text fails in the model."""

    def broken(prompt: workflows.Prompt) -> workflows.Prompt:
        return workflows.with_inputs(prompt, "OneGraphTestTextEncode", width=64)

    verdict = judge(bench, Case("broken", Settings()), broken)
    assert (verdict.kind, verdict.failed) == ("error", True)


def test_an_error_of_both_runs_is_discarded(bench: Bench) -> None:
    """Deep shrink to nothing: ComfyUI refuses it with the same words both ways."""
    values = {"block_number": 2, "downscale_factor": 9.0, "start_percent": 0.0, "end_percent": 1.0}
    values |= {"downscale_after_skip": False, "downscale_method": "bicubic", "upscale_method": "bicubic"}
    case = Case("refused", Settings(width=64, height=64), (Ingredient("PatchModelAddDownscale", values),))
    verdict = judge(bench, case)
    assert (verdict.kind, verdict.failed) == ("discarded", False), verdict
    assert verdict.message


def test_a_run_that_is_all_eager_is_reported(bench: Bench) -> None:
    def off(prompt: workflows.Prompt) -> workflows.Prompt:
        return workflows.with_inputs(prompt, "OneGraphCompileModel", backend="off")

    case = Case("off", Settings(noise=3))
    verdict = judge(bench, case, off)
    assert (verdict.kind, verdict.message) == ("eager", "no call was seen")
    tally = Tally()
    for _ in range(LEAST_CASES):
        tally.add(case, Verdict("same", eager=3))
    assert tally.problems() != []


def test_a_case_is_the_same_in_every_process() -> None:
    drawn = [cases.draw(1, number) for number in range(200)]
    assert drawn == [cases.draw(1, number) for number in range(200)]
    for case in drawn:
        assert Case.from_json(case.to_json()) == case
        prompt = plain(prompt_of(case))
        assert not any(node["class_type"].startswith(("OneGraphCompile", "OneGraphLoad")) for node in prompt.values())
    assert sum(cases.served(case) for case in drawn) > 60
