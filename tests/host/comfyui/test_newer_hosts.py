"""What is used of newer releases of ComfyUI: of this one where it has it, else of what `newer_host` puts there."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from headless import host
from support.comfyui import newer_host
from support.models import dits, preferring, toy_prefixes

from onegraph.common import reasons
from onegraph.host.calls import memory_plans, model_hook
from onegraph.host.capture import rewrites
from onegraph.host.comfyui import contract
from onegraph.host.families.family import attention as torch_attention
from onegraph.host.show import status
from onegraph.runtime.counters import Counters

NODE = "7"
FOR_SOME = {
    name: value
    for name, value in vars(contract).items()
    if isinstance(value, tuple) and not name.startswith("_") and isinstance(value[0], contract.Use)
}


@pytest.fixture(autouse=True)
def newer() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        newer_host.put(patch)
        contract.missing.cache_clear()
        yield
        from comfy import model_prefetch

        model_prefetch.MALLOC_GRAPHS.clear()
    contract.missing.cache_clear()


def test_all_that_only_some_models_or_hosts_need_is_looked_at() -> None:
    assert {"MINIMAX", "WAN", "ACTIVATED", "FAST", "PLANNING", "PLANS", "PLAN_OPTION", "PREFERRED"} <= {*FOR_SOME}


@pytest.mark.parametrize("name", FOR_SOME)
def test_a_newer_host_has_what_only_some_models_or_hosts_need(name: str) -> None:
    assert contract.missing(FOR_SOME[name]) == ()


def test_a_plan_begins_unless_plans_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    from comfy import model_prefetch

    newer_host.plan_on_any_device(monkeypatch)
    plans = memory_plans.MemoryPlans(newer_host.CPU)
    for _ in range(2):  # the first one of a thread, and one that follows it
        with memory_plans.off(newer_host.CPU) as would_plan:
            assert would_plan
            model_prefetch.malloc_graph_begin(newer_host.CPU)
            assert plans.refusal() is None
            model_prefetch.malloc_graph_end()
        model_prefetch.malloc_graph_begin(newer_host.CPU)
        assert plans.refusal() == reasons.MemoryPlanned()
        with memory_plans.off(newer_host.CPU):  # by a call in the midst of another's plan, which ends as it would
            assert plans.refusal() == reasons.MemoryPlanned()
            model_prefetch.malloc_graph_end()
        assert plans.refusal() is None


def parameters(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def test_minimax_calls_its_blocks_as_they_are_captured() -> None:
    from comfy.ldm.minimax import model

    assert parameters(model.DiTBlock.forward)[:5] == ["x", "t_emb", "mod_segments", "rope_freqs", "transformer_options"]
    assert {"_mod_scale_shift", "_mod_gate"} <= {*model.DiTBlock.forward.__code__.co_names}


def test_minimax_modulates_each_token_by_its_row() -> None:
    """A segment has a row, or one for each of its tokens where a mask keeps some of a picture."""
    from comfy.ldm.minimax import model

    of_host = model._mod_scale_shift, model._mod_gate
    x, other, scale, shift = torch.randn(7, 4), torch.randn(7, 4), torch.randn(6, 4), torch.randn(6, 4)
    for segments in ([(0, 2, 1), (2, 7, 5)], [(0, 3, 4), (3, 6, torch.tensor([5, 0, 2])), (6, 7, 3)]):
        wanted = of_host[0](x.clone(), shift, scale, segments), of_host[1](x.clone(), scale, other, segments)
        with rewrites.settings().rewrites():
            assert model._mod_scale_shift is not of_host[0]
            found = model._mod_scale_shift(x.clone(), shift, scale, segments)
            gated = model._mod_gate(x.clone(), scale, other, segments)
        torch.testing.assert_close((found, gated), wanted)


def test_qwen_image_21_calls_its_blocks_as_the_toy_does() -> None:
    wanted = ["x", "mod", "pe", "attn_fn", "prefix_len", "transformer_options"]
    for block in (newer_host.qwen_image_21_block(), toy_prefixes.Block):
        assert parameters(block.forward) == wanted


def test_what_a_layer_prefers_is_called_unless_there_is_an_override() -> None:
    from comfy.ldm.modules import attention

    layer = attention.ComfyAttention()
    assert layer.function is None
    q, options = torch.randn(1, 4, 16), {newer_host.OVERRIDE: torch_attention}
    plain = attention.optimized_attention(q, q, q, 2, preferred_attention=layer, transformer_options={})
    layer.function = preferring.eightfold
    for given, factor in (({}, 8.0), (options, 1.0)):
        found = attention.optimized_attention(q, q, q, 2, preferred_attention=layer, transformer_options=given)
        torch.testing.assert_close(found, plain * factor)


def sampled(model: Any) -> torch.Tensor:
    return host.sample(model, steps=2, context_width=dits.WIDTH, cfg=1.0)


def test_graphs_call_what_layers_prefer(counters: Counters) -> None:
    plain = sampled(preferring.load())
    for preferred in (None, preferring.eightfold):
        model = preferring.load()
        for block in model.model.diffusion_model.blocks:
            block.comfy_attention.function = preferred
        options = model_hook.ModelNodeOptions(backend="inductor")
        sampled(model_hook.compile_model(model, options, NODE)[0])
        preferring.calls.clear()
        wanted = sampled(model)
        calls = [*preferring.calls]
        assert len(calls) == (6 if preferred else 0)
        assert (float((wanted - plain).norm() / plain.norm()) > 1e-3) == bool(preferred)
        preferring.calls.clear()
        found = sampled(model_hook.compile_model(model, options, NODE)[0])
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
        assert preferring.calls == calls
        report = status.last_runs[NODE].to_json()["blocks"]
        assert (report["calls"], report["eager_codes"]) == (6, {}), status.last_runs[NODE].text()
    assert counters.compiles == 2


def test_a_model_that_holds_who_samples_it_is_compiled(counters: Counters) -> None:
    model = preferring.load(unet_model=preferring.Asking)
    model.model.diffusion_model.current_patcher = model
    plain = sampled(model)
    for _ in range(2):
        compiled = model_hook.compile_model(model, model_hook.ModelNodeOptions(backend="inductor"), NODE)[0]
        torch.testing.assert_close(sampled(compiled), plain, atol=1e-5, rtol=1e-5)
    report = status.last_runs[NODE].to_json()["blocks"]
    assert (report["calls"], report["eager_codes"], counters.compiles) == (6, {}, 1), status.last_runs[NODE].text()


class Renamed(preferring.Block):
    """Takes the options as Prism's blocks do."""

    def forward(self, x: Any, shift: Any, options: Any) -> Any:
        return super().forward(x, shift, transformer_options=options)


def test_blocks_that_name_the_options_otherwise_run_eager(counters: Counters) -> None:
    model = preferring.load()
    for block in model.model.diffusion_model.blocks:
        block.__class__ = Renamed
    found = sampled(model_hook.compile_model(model, model_hook.ModelNodeOptions(backend="inductor"), NODE)[0])
    assert torch.equal(found, sampled(model))
    report = status.last_runs[NODE].to_json()["blocks"]
    assert (report["calls"], {*report["eager_codes"]}) == (0, {"block_argument"})
    assert counters.compiles == 0
