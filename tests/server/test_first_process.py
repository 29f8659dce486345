"""The first process: one compile, then every size, prompt, cfg, batch, LoRA and checkpoint through its graph."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from headless import server, workflows

from .conftest import LORA, SECOND, difference, environment_of, needs_oneflow, node_of, txt2img, write_base

LONG = "lighthouse cliff dusk painting " * 30  # 120 words: 154 tokens
LONGER = "lighthouse cliff dusk painting " * 45  # 180 words: 231 tokens


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return environment_of(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base directory without a graph."""
    return write_base(tmp_path_factory.mktemp("comfyui"))


# OneFlow's graphs on a server are in test_restart and in tests/workflows.
SECOND_IN_FULL = pytest.mark.parametrize(
    "backend", ["inductor", pytest.param("oneflow", marks=[needs_oneflow, pytest.mark.full])]
)


def both(running: server.Server, prompt: workflows.Prompt) -> tuple[server.Outcome, server.Outcome]:
    """The workflow without OneGraph, and as it is."""
    eager = running.run(workflows.without_onegraph(prompt))
    result = running.run(prompt)
    assert (eager.status, result.status) == ("success", "success"), (eager.error, result.error)
    return eager, result


def test_the_pack_is_loaded_and_documented(running: server.Server) -> None:
    info = running.get("/object_info/OneGraphCompileModel")["OneGraphCompileModel"]
    assert info["display_name"] == "Compile Model (OneGraph)"
    assert list(info["input"]["required"]) == ["model", "backend", "shapes", "when_missing"]
    choices = {name: spec[1]["options"] for name, spec in info["input"]["required"].items() if name != "model"}
    assert choices == {
        "backend": ["auto", "inductor", "oneflow", "off"],
        "shapes": ["any size", "exact"],
        "when_missing": ["wait", "background", "eager"],
    }
    templates = running.get("/workflow_templates")
    assert set(templates["ComfyUI-OneGraph"]) == {workflows.template(name).stem for name in workflows.names()}


def test_without_a_graph_eager_says_why(running: server.Server) -> None:
    prompt = txt2img(when_missing="eager")
    eager, result = both(running, prompt)
    assert difference(eager, result) == 0
    assert result.text(node_of(prompt)) == "uncompiled: no graph is cached for this model yet"


PROGRESS = re.compile(
    r"(?P<share>\d+)%, (about (?P<left>\d+) s left|almost done|longer than expected) \((?P<stage>\w+)"
)


def test_the_first_step_compiles_with_progress(running: server.Server) -> None:
    prompt = txt2img()
    eager, result = both(running, prompt)
    texts = [text for node, text in result.texts if node == node_of(prompt)]
    assert texts[0] == "ready: any size, inductor; starts with the first sampling step"
    shown = [m for m in map(PROGRESS.search, texts) if m is not None]
    assert {m["stage"] for m in shown} >= {"starting", "capturing", "compiling"}
    shares, left = [int(m["share"]) for m in shown], [int(m["left"]) for m in shown if m["left"]]
    assert shares == sorted(shares)
    assert left == sorted(left, reverse=True)
    assert texts[-1].startswith("compiled in ")
    assert result.progress > 20
    assert running.status()["compiles"] == 1
    assert difference(eager, result) <= 2


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"width": 64, "height": 192},
        {"width": 200, "height": 136},
        {"text": LONG},
        {"text": LONGER},
        {"cfg": 1.0},
        {"batch": 2},
        {"batch": 3},
        {"batch": 2, "cfg": 1.0, "text": LONG, "width": 192},
    ],
    ids=str,
)
def test_one_graph_serves_sizes_prompts_and_batches(change: dict, running: server.Server) -> None:
    prompt = txt2img(seed=3, **change)
    eager, result = both(running, prompt)
    assert difference(eager, result) <= 2
    assert result.text(node_of(prompt)).startswith("compiled, any size 64-2048")
    assert len(result.images) == change.get("batch", 1)
    status = running.status()
    assert status["compiles"] == 1  # at most two are promised


@needs_oneflow
@pytest.mark.full
def test_oneflow_rebuilds_the_next_size_from_the_first(running: server.Server) -> None:
    changes: list[dict] = [{}, {"width": 64, "height": 192}, {"text": LONG, "cfg": 1.0}]
    for number, change in enumerate(changes):
        prompt = txt2img(seed=3, backend="oneflow", **change)
        before = running.status()["compiles"]
        eager, result = both(running, prompt)
        texts = [text for node, text in result.texts if node == node_of(prompt)]
        assert texts[0] == "ready: any size, oneflow; starts with the first sampling step"
        assert any("capturing" in text for text in texts) == (number == 0)
        assert texts[-1].startswith("compiled in ")
        assert texts[-1].endswith("(oneflow has no graphs for any size, so each size has its own)")
        assert difference(eager, result) <= 2
        assert running.status()["compiles"] - before == 1


def test_another_seed_is_another_image(running: server.Server) -> None:
    assert difference(running.run(txt2img(seed=11)), running.run(txt2img(seed=12))) > 50


@SECOND_IN_FULL
def test_lora_on_weaker_and_removed(running: server.Server, backend: str) -> None:
    running.run(txt2img(seed=20, backend=backend))
    results, before = [], running.status()
    for strength in (1.0, 0.5, None):
        prompt = txt2img(seed=21, backend=backend)
        eager, result = both(running, prompt if strength is None else workflows.with_lora(prompt, LORA, strength))
        assert difference(eager, result) <= 2
        results.append(result)
    assert difference(results[0], results[1]) > 10
    assert difference(results[1], results[2]) > 10
    after = running.status()
    assert after["compiles"] == before["compiles"]
    assert after["compiled_calls"] - before["compiled_calls"] == 3 * 3


@SECOND_IN_FULL
def test_a_second_checkpoint_of_the_architecture(running: server.Server, backend: str) -> None:
    before = running.status()["compiles"]
    eager, result = both(running, txt2img(seed=22, checkpoint=SECOND, backend=backend))
    assert difference(eager, result) <= 2
    assert difference(result, running.run(txt2img(seed=22, backend=backend))) > 50
    assert running.status()["compiles"] == before


def test_free_u_runs_eager_and_is_named(running: server.Server) -> None:
    prompt = txt2img(seed=23)
    loader = workflows.nodes(prompt, "CheckpointLoaderSimple")[0]
    node = node_of(prompt)
    prompt["freeu"] = {
        "class_type": "FreeU_V2",
        "inputs": {"model": [loader, 0], "b1": 1.3, "b2": 1.4, "s1": 0.9, "s2": 0.2},
    }
    prompt[node]["inputs"]["model"] = ["freeu", 0]
    eager, result = both(running, prompt)
    assert difference(eager, result) == 0
    assert result.text(node) == "uncompiled: FreeU_V2 patches this model (output_block_patch)"
    assert "FreeU_V2 patches this model" in running.log.read_text()


@SECOND_IN_FULL
def test_unloading_models_between_two_runs(running: server.Server, backend: str) -> None:
    before = running.status()["compiles"]
    first = running.run(txt2img(seed=24, backend=backend))
    running.post("/free", {"unload_models": True, "free_memory": True})
    assert difference(first, running.run(txt2img(seed=24, text="a lighthouse", backend=backend))) == 0
    assert running.status()["compiles"] == before
