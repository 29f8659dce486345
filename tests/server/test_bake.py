"""`onegraph explain` and `bake` on a running server: what they say of a workflow comes true when it runs."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import comfyui_workflow_templates_core
import pytest
from headless import host, models, server, workflows
from support.comfyui.commands import ask
from support.comfyui.prompts import computed

from onegraph.host.jobs import editor_workflow, inserting
from onegraph.host.jobs.trial_runs import CannotTellError

from .conftest import CHECKPOINT, LORA, SECOND, graph_folders, node_of, txt2img

FLOAT8 = "tiny_sdxl_float8.safetensors"
PLAIN = {"INT": (int,), "FLOAT": (int, float), "STRING": (str,), "BOOLEAN": (bool,)}

SAVER = """
import pathlib
import folder_paths

class UnknownSaver:
    TYPES = {"images": ("IMAGE",), "samples": ("LATENT",), "name": ("STRING",)}
    INPUT_TYPES = classmethod(lambda cls: {"required": cls.TYPES})
    RETURN_TYPES = ("STRING",)
    FUNCTION = "save"
    OUTPUT_NODE = True

    def save(self, images, samples, name):
        pathlib.Path(folder_paths.get_output_directory(), name).write_text("saved")
        return (name,)

NODE_CLASS_MAPPINGS = {"UnknownSaver": UnknownSaver}
"""


@pytest.fixture(scope="module")
def running(
    base: Path, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[server.Server]:
    """A server that has a pack with a node which saves."""
    pack = tmp_path_factory.mktemp("pack")
    (pack / "__init__.py").write_text(SAVER)
    with server.running(base, host.comfyui_path(), env=environment, packs={"unknown_saver": pack}) as running:
        yield running


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


def templates() -> dict[str, Any]:
    """ComfyUI's own templates, by name."""
    made: dict[str, Any] = {}
    for folder in Path(comfyui_workflow_templates_core.__file__).parents[1].glob("comfyui_workflow_templates*"):
        for path in folder.glob("templates/*.json"):
            data = json.loads(path.read_text(encoding="utf-8"))
            if editor_workflow.is_editors(data):
                made[path.stem] = data
    return made


def test_a_workflow_of_the_editor_is_asked_for_with_nodes_of_the_pack(running: server.Server, tmp_path: Path) -> None:
    text = json.dumps(templates()["default"]).replace("v1-5-pruned-emaonly-fp16.safetensors", CHECKPOINT)
    default = json.loads(text.replace("[512, 512, 1]", "[128, 128, 1]"))
    for node in default["nodes"]:
        if node["type"] == "CLIPTextEncode":  # the checkpoint has no text encoder
            node |= {"type": "OneGraphTestTextEncode", "inputs": [], "widgets_values": ["a lighthouse", 2048]}
    code, found = ask("explain", default, running, tmp_path)
    assert (code, found["error"]) == (0, ""), found
    assert found["added"] == "with Compile Model (OneGraph) after node 4 (CheckpointLoaderSimple)"
    (report,) = found["sizes"]["as it is"]["4 compiled"]
    assert report["compiled_calls"] and not report["eager_codes"]
    assert ask("bake", default, running, tmp_path)[1]["compiles"] == 0
    code, found = ask("explain", templates()["default"], running, tmp_path)
    assert code == 3
    assert "node 4 (CheckpointLoaderSimple) needs v1-5-pruned-emaonly-fp16.safetensors" in found["error"]
    (model,) = found["models"]
    assert (model["file"], model["verdict"], model["family"]) == (
        "v1-5-pruned-emaonly-fp16.safetensors",
        "unknown",
        "",
    )


def with_lora(prompt: workflows.Prompt) -> workflows.Prompt:
    """Put a LoRA between the loader and Compile Model."""
    (loader,) = workflows.nodes(prompt, "CheckpointLoaderSimple")
    lora = {"model": [loader, 0], "lora_name": LORA, "strength_model": 1.0}
    prompt = {**prompt, "lora": {"class_type": "LoraLoaderModelOnly", "inputs": lora}}
    return workflows.with_inputs(prompt, "OneGraphCompileModel", model=["lora", 0])


def explained(prompt: workflows.Prompt, running: server.Server, folder: Path) -> tuple[int, dict[str, Any]]:
    """What `explain --no-run` tells of the one model of a workflow, without any node having run."""
    before = running.status()["all_runs"]
    code, found = ask("explain", prompt, running, folder, "--no-run")
    assert (found["error"], found["sizes"], running.status()["all_runs"]) == ("", {}, before)
    (model,) = found["models"]
    return code, model


def test_models_are_told_without_a_run(running: server.Server, base: Path, tmp_path: Path) -> None:
    """As a run finds: graphs are of an architecture, whatever the checkpoint and the LoRA."""
    for checkpoint in (CHECKPOINT, SECOND):
        code, model = explained(with_lora(txt2img(checkpoint=checkpoint, when_missing="wait")), running, tmp_path)
        told = {name: model[name] for name in ("file", "family", "formats", "loras", "verdict")}
        assert told == {
            "file": checkpoint, "family": "OneGraphTinySDXL", "formats": ["float16"], "loras": [LORA], "verdict": "hit"
        }  # fmt: skip
        assert (code, model["graphs"] >= 1) == (0, True)
    code, model = explained(txt2img(shapes="exact"), running, tmp_path)
    assert (code, model["verdict"], model["family"]) == (3, "unknown", "OneGraphTinySDXL")
    code, model = explained(txt2img(backend="off"), running, tmp_path)
    assert (code, model["verdict"]) == (3, "refused")
    prompt = txt2img(when_missing="eager", checkpoint=FLOAT8)
    models.write_float8(base / "models/checkpoints" / CHECKPOINT, base / "models/checkpoints" / FLOAT8)
    code, model = explained(prompt, running, tmp_path)
    assert model["formats"][:1] == ["float16"] and "float8_e4m3fn" in model["formats"]
    run_code, _ = ask("explain", prompt, running, tmp_path)
    assert code == run_code


def test_files_that_are_no_models_are_told(running: server.Server, base: Path, tmp_path: Path) -> None:
    folder = base / "models/checkpoints"
    header = (folder / CHECKPOINT).read_bytes()
    (folder / "cut.safetensors").write_bytes(header[:1000])
    (folder / "none.safetensors").write_bytes(b"")
    (folder / "old.ckpt").write_bytes(b"pickled")
    architecture = b"general.architecture"
    kind = (8).to_bytes(4, "little")
    gguf = b"GGUF" + bytes(20) + len(architecture).to_bytes(8, "little") + architecture + kind
    (folder / "flux.gguf").write_bytes(gguf + (4).to_bytes(8, "little") + b"flux")
    for name, text in {
        "cut.safetensors": "is damaged",
        "none.safetensors": "is damaged",
        "old.ckpt": "is not a safetensors file",
        "flux.gguf": "GGUF",
    }.items():
        code, model = explained(txt2img(checkpoint=name), running, tmp_path)
        assert (code, model["verdict"], text in model["text"]) == (3, "unknown", True), model
        assert model["family"] == ("flux" if name == "flux.gguf" else "")
        (folder / name).unlink()


def test_every_template_is_explained_and_gets_its_node(running: server.Server) -> None:
    """By the routes that the page asks; what cannot be read is told by a reason."""
    codes: Counter[str] = Counter()
    unnamed = set[str]()  # loaders that name no file of a diffusion model
    for name, data in templates().items():
        status, found = post(running, "explain", {"prompt": data})
        codes[found.get("code", "")] += 1
        assert status == (400 if "code" in found else 200), (name, found)
        if status == 200:
            assert found["models"], name
            assert all(model["text"] for model in found["models"]), name
            unnamed |= {model["type"] for model in found["models"] if not model["file"]}
        status, found = post(running, "insert", {"workflow": data})
        made, after = inserting.inserted(data, name)
        assert (status, found.get("workflow"), found.get("after")) == (200, made, after) if after else status == 400
    assert codes.keys() == {"", "workflow_not_here"}
    assert codes[""] >= 200, codes
    assert unnamed == set()


def test_a_workflow_of_the_editor_is_baked_by_the_route(running: server.Server) -> None:
    status, found = post(running, "bake", {"prompt": templates()["default"]})
    assert status == 200
    while (now := running.get(f"/onegraph/bake/{found['job']}"))["state"] in ("waiting", "running"):
        time.sleep(0.1)
    assert (now["of"], now["state"]) == (1, "failed")
    assert "v1-5-pruned-emaonly-fp16.safetensors" in now["text"]
    assert post(running, "bake", {"prompt": {"nodes": []}})[0] == 400


def post(running: server.Server, route: str, data: Any) -> tuple[int, Any]:
    """The status and the JSON of a route."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{running.port}/onegraph/{route}",
        json.dumps(data).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_every_template_that_runs_here_is_read(running: server.Server) -> None:
    """Each node that it needs, with all that this node requires, as the server names and types it."""
    types = running.get("/object_info")
    read = sampled = 0
    for name, data in templates().items():
        with contextlib.suppress(CannotTellError):  # partners' nodes, which ask the network; nothing that is shown
            prompt = editor_workflow.prompt_of(data, types, name)
            read += 1
            with_nodes, loaders = inserting.with_compile_nodes(prompt, types)
            sampled += bool(loaders)
            with_inserted, after = inserting.inserted(data, name)
            assert bool(after) is bool(loaders), name
            assert computed(editor_workflow.prompt_of(with_inserted, types, name)) == computed(with_nodes), name
            for key, node in prompt.items():
                kind = types[node["class_type"]]
                for value in node["inputs"].values():
                    if isinstance(value, list) and len(value) == 2 and value[0] in prompt:
                        assert value[1] < len(types[prompt[value[0]]["class_type"]]["output"]), (name, key)
                for wanted, described in (kind["input"].get("required") or {}).items():
                    value, plain = node["inputs"].get(wanted), PLAIN.get(str(described[0]))
                    known = wanted in node["inputs"] or kind["output_node"] or str(described[0]).startswith("COMFY_")
                    assert known, (name, key, node["class_type"], wanted)
                    assert plain is None or isinstance(value, (*plain, list)), (name, key, wanted, value)
    assert (read, sampled) >= (220, 200), (read, sampled)


def saving(prompt: workflows.Prompt) -> workflows.Prompt:
    """Have a workflow save what it makes in many ways, and show what one of them returns."""
    (sampler,), (decoder,) = workflows.nodes(prompt, "KSampler"), workflows.nodes(prompt, "VAEDecode")
    samples, images = [sampler, 0], [decoder, 0]
    model, clip, vae = ([workflows.nodes(prompt, "CheckpointLoaderSimple")[0], slot] for slot in range(3))
    name = {"filename_prefix": "saved"}
    added = {
        "webp": (
            "SaveAnimatedWEBP",
            {"images": images, "fps": 6, "lossless": True, "quality": 80, "method": "default"},
        ),
        "latent": ("SaveLatent", {"samples": samples}),
        "video": ("CreateVideo", {"images": images, "fps": 6}),
        "save video": ("SaveVideo", {"video": ["video", 0], "format": "auto", "codec": "auto"}),
        "checkpoint": ("CheckpointSave", {"model": model, "clip": clip, "vae": vae}),
        "unknown": ("UnknownSaver", {"images": images, "samples": samples, "name": "saved.txt"}),
        "shown": ("PreviewAny", {"source": ["unknown", 0]}),
    }
    nodes = {key: {"class_type": kind, "inputs": {**name, **given}} for key, (kind, given) in added.items()}
    return {**prompt, **nodes}


def files(base: Path) -> list[Path]:
    return [path for folder in ("output", "temp") for path in (base / folder).rglob("*") if path.is_file()]


@pytest.mark.parametrize("by", ["command", "page"])
def test_nothing_is_saved(by: str, running: server.Server, base: Path, tmp_path: Path) -> None:
    prompt = saving(txt2img(seed=14, when_missing="background"))
    before = files(base)
    if by == "command":
        code, found = ask("bake", prompt, running, tmp_path)
        assert code == 0, found
    else:
        job = running.post("/onegraph/bake", {"prompt": prompt})["job"]
        while (now := running.get(f"/onegraph/bake/{job}"))["state"] in ("waiting", "running"):
            time.sleep(0.1)
        assert now["state"] == "done", now
    report = running.status()["all_runs"][node_of(prompt)][-1]
    assert report["compiled_calls"] == 2 and not report["eager_codes"]
    assert files(base) == before


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
