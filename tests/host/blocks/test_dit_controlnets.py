"""ControlNets of diffusion transformers with their blocks compiled: what they steer is eager's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.comfyui import dit_controlnets
from support.models import dits
from support.scenes.nodes import NODE, assert_close, blocks, compiled, compiled_net
from support.scenes.process import new_process

from onegraph.host.calls import model_hook
from onegraph.host.calls.controlnet_hook import compile_controlnet
from onegraph.runtime.counters import Counters

MODEL_NODE = "11"
NETS = [pytest.param(name, marks=() if name == "flux" else pytest.mark.full) for name in dit_controlnets.NETS]


def steered(model: Any, net: Any, name: str, *args: int, strength: float = 1.0, **options: Any) -> torch.Tensor:
    with dit_controlnets.steering(net, strength):
        return dits.sample(model, dit_controlnets.NETS[name].model, *args, **options)


def check(name: str, model: Any, fast: Any, net: Any, fast_net: Any, *args: int, **options: Any) -> dict[str, Any]:
    found = steered(fast, fast_net, name, *args, **options)
    wanted = steered(model, net, name, *args, **options)
    assert_close(found, wanted)
    return blocks()


@pytest.mark.parametrize("name", NETS)
def test_any_size_strength_and_model(name: str, counters: Counters, graphs_home: Path) -> None:
    """The first step shows how blocks are called; then no size compiles, nor does another process."""
    net, model = dit_controlnets.load(name), dits.load(dit_controlnets.NETS[name].model)
    fast_net = compiled_net(net)
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
    with new_process(graphs_home) as fresh:
        other = dit_controlnets.load(name, seed=8)
        assert check(name, model, model, other, compiled_net(other))["calls"] == served
        assert fresh.counters.compiles == 0


@pytest.mark.parametrize("name", NETS)
def test_with_the_model_compiled_too(name: str, counters: Counters) -> None:
    net, model = dit_controlnets.load(name), dits.load(dit_controlnets.NETS[name].model)
    fast_net, fast = compiled_net(net), compiled(model, MODEL_NODE)
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
    assert passed is net and text.startswith("uncompiled: QwenFunControlNet is not a model that OneGraph compiles")
