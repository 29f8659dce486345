"""`onegraph explain` and `bake` on a running server: what they say of a workflow comes true when it runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from headless import server, workflows
from support.comfyui.commands import ask

from .conftest import graph_folders, node_of, txt2img


def compiles(running: server.Server) -> int:
    count: int = running.status()["compiles"]
    return count


def test_a_workflow_whose_graphs_are_there(running: server.Server, tmp_path: Path) -> None:
    prompt = txt2img(seed=11, when_missing="wait")
    before = compiles(running)
    code, found = ask("explain", prompt, running, tmp_path)
    assert code == 0, found
    (report,) = found["sizes"]["as it is"][node_of(prompt)]
    assert report["compiled_calls"] and not report["eager_codes"]
    code, found = ask("bake", prompt, running, tmp_path, "--size", "128x128", "--size", "128x192")
    assert (code, found["compiles"], sorted(found["sizes"])) == (0, 0, ["128x128", "128x192"])
    outcome = running.run(prompt)
    assert (outcome.status, compiles(running)) == ("success", before)


def test_a_workflow_that_cannot_run(running: server.Server, tmp_path: Path) -> None:
    prompt = txt2img(seed=12, when_missing="wait")
    prompt = workflows.with_inputs(prompt, "CheckpointLoaderSimple", ckpt_name="none.safetensors")
    code, found = ask("bake", prompt, running, tmp_path)
    assert code == 1
    assert found["error"].startswith("ComfyUI refuses the workflow: ")


@pytest.mark.full
def test_explain_compiles_nothing_and_bake_what_a_run_needs(running: server.Server, base: Path, tmp_path: Path) -> None:
    prompt = txt2img(seed=13, width=192, height=128, shapes="exact", when_missing="background")
    before, graphs = compiles(running), graph_folders(base)
    code, found = ask("explain", prompt, running, tmp_path)
    assert code == 3
    (report,) = found["sizes"]["as it is"][node_of(prompt)]
    assert report["eager_codes"].keys() == {"no_graph"} and not report["compiled_calls"]
    assert (compiles(running), graph_folders(base)) == (before, graphs)
    code, found = ask("bake", prompt, running, tmp_path)
    assert (code, found["compiles"]) == (0, 1), found
    outcome = running.run(prompt)
    assert outcome.status == "success" and compiles(running) == before + 1
    assert len(graph_folders(base)) == len(graphs) + 1
    assert ask("explain", prompt, running, tmp_path)[0] == 0
