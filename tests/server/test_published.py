"""What the registry would publish, in the custom_nodes of a fresh ComfyUI: it starts, and all of it is offered."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import release
from headless import host, models, server, workflows
from support.comfyui import ui_workflow
from support.comfyui.shared_graphs import SharedGraphs

from .conftest import CHECKPOINT, node_of, txt2img

FOLDER = "onegraph"  # as installers name it: the name in pyproject.toml
NODES = {"OneGraphCompileModel", "OneGraphCompileVAE", "OneGraphCompileControlNet", "OneGraphLoadCheckpoint"}
BLUEPRINT = "Text to image, compiled"


@pytest.fixture(scope="module")
def installed(
    tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str], shared_graphs: SharedGraphs
) -> Iterator[server.Server]:
    base = server.prepare_base(tmp_path_factory.mktemp("published"), server.TESTING)
    with zipfile.ZipFile(release.pack(base / "pack.zip")) as archive:
        archive.extractall(base / "custom_nodes" / FOLDER)
    host.boot()
    checkpoint = models.write_checkpoint("tiny_sdxl", base / "models/checkpoints" / CHECKPOINT, seed=1)
    shared_graphs.give(Path(environment["ONEGRAPH_HOME"]), checkpoint, "sdxl", "decoder")
    with server.running(base, host.comfyui_path(), env=environment, packs=server.TESTING) as running:
        yield running


def raw(running: server.Server, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{running.port}{urllib.parse.quote(path)}", timeout=30) as answer:
        body: bytes = answer.read()
    return body


def test_it_starts_with_its_nodes(installed: server.Server) -> None:
    info = installed.get("/object_info")
    assert {info[node]["python_module"] for node in NODES} == {f"custom_nodes.{FOLDER}"}
    assert installed.status()["compiles"] == 0
    log = installed.log.read_text(errors="replace")
    assert "IMPORT FAILED" not in log and "Traceback" not in log


def test_no_script_of_the_page_is_given_twice(installed: server.Server) -> None:
    """Under two names, it would run twice."""
    scripts = [path for path in installed.get("/extensions") if "onegraph" in path.lower()]
    there = {path.relative_to(host.ROOT / "web").as_posix() for path in (host.ROOT / "web").rglob("*.js")}
    assert sorted(scripts) == sorted(f"/extensions/{FOLDER}/{name}" for name in there)


def test_it_runs_by_cached_graphs(installed: server.Server) -> None:
    prompt = txt2img(seed=7)
    outcome = installed.run(prompt)
    assert outcome.status == "success", outcome.error
    assert installed.status()["runs"][node_of(prompt)]["compiled_calls"] > 0
    assert installed.status()["compiles"] == 0


def test_help_pages_and_translations_are_served(installed: server.Server) -> None:
    given = installed.get("/i18n")
    for language in ("en", "ja", "zh"):
        assert {*given[language]["nodeDefs"]} >= NODES
    for node in NODES:
        for name in (f"{node}.md", f"{node}/ja.md", f"{node}/zh.md"):
            text = raw(installed, f"/extensions/{FOLDER}/docs/{name}").decode()
            assert text == (host.ROOT / "web" / "docs" / name).read_text(encoding="utf-8")


def test_templates_come_with_pictures(installed: server.Server) -> None:
    names = installed.get("/workflow_templates")[FOLDER]
    assert set(names) == {workflows.template(name).stem for name in workflows.names()}
    for name in names:
        assert json.loads(raw(installed, f"/api/workflow_templates/{FOLDER}/{name}.json"))["nodes"]
        assert raw(installed, f"/api/workflow_templates/{FOLDER}/{name}.jpg").startswith(b"\xff\xd8")


def test_the_blueprint_is_offered_and_its_content_runs_compiled(installed: server.Server) -> None:
    offered = installed.get("/global_subgraphs")
    (key,) = [key for key, entry in offered.items() if entry["info"]["node_pack"] == f"custom_nodes.{FOLDER}"]
    assert offered[key]["name"] == BLUEPRINT
    blueprint = json.loads(installed.get(f"/global_subgraphs/{key}")["data"])
    prompt: dict[str, Any] = ui_workflow.to_api(ui_workflow.content(blueprint), installed.get("/object_info"))
    (loader,), (decode,) = workflows.nodes(prompt, "OneGraphLoadCheckpoint"), workflows.nodes(prompt, "VAEDecode")
    assert prompt[loader]["inputs"]["when_missing"] == "wait"
    prompt = workflows.without_text_encoder(prompt)
    prompt = workflows.with_inputs(prompt, "OneGraphLoadCheckpoint", ckpt_name=CHECKPOINT)
    prompt = workflows.with_inputs(prompt, "EmptyLatentImage", width=128, height=128)
    prompt = workflows.with_inputs(prompt, "KSampler", steps=2)
    prompt["save"] = {"class_type": "SaveImage", "inputs": {"images": [decode, 0], "filename_prefix": "blueprint"}}
    outcome = installed.run(prompt)
    assert outcome.status == "success", outcome.error
    assert [image.shape for image in outcome.images] == [(128, 128, 3)]
    lines = outcome.text(loader).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["model", "decoder"]
    assert all("any size" in line and "uncompiled:" not in line for line in lines), lines
    assert installed.status()["compiles"] == 0
