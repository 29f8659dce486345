"""Compile ControlNet: its residuals come from a graph, for every use that the host makes of a CONTROL_NET."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from support.comfyui import controlnet
from support.comfyui.controlnet import load, sample, steered
from support.comfyui.shared_graphs import SharedGraphs

from onegraph.common import reasons
from onegraph.graph_cache.store import Store
from onegraph.host.calls import controlnet_hook as family
from onegraph.host.calls import model_hook
from onegraph.host.show import status
from onegraph.runtime.counters import Counters

from .conftest import NODE, needs_oneflow
from .test_controlnet import assert_other, assert_same

SUPPORTED = "ControlNets of SD 1.x, SD 2.x and SDXL"

pytestmark = pytest.mark.usefixtures("compiled_net")


def fast(net: Any, **options: Any) -> Any:
    """The ControlNet as the node hands it on."""
    return family.compile_controlnet(net, model_hook.ModelNodeOptions(**options), NODE)[0]


def node_text() -> str:
    return status.last_runs[NODE].text()


@pytest.fixture(scope="session")
def compiled_net(graphs_home: Path, shared_graphs: SharedGraphs) -> None:
    """The graph of the tiny ControlNet is in the store."""
    shared_graphs.give(graphs_home, None, "sdxl controlnet")
    manifests = [entry.manifest for entry in Store(graphs_home).entries()]
    outputs = {manifest.outputs for manifest in manifests if manifest.key["component"] == "controlnet"}
    assert outputs == {5}  # four skips and the middle


CALLS: dict[str, dict[str, Any]] = {
    "the same": {},
    "larger": {"height": 128, "width": 192},
    "odd latents": {"height": 136, "width": 200},
    "no CFG": {"cfg": 1.0},
    "batch": {"batch": 2},
    "more than the graph takes": {"batch": 5},
}


def test_any_call_needs_no_new_compile(model: Any, net: Any, counters: Counters) -> None:
    compiled = fast(net)
    for name, call in CALLS.items():
        assert_same(sample(model, steered(compiled), **call), sample(model, steered(net), **call))
        assert node_text().startswith(("compiled, any size", "restored in")), (name, node_text())
    assert (counters.compiles, counters.restores, counters.eager_calls) == (0, 1, 0)


def test_a_restart_restores_it(model: Any, net: Any, counters: Counters) -> None:
    sample(model, steered(fast(net)))
    assert (counters.compiles, counters.restores, counters.compiled_calls) == (0, 1, 2)
    assert node_text().startswith("restored in ")


def test_strength_and_range_are_the_hosts(model: Any, net: Any, counters: Counters) -> None:
    compiled = fast(net)
    for change, calls in (({}, 4), ({"strength": 0.4}, 4), ({"percent": (0.0, 0.5)}, 2), ({"percent": (0.5, 1.0)}, 2)):
        before = counters.compiled_calls
        result = sample(model, steered(compiled, **change), steps=4)
        assert_same(result, sample(model, steered(net, **change), steps=4))
        assert counters.compiled_calls - before == calls, change
    assert (counters.compiles, counters.eager_calls) == (0, 0)


def test_chained_controlnets_share_a_graph(model: Any, net: Any, net_file: Path, counters: Counters) -> None:
    other = load(controlnet.write_controlnet("tiny_sdxl", net_file.with_name("chained.safetensors"), seed=9))
    plain = steered(other, strength=0.7, given=steered(net))
    reference = sample(model, plain)
    assert_same(sample(model, steered(fast(other), strength=0.7, given=steered(fast(net)))), reference)
    assert (counters.compiles, counters.restores, counters.compiled_calls) == (0, 1, 4)
    assert_same(sample(model, steered(other, strength=0.7, given=steered(fast(net)))), reference)
    assert counters.compiled_calls == 6
    once = fast(net)  # the same one twice
    twice = steered(once, strength=0.3, given=steered(once))
    assert_same(sample(model, twice), sample(model, steered(net, strength=0.3, given=steered(net))))
    assert counters.compiled_calls == 10


@pytest.mark.full
def test_a_compiled_model_with_a_compiled_controlnet(
    model: Any,
    net: Any,
    counters: Counters,
    compiled_steered: None,
) -> None:
    compiled_model = model_hook.compile_model(model, model_hook.ModelNodeOptions(), "8")[0]
    assert_same(sample(compiled_model, steered(fast(net))), sample(model, steered(net)))
    assert (counters.compiles, counters.restores, counters.compiled_calls) == (0, 2, 4)
    assert status.last_runs[NODE].compiled_calls == status.last_runs["8"].compiled_calls == 2


def test_the_controlnet_put_in_stays_as_it_is(model: Any, net: Any, counters: Counters) -> None:
    before = dict(vars(net))
    callbacks = copy.deepcopy(net.control_model_wrapped.callbacks)
    compiled = fast(net)
    assert vars(net) == before
    assert net.control_model_wrapped.callbacks == callbacks
    assert type(compiled) is type(net)
    assert compiled is not net and compiled.control_model is not net.control_model
    sample(model, steered(compiled))
    sample(model, steered(net))
    assert counters.compiled_calls == 2


def test_the_hosts_methods_still_work(net: Any) -> None:
    compiled = fast(net)
    applied = compiled.copy().set_cond_hint(torch.zeros(1, 3, 64, 64), 0.5, (0.1, 0.9))
    applied.set_previous_controlnet(net.copy())
    assert applied.control_model is compiled.control_model
    assert applied.get_models() == [net.control_model_wrapped, compiled.control_model_wrapped]
    assert compiled.control_model_wrapped.is_clone(net.control_model_wrapped)
    assert applied.inference_memory_requirements(torch.float32) == net.inference_memory_requirements(torch.float32)
    assert applied.get_instance_for_device(torch.device("cpu")) is applied
    module = compiled.control_model
    assert isinstance(module, type(net.control_model))
    assert [*module.state_dict()] == [*net.control_model.state_dict()]
    applied.cleanup()
    other = applied.deepclone_multigpu(torch.device("cpu"))
    assert type(other.control_model) is type(net.control_model)
    assert other.control_model is not net.control_model


def test_its_weights_may_be_patched_and_freed(model: Any, net: Any, counters: Counters) -> None:
    import comfy.model_management

    compiled = fast(net)
    first = sample(model, steered(compiled))
    net.control_model.middle_block_out[0].weight.mul_(3)
    assert_other(sample(model, steered(compiled)), first)
    assert_same(sample(model, steered(compiled)), sample(model, steered(net)))
    comfy.model_management.unload_all_models()
    assert_same(sample(model, steered(compiled)), sample(model, steered(net)))
    assert (counters.compiles, counters.eager_calls) == (0, 0)


def test_off_and_again(model: Any, net: Any, counters: Counters) -> None:
    once = fast(net)
    off, text = family.compile_controlnet(once, model_hook.ModelNodeOptions(backend="off"), NODE)
    assert text.startswith("off")
    sample(model, steered(off))
    assert counters.compiled_calls == 0
    again = fast(once)
    assert again.control_model is not once.control_model
    sample(model, steered(again))
    assert counters.compiled_calls == 2
    assert len(status.last_runs) == 1


@needs_oneflow
@pytest.mark.full
def test_oneflow_steers_and_is_steered(model: Any, net: Any, counters: Counters) -> None:
    """Exact sizes: one graph of each for a first size, and of each another for a second one without capturing again."""
    steering = fast(net, backend="oneflow")
    compiled_model = model_hook.compile_model(model, model_hook.ModelNodeOptions(backend="oneflow"), "8")[0]
    for number, side in enumerate((128, 96), start=1):
        size = {"height": side, "width": side}
        assert_same(sample(compiled_model, steered(steering), **size), sample(model, steered(net), **size))
        assert (counters.compiles, counters.eager_calls) == (2 * number, 0), (node_text(), status.last_runs["8"].text())
    assert counters.compiled_calls == 8


def union(file: Path) -> Any:
    import comfy.cldm.cldm
    import comfy.controlnet
    import comfy.ops
    from headless import models

    config = {**models._COMMON, **models.config("tiny_sdxl")}
    for unknown in ("out_channels", "transformer_depth_output"):
        config.pop(unknown)
    module = comfy.cldm.cldm.ControlNet(
        **config, hint_channels=3, union_controlnet_num_control_type=6, operations=comfy.ops.disable_weight_init
    )
    return comfy.controlnet.ControlNet(module, load_device=torch.device("cpu"))


def test_others_are_handed_on_as_they_are(tmp_path: Path) -> None:
    import comfy.controlnet
    from comfy.t2i_adapter.adapter import Adapter

    adapter = comfy.controlnet.T2IAdapter(Adapter(cin=768, xl=False), 3, 8, "nearest-exact")
    lora = comfy.controlnet.ControlLora({"lora_controlnet": torch.zeros(1)})
    for other, reason in (
        (adapter, reasons.NotCompilable("T2IAdapter", SUPPORTED)),
        (lora, reasons.NotCompilable("ControlLora", SUPPORTED)),
        (union(tmp_path), reasons.UnionControlNet()),
    ):
        assert family.family_for(other) == reason
        handed, text = family.compile_controlnet(other, model_hook.ModelNodeOptions(), NODE)
        assert handed is other
        assert text.startswith("uncompiled: ")


def test_a_call_with_more_arguments_runs_eager(model: Any, net: Any, counters: Counters) -> None:
    conditioning = steered(fast(net))
    for given in conditioning:
        given[0][1]["control"].set_extra_arg("guidance", torch.ones(1))
    assert_same(sample(model, conditioning), sample(model, steered(net)))
    assert status.last_runs[NODE].eager_codes == {"unknown_argument": 2}
    assert counters.compiled_calls == 0
