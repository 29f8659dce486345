"""OneDiff's nodes: ids, inputs, defaults and outputs are OneDiff's, and each does what its text says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from headless import host
from support.comfyui import ui_workflow
from support.comfyui.shared_graphs import SharedGraphs

from onegraph import nodes as pack
from onegraph.host.show import progress
from onegraph.nodes import onediff
from onegraph.nodes.onediff_actions import Booster
from onegraph.runtime.counters import Counters
from onegraph.runtime.graphs.faithfulness import relative_l2

SAME = 1e-4  # as in test_unet.py
_CACHE = {"cache_interval": 3, "cache_layer_id": 0, "cache_block_id": 1, "start_step": 0, "end_step": 1000}
# Of each node: its sockets, its widgets in their order with OneDiff's defaults, and its outputs.
FACTS: dict[str, tuple[list[str], dict[str, Any], list[str]]] = {
    "ModelSpeedup": (["model", "custom_booster"], {"inplace": True}, ["MODEL"]),
    "VaeSpeedup": (["vae", "custom_booster"], {"inplace": True}, ["VAE"]),
    "ControlnetSpeedup": (["control_net", "custom_booster"], {"inplace": True}, ["CONTROL_NET"]),
    "OneDiffCheckpointLoaderSimple": (
        ["custom_booster"], {"ckpt_name": None, "vae_speedup": "disable"}, ["MODEL", "CLIP", "VAE"],
    ),
    "OneDiffControlNetLoader": (["custom_booster"], {"control_net_name": None}, ["CONTROL_NET"]),
    "OneDiffModelBooster": (
        ["quantization_booster", "deepcache_booster", "torchcompile_booster"], {}, ["CUSTOM_BOOSTER"],
    ),
    "OneDiffOnlineQuantizationBooster": (
        [],
        {
            "quantized_conv_percentage": 100,
            "quantized_linear_percentage": 100,
            "conv_compute_density_threshold": 100,
            "linear_compute_density_threshold": 300,
        },
        ["QuantizationBooster"],
    ),
    "OneFlowDeepcacheBooster": ([], _CACHE, ["DeepCacheBooster"]),
    "OneDiffNexfortBooster": (
        [],
        {"fullgraph": False, "dynamic": True, "mode": "max-optimize:max-autotune:low-precision", "docs_link": ""},
        ["TorchCompileBooster"],
    ),
    "OneDiffTorchCompileBooster": (
        [],
        {
            "fullgraph": False, "dynamic": False, "backend": "inductor", "mode": "default", "disable": False,
            "docs_link": "",
        },
        ["TorchCompileBooster"],
    ),
    "ModuleDeepCacheSpeedup": (["model"], {"static_mode": "enable", **_CACHE}, ["MODEL"]),
    "OneDiffDeepCacheCheckpointLoaderSimple": (
        [], {"ckpt_name": None, "vae_speedup": "disable", "static_mode": "enable", **_CACHE}, ["MODEL", "CLIP", "VAE"],
    ),
    "SVDSpeedup": (["model", "custom_booster"], {"inplace": False, "cache_name": "svd"}, ["MODEL"]),
    "BatchSizePatcher": (["model", "latent_image"], {}, ["MODEL"]),
    "ResolutionSpeedupChecker": (["samples"], {}, ["LATENT"]),
    "ModelGraphLoader": (["model"], {"graph": ""}, ["MODEL"]),
    "ModelGraphSaver": (["samples", "model"], {"filename_prefix": "unet"}, []),
    "VaeGraphLoader": (["vae"], {"graph": ""}, ["VAE"]),
    "VaeGraphSaver": (["images", "vae"], {"filename_prefix": "vae"}, []),
}  # fmt: skip
BY_ID = {node.row.node_id: node for node in onediff.nodes()}


def info(node_id: str) -> dict[str, Any]:
    """What /object_info says of a node."""
    found: dict[str, Any] = json.loads(json.dumps(BY_ID[node_id].GET_NODE_INFO_V1()))
    return found


@pytest.fixture
def run() -> Callable[..., tuple[Any, ...]]:
    """Execute a node, with the defaults of the widgets that are not given, as node 7."""

    def execute(node_id: str, **inputs: Any) -> tuple[Any, ...]:
        from comfy_api.latest import io

        progress.texts.pop("7", None)
        clone = BY_ID[node_id].PREPARE_CLASS_CLONE(None)
        clone.hidden = io.HiddenHolder("7", None, None, None, None, None)
        values = {name: ui_workflow.default(options) for name, options in ui_workflow.widgets(info(node_id))}
        result: tuple[Any, ...] = tuple(clone.EXECUTE_NORMALIZED(**{**values, **inputs}).args)
        return result

    return execute


def test_the_nodes_are_those_of_the_table() -> None:
    assert sorted(BY_ID) == sorted(FACTS)


@pytest.mark.parametrize("node_id", sorted(FACTS))
def test_a_node_has_the_interface_of_onediffs(node_id: str) -> None:
    sockets, widgets, outputs = FACTS[node_id]
    found = info(node_id)
    assert found["name"] == node_id
    assert found["deprecated"] and found["category"] == "model/onegraph/onediff"
    assert found["output"] == outputs
    assert found["output_node"] == (outputs == [])
    values = {name: ui_workflow.default(options) for name, options in ui_workflow.widgets(found)}
    assert [*values] == [*widgets]
    assert {name: value for name, value in values.items() if widgets[name] is not None} == {
        name: value for name, value in widgets.items() if value is not None
    }
    names = [name for section in ("required", "optional") for name in found["input_order"].get(section, ())]
    assert sorted(names) == sorted([*sockets, *widgets])


def test_an_id_of_another_pack_is_left_alone(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    import nodes

    monkeypatch.setitem(nodes.NODE_CLASS_MAPPINGS, "BatchSizePatcher", object)
    with caplog.at_level("INFO", "onegraph.nodes"):
        listed = [node.GET_SCHEMA().node_id for node in asyncio.run(pack.OneGraphExtension().get_node_list())]
    assert sorted(name for name in listed if not name.startswith("OneGraph")) == sorted({*FACTS} - {"BatchSizePatcher"})
    assert [record.getMessage() for record in caplog.records] == [
        "OneGraph: another custom node pack has a node BatchSizePatcher, which stays as it is"
    ]


def test_a_node_is_named_once_in_the_log(run: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    onediff._tell.cache_clear()
    with caplog.at_level("WARNING", "onegraph.nodes"):
        for _ in range(2):
            run("ModelGraphLoader", model="a model")
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage().startswith("OneGraph: Model Graph Loader is a node of OneDiff's")


@pytest.mark.parametrize(
    ("node_id", "name", "text"),
    [
        ("ModelGraphLoader", "model", "no graph file is read or written here"),
        ("VaeGraphLoader", "vae", "no graph file is read or written here"),
        ("BatchSizePatcher", "model", "nothing to do here: graphs are not bound to one batch size"),
        ("ResolutionSpeedupChecker", "samples", "nothing to do here: graphs are not bound to one resolution"),
    ],
)
def test_a_node_without_work_hands_its_input_on(
    node_id: str, name: str, text: str, run: Callable[..., Any], tmp_path: Path
) -> None:
    given = object()
    assert run(node_id, **{name: given}, graph=str(tmp_path / "planted.graph"))[0] is given
    assert progress.texts["7"].startswith(text)


@pytest.mark.parametrize("node_id", ["ModelGraphSaver", "VaeGraphSaver"])
def test_a_saver_writes_nothing(
    node_id: str, run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(node_id, filename_prefix=str(tmp_path / "saved")) == ()
    assert [*tmp_path.iterdir()] == []
    assert progress.texts["7"].startswith("no graph file is read or written here")


def test_boosters_are_merged_with_what_they_lost(run: Callable[..., Any]) -> None:
    (quantization,) = run("OneDiffOnlineQuantizationBooster")
    assert progress.texts["7"].startswith("no weights are quantized")
    (deep_cache,) = run("OneFlowDeepcacheBooster")
    (off,) = run("OneDiffTorchCompileBooster", disable=True)
    (merged,) = run("OneDiffModelBooster", quantization_booster=quantization, deepcache_booster=deep_cache)
    assert (merged.backend, [reason.code for reason in merged.lost]) == (
        "auto",
        ["nothing_quantized", "no_step_skipped"],
    )
    (merged,) = run("OneDiffModelBooster", torchcompile_booster=off)
    assert (merged.backend, [reason.code for reason in merged.lost]) == ("off", ["own_compiler_options"])
    assert run("OneDiffModelBooster") == (Booster(),)


def test_model_speedup_compiles(run: Callable[..., Any], compiled_once: None, model: Any, counters: Counters) -> None:
    (quantization,) = run("OneDiffOnlineQuantizationBooster")
    (booster,) = run("OneDiffModelBooster", quantization_booster=quantization)
    (compiled,) = run("ModelSpeedup", model=model, custom_booster=booster)
    ready, lost = progress.texts["7"].splitlines()
    assert ready.startswith("ready: any size") and lost.startswith("no weights are quantized")
    assert relative_l2(host.sample(compiled), host.sample(model)) < SAME
    assert (counters.compiled_calls, counters.eager_calls, counters.compiles) == (2, 0, 0)


def test_a_disabled_booster_compiles_nothing(run: Callable[..., Any], model: Any, counters: Counters) -> None:
    (disabled,) = run("OneDiffTorchCompileBooster", disable=True)
    (booster,) = run("OneDiffModelBooster", torchcompile_booster=disabled)
    (eager,) = run("ModelSpeedup", model=model, custom_booster=booster)
    host.sample(eager)
    assert counters.compiled_calls == counters.compiles == 0
    assert progress.texts["7"].startswith("off: the model runs uncompiled")


def test_deepcache_is_computed_in_full(
    run: Callable[..., Any], compiled_once: None, model: Any, counters: Counters
) -> None:
    (compiled,) = run("ModuleDeepCacheSpeedup", model=model)
    assert progress.texts["7"].splitlines()[1].startswith("DeepCache is not applied")
    assert relative_l2(host.sample(compiled), host.sample(model)) < SAME
    assert counters.compiled_calls == 2


@pytest.mark.parametrize("node_id", ["OneDiffCheckpointLoaderSimple", "OneDiffDeepCacheCheckpointLoaderSimple"])
def test_a_loader_compiles_what_it_is_asked_to(
    node_id: str, run: Callable[..., Any], checkpoint: Callable[..., Path], compiled_once: None, counters: Counters
) -> None:
    name = checkpoint().name
    assert name in info(node_id)["input"]["required"]["ckpt_name"][1]["options"]
    model, _, vae = run(node_id, ckpt_name=name)
    assert not hasattr(vae, "onegraph")
    assert progress.texts["7"].startswith("ready: any size")
    host.sample(model)
    assert counters.compiled_calls == 2
    _, _, vae = run(node_id, ckpt_name=name, vae_speedup="enable")
    assert vae.onegraph.options.parts == "decoder"
    assert [line.partition(":")[0] for line in progress.texts["7"].splitlines() if "ready" in line] == ["model", "VAE"]


def test_vae_speedup_gives_a_compiled_copy(run: Callable[..., Any], checkpoint: Callable[..., Path]) -> None:
    plain = host.load_vae(checkpoint())
    (compiled,) = run("VaeSpeedup", vae=plain, inplace=True)
    assert compiled is not plain and compiled.onegraph.options.parts == "decoder"
    assert not hasattr(plain, "onegraph")


@pytest.mark.full
def test_svd_speedup_compiles_the_frames_of_a_video_together(
    run: Callable[..., Any],
    checkpoint: Callable[..., Path],
    counters: Counters,
    graphs_home: Path,
    shared_graphs: SharedGraphs,
) -> None:
    path = checkpoint("tiny_svd", vae="none")
    shared_graphs.give(graphs_home, path, "svd")
    model = host.load(path)
    (svd,) = run("SVDSpeedup", model=model, inplace="enable")  # as saved by an older OneDiff, for another widget
    assert progress.texts["7"].startswith("ready: any size"), progress.texts["7"]
    prompt = host.conditioning(1, 1024, 11)
    images = [
        host.sample(one, batch=2, steps=1, height=64, width=64, positive=prompt, negative=prompt)
        for one in (model, svd)
    ]
    assert relative_l2(images[1], images[0]) < SAME
    assert (counters.compiles, counters.compiled_calls, counters.eager_calls) == (0, 2, 0), counters.reasons


def test_the_vae_of_video_models_passes_through(run: Callable[..., Any]) -> None:
    import torch
    from comfy.ldm.models.autoencoder import AutoencodingEngine
    from headless.models import VAE

    class VideoVae:
        latent_dim = 2

    vae = VideoVae()
    small = {**VAE, "ch": 32}
    with torch.device("meta"):
        vae.first_stage_model = AutoencodingEngine(
            regularizer_config={"target": "comfy.ldm.models.autoencoder.DiagonalGaussianRegularizer"},
            encoder_config={"target": "comfy.ldm.modules.diffusionmodules.model.Encoder", "params": small},
            decoder_config={
                "target": "comfy.ldm.modules.temporal_ae.VideoDecoder",
                "params": {**small, "video_kernel_size": [3, 1, 1], "alpha": 0.0},
            },
        )
    assert run("VaeSpeedup", vae=vae)[0] is vae
    assert progress.texts["7"] == "uncompiled: AutoencodingEngine has an unusual encoder or decoder"
