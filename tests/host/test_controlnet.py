"""A ControlNet steers a compiled UNet: the same images as eager, whichever blocks it steers, without a new compile."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from headless import host, models
from support.comfyui import controlnet
from support.comfyui.controlnet import load, sample, steered

from onegraph.common import reasons
from onegraph.host.calls import model_hook as hook
from onegraph.host.families import residuals
from onegraph.host.show import status
from onegraph.runtime.counters import Counters
from onegraph.runtime.graphs.faithfulness import relative_l2
from onegraph.runtime.obtain.registry import Registry
from onegraph.runtime.policy import ANY_SPEED

from .conftest import NODE, compiled, node_text

pytestmark = pytest.mark.usefixtures("compiled_steered")
SAME = 1e-4  # relative L2 of latents after two steps, as for an image without a ControlNet


def assert_same(result: torch.Tensor, reference: torch.Tensor) -> None:
    assert relative_l2(result, reference) < SAME


def assert_other(result: torch.Tensor, reference: torch.Tensor) -> None:
    assert relative_l2(result, reference) > 0.01


CALLS: dict[str, dict[str, Any]] = {
    "larger": {"height": 128, "width": 192},
    "odd latents": {"height": 136, "width": 200},
    "long prompt": {"tokens": 231},
    "no CFG": {"cfg": 1.0},
    "batch": {"batch": 2},
    "more than the graph takes": {"batch": 5},
}


def test_any_steered_call_needs_no_new_compile(model: Any, net: Any, counters: Counters) -> None:
    fast = compiled(model)
    for name, call in CALLS.items():
        tokens = call.get("tokens", 77)
        prompts = host.conditioning(tokens, 2048, 11), host.conditioning(77, 2048, 12)
        reference = sample(model, steered(net, given=prompts), **{**call, "tokens": 77})
        assert_same(sample(fast, steered(net, given=prompts), **{**call, "tokens": 77}), reference)
        assert "with residuals" in node_text(), name
    assert (counters.compiles, counters.restores, counters.eager_calls) == (0, 1, 0)


def test_strength_and_range_need_no_new_compile(model: Any, net: Any, counters: Counters) -> None:
    fast, seen = compiled(model), []
    for change in ({}, {"strength": 0.4}, {"percent": (0.0, 0.5)}, {"percent": (0.5, 1.0)}, {"percent": (0.9, 0.9)}):
        result = sample(fast, steered(net, **change), steps=4)
        assert_same(result, sample(model, steered(net, **change), steps=4))
        seen.append(result)
    for first, second in itertools.pairwise(seen):
        assert_other(first, second)
    assert (counters.compiles, counters.restores, counters.eager_calls) == (0, 2, 0)  # one more without residuals


@pytest.mark.parametrize("percent", [(0.0, 0.5), (0.5, 1.0)])
def test_each_graph_of_a_run_has_the_live_weights(
    percent: tuple[float, float], model: Any, net: Any, counters: Counters, tmp_path: Path
) -> None:
    """Steps with and without residuals are two graphs. Both had been called before a LoRA replaced weights."""
    fast, conditioning = compiled(model), steered(net, percent=percent)
    plain = sample(fast, conditioning, steps=4)
    lora = models.write_lora("tiny_sdxl", tmp_path / "lora.safetensors")
    for strength in (1.0, -0.7):
        result = sample(host.with_lora(fast, lora, strength), conditioning, steps=4)
        assert_same(result, sample(host.with_lora(model, lora, strength), conditioning, steps=4))
        assert_other(result, plain)
    assert_same(sample(fast, conditioning, steps=4), plain)
    assert (counters.compiles, counters.restores, counters.eager_calls) == (0, 2, 0)


def test_a_weight_that_was_replaced_reaches_each_graph(model: Any, net: Any, counters: Counters) -> None:
    """By whom the host knows nothing of, so that nothing but the weight's identity tells."""
    fast, conditioning = compiled(model), steered(net, percent=(0.0, 0.5))
    plain = sample(fast, conditioning, steps=4)
    convolution = model.model.diffusion_model.input_blocks[0][0]
    convolution.weight = torch.nn.Parameter(1.5 * convolution.weight, requires_grad=False)
    result = sample(fast, conditioning, steps=4)
    assert_same(result, sample(model, conditioning, steps=4))
    assert_other(result, plain)
    assert (counters.compiles, counters.eager_calls) == (0, 0)


def test_two_controlnets_are_one_sum(model: Any, net: Any, net_file: Path, counters: Counters) -> None:
    other = load(controlnet.write_controlnet("tiny_sdxl", net_file.with_name("other.safetensors"), seed=9))
    both = steered(other, strength=0.7, given=steered(net))
    result = sample(compiled(model), both)
    assert_same(result, sample(model, both))
    assert_other(result, sample(model, steered(net)))
    assert (counters.compiles, counters.restores, counters.eager_calls) == (0, 1, 0)


def test_steering_one_half_of_the_batch(model: Any, net: Any, counters: Counters) -> None:
    positive, _ = steered(net)
    halves = positive, host.conditioning(77, 2048, 12)
    assert_same(sample(compiled(model), halves), sample(model, halves))
    assert (counters.compiles, counters.restores, counters.eager_calls) == (0, 2, 0)
    assert counters.compiled_calls == 4


def test_lists_that_the_host_uses_up_stay_as_they_are(model: Any, counters: Counters) -> None:
    """Taken twice, and then eager's: the same residuals each time."""
    unet = model.model.diffusion_model
    x = torch.zeros(2, 4, 16, 16)
    made = [torch.randn(2, 64, 16, 16), torch.randn(2, 64, 16, 16), None, torch.randn(2, 128, 8, 8)]
    control = {"input": [], "middle": [None], "output": [*made]}
    first = residuals.taken(unet, control, x)
    assert isinstance(first, dict)
    assert list(first) == ["output_0", "output_2", "output_3"]
    assert [*control["output"]] == made
    again = residuals.taken(unet, residuals.control_of(first), x)
    assert isinstance(again, dict)
    assert list(again) == list(first)
    assert all(torch.equal(again[name], first[name]) for name in first)
    assert counters.compiles == 0


SHORT = {"output": [torch.ones(1, 128, 8, 8)]}  # for the deepest skip alone, of one image for the whole batch
INPUT = {"input": [torch.ones(2, 128, 8, 8), None, None, torch.ones(2, 64, 16, 16)]}  # an adapter's
HALF = {"middle": [torch.ones(2, 128, 8, 8).half()]}


@pytest.mark.parametrize("control", [SHORT, INPUT, HALF, {"output": [None, None]}, {"other": [1]}])
def test_each_structure_is_what_the_host_makes_of_it(control: Any, model: Any) -> None:
    unet, generator = model.model.diffusion_model, torch.Generator().manual_seed(1)
    x, t, context = torch.randn(2, 4, 16, 16, generator=generator), torch.tensor([7.0, 7.0]), torch.ones(2, 77, 2048)
    given = {"x": x, "timesteps": t, "context": context, "y": torch.ones(2, 2816)}
    taken = residuals.taken(unet, control, x)
    assert isinstance(taken, dict)
    with torch.inference_mode():
        found = unet._forward(**given, control=residuals.control_of(taken))
        wanted = unet._forward(**given, control={kind: [*lists] for kind, lists in control.items()})
        plain = unet._forward(**given)
    assert torch.equal(found, wanted)
    assert torch.equal(wanted, plain) == (not taken)


@pytest.mark.parametrize(
    ("control", "reason"),
    [
        (
            {"middle": [torch.ones(2, 128, 16, 16)]},
            reasons.ResidualSize("middle", 0, (2, 128, 16, 16), (2, 128, 8, 8)),
        ),
        ({"output": [torch.ones(3, 128, 8, 8)]}, reasons.ResidualSize("output", 0, (3, 128, 8, 8), (2, 128, 8, 8))),
        (
            {"middle": [torch.ones(2, 128, 8, 8).double()]},
            reasons.UnusualResidual("Tensor torch.float64 on cpu"),
        ),
        ({"middle": (torch.ones(2, 128, 8, 8),)}, reasons.UnusualResidual("tuple")),
        ({"middle": [3.0]}, reasons.UnusualResidual("float")),
        ([torch.ones(2, 128, 8, 8)], reasons.UnusualResidual("list")),
    ],
)
def test_a_residual_that_no_graph_takes(control: Any, reason: Any, model: Any) -> None:
    refused = residuals.taken(model.model.diffusion_model, control, torch.zeros(2, 4, 16, 16))
    assert refused == residuals.Refused(reason)


class Odd:
    """A ControlNet of another pack: the host's, whose residuals come changed."""

    def __init__(self, net: Any, change: Callable[[Any], Any]) -> None:
        self._net, self._change = net, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._net, name)

    def get_control(self, *args: Any) -> Any:
        return self._change(self._net.get_control(*args))


def test_odd_residuals_run_eager_and_are_not_used_up(model: Any, net: Any, counters: Counters) -> None:
    def changed(control: Any) -> Any:
        return {**control, "middle": [control["middle"][0].double()]}

    positive, negative = steered(net)
    for given in (*positive, *negative):
        given[1]["control"] = Odd(given[1]["control"], changed)
    result = sample(compiled(model), (positive, negative))
    assert_same(result, sample(model, (positive, negative)))
    assert status.last_runs[NODE].eager_codes == {"unusual_residual": 4}
    assert counters.compiled_calls == 0


def test_a_foreign_controlnet_that_changes_the_model(model: Any, net: Any, counters: Counters) -> None:
    """Of the model all is checked before each call, as foreign code runs between them."""
    block = model.model.diffusion_model.input_blocks[1][0].out_layers[3]

    def sampled(to: Any) -> torch.Tensor:
        calls = []

        def meddling(control: Any) -> Any:
            calls.append(
                block.register_forward_hook(lambda module, given, result: 2 * result) if len(calls) == 2 else 0
            )
            return control

        positive, negative = steered(net)
        odd = Odd(positive[0][1]["control"], meddling)
        for given in (*positive, *negative):
            given[1]["control"] = odd
        try:
            return sample(to, (positive, negative), steps=4)
        finally:
            calls[2].remove()

    assert_same(sampled(compiled(model)), sampled(model))
    assert status.last_runs[NODE].eager_codes == {"forward_hook": 2}
    assert counters.compiled_calls == 2


class Workflow:
    """The running workflow as ComfyUI hands it to a node."""

    def __init__(self, *types: str) -> None:
        self._nodes = {str(number): {"class_type": name, "inputs": {}} for number, name in enumerate(types)}

    def all_node_ids(self) -> set[str]:
        return {*self._nodes}

    def get_node(self, node: str) -> dict[str, Any]:
        return self._nodes[node]


@pytest.mark.parametrize(("loader", "graphs"), [("ControlNetLoader", 2), ("VAELoader", 1)])
def test_in_a_workflow_with_one_it_is_preloaded(
    loader: str, graphs: int, model: Any, net: Any, counters: Counters, fresh_process: Registry
) -> None:
    fresh_process.policy = replace(ANY_SPEED, preload_on=("cpu",), preload_room=0)
    workflow = Workflow("KSampler", loader, "of a pack that is gone")
    fast = hook.compile_model(model, hook.ModelNodeOptions(), NODE, workflow)[0]
    host.wait_for_preloads()
    assert (counters.preloads, counters.restores, counters.compiles) == (graphs, graphs, 0)
    assert_same(sample(fast, steered(net)), sample(model, steered(net)))
    assert (counters.restores, counters.compiles, counters.eager_calls) == (2, 0, 0)
