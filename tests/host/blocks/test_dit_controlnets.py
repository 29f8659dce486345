"""ControlNets of diffusion transformers with their blocks compiled: what they steer is eager's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.comfyui import dit_controlnets
from support.models import dits

from onegraph.graph_cache.store import Store
from onegraph.host.calls import model_hook
from onegraph.host.calls.controlnet_hook import compile_controlnet
from onegraph.host.show import status
from onegraph.runtime.counters import Counters
from onegraph.runtime.obtain import registry as registry_module
from onegraph.runtime.obtain.registry import Registry
from onegraph.runtime.policy import ANY_SPEED

NODE, MODEL_NODE = "11", "7"
CLOSE = 1e-5  # relative L2
NETS = [pytest.param(name, marks=() if name == "flux" else pytest.mark.full) for name in dit_controlnets.NETS]


def compiled(net: Any, **options: Any) -> Any:
    return compile_controlnet(net, model_hook.ModelNodeOptions(backend="inductor", **options), NODE)[0]


def compiled_model(model: Any) -> Any:
    return model_hook.compile_model(model, model_hook.ModelNodeOptions(backend="inductor"), MODEL_NODE)[0]


def steered(model: Any, net: Any, name: str, *args: int, strength: float = 1.0, **options: Any) -> torch.Tensor:
    with dit_controlnets.steering(net, strength):
        return dits.sample(model, dit_controlnets.NETS[name].model, *args, **options)


def blocks(node: str = NODE) -> dict[str, Any]:
    found: dict[str, Any] = status.last_runs[node].to_json()["blocks"]
    return found


def check(name: str, model: Any, fast: Any, net: Any, fast_net: Any, *args: int, **options: Any) -> dict[str, Any]:
    found = steered(fast, fast_net, name, *args, **options)
    wanted = steered(model, net, name, *args, **options)
    assert float((found - wanted).norm() / wanted.norm()) < CLOSE, status.last_runs[NODE].text()
    return blocks()


@pytest.mark.parametrize("name", NETS)
def test_any_size_strength_and_model(name: str, counters: Counters, graphs_home: Path) -> None:
    """The first step shows how blocks are called; then no size compiles, nor does another process."""
    net, model = dit_controlnets.load(name), dits.load(dit_controlnets.NETS[name].model)
    fast_net = compiled(net)
    steered(model, fast_net, name, steps=1)
    compiles = counters.compiles
    assert compiles + counters.restores >= 1  # a block of the model may be of a kind with one of the net
    served = check(name, model, model, net, fast_net)["calls"]
    assert served and not blocks()["eager_codes"], blocks()
    for height, width, batch, tokens, cfg in ((12, 20, 2, 30, 1.0), (18, 10, 1, 5, 3.0)):
        options: dict[str, Any] = {"batch": batch, "tokens": tokens, "cfg": cfg}
        report = check(name, model, model, net, fast_net, height, width, **options)
        assert report["calls"] in (served, 2 * served) and not report["eager_codes"], report
    check(name, model, model, net, fast_net, strength=0.4)
    assert counters.compiles == compiles
    with registry_module.using(Registry(Store(graphs_home), policy=ANY_SPEED)) as fresh:
        assert fresh is not None
        other = dit_controlnets.load(name, seed=8)
        assert check(name, model, model, other, compiled(other))["calls"] == served
        assert fresh.counters.compiles == 0


@pytest.mark.parametrize("name", NETS)
def test_with_the_model_compiled_too(name: str, counters: Counters) -> None:
    net, model = dit_controlnets.load(name), dits.load(dit_controlnets.NETS[name].model)
    fast_net, fast = compiled(net), compiled_model(model)
    steered(fast, fast_net, name, steps=1)
    compiles = counters.compiles
    check(name, model, fast, net, fast_net)
    assert blocks()["calls"] and blocks(MODEL_NODE)["calls"]
    assert not {*blocks()["eager_codes"]} | {*blocks(MODEL_NODE)["eager_codes"]}
    check(name, model, fast, net, fast_net, 20, 12, batch=2)
    assert counters.compiles == compiles


def test_the_input_controlnet_is_not_changed(counters: Counters) -> None:
    net = dit_controlnets.load("flux")
    module = net.control_model
    fast, text = compile_controlnet(net, model_hook.ModelNodeOptions(backend="inductor", when_missing="eager"), NODE)
    assert text.startswith("ready: block graphs for 4 blocks"), text
    model = dits.load("flux")
    found, wanted = steered(model, fast, "flux", steps=1), steered(model, net, "flux", steps=1)
    assert torch.equal(found, wanted) or blocks()["calls"]
    assert net.control_model is module
    assert all("forward" not in vars(one) for one in module.modules())


def test_what_needs_the_model_that_it_steers_passes_through() -> None:
    import comfy.controlnet
    from comfy.ldm.qwen_image.controlnet import QwenImageFunControlNetModel

    module = QwenImageFunControlNetModel(8, 32, 2, 16, 2, **dit_controlnets._operations())
    net = comfy.controlnet.QwenFunControlNet(module, load_device=torch.device("cpu"))
    passed, text = compile_controlnet(net, model_hook.ModelNodeOptions(), NODE)
    assert passed is net and text.startswith("eager: QwenFunControlNet is not a model that OneGraph compiles")
