"""Diffusion transformers of ComfyUI's own classes, sampled with their blocks compiled: the latent is eager's."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from headless import host
from support.dit_matrix import steering
from support.models import dits
from support.scenes.nodes import NODE, assert_close, blocks, compiled, told

from onegraph.graph_cache.disk.listing import id_of
from onegraph.host.calls import model_hook
from onegraph.host.comfyui import contract
from onegraph.host.page import warm_up
from onegraph.runtime.counters import Counters
from onegraph.runtime.obtain import registry
from onegraph.runtime.obtain.registry import Registry
from onegraph.runtime.policy import ANY_SPEED

FAMILIES = [
    pytest.param(name, marks=() if name in ("flux", "flux kontext") else pytest.mark.full) for name in dits.DITS
]
REPLACED = {
    "flux": "double_block",
    "qwen-image": "double_block",
    "wan 2.1 t2v": "double_block",
    "sd 3.5": "double_block",
}

_NOT_COMPILED = {"waits_for_change", "capture_failed", "block_small"}  # parts of models that are no blocks to speak of


def check(plain: Any, name: str, *args: int, **options: Any) -> dict[str, Any]:
    """A sampling of a model equals that of its compiled clone; what that one's run says of its blocks."""
    fast = compiled(plain)
    found, wanted = dits.sample(fast, name, *args, **options), dits.sample(plain, name, *args, **options)
    assert_close(found, wanted)
    return blocks()


def known(name: str, counters: Counters) -> Any:
    """A model of a family whose graphs are there, and the counters as new."""
    model = dits.load(name)
    dits.sample(compiled(model), name, steps=1)
    compiles = counters.compiles
    report = check(model, name)
    assert counters.compiles == compiles
    assert report["compiled"] and not {*report["eager_codes"]} - _NOT_COMPILED, report
    return model


@pytest.mark.parametrize("name", FAMILIES)
def test_sizes_batches_prompts_and_guidance(name: str, counters: Counters) -> None:
    model = known(name, counters)
    compiles = counters.compiles
    served = check(model, name)["calls"]
    for batch, height, width, tokens, cfg in [(2, 12, 20, 30, 1.0), (1, 17, 10, 2, 1.0), (2, 24, 8, 77, 3.0)]:
        if name.startswith("minimax h3"):
            batch = 1  # it takes no more
            height += height % 2  # nor does it pad a first frame
        report = check(model, name, height, width, batch=batch, tokens=tokens, cfg=cfg)
        assert report["calls"] in (served, 2 * served), report
    check(model, name, 12, 12, tokens=1)  # a length of 1 may run eager
    assert counters.compiles == compiles


@pytest.mark.parametrize("name", FAMILIES)
def test_loras_and_another_model(name: str, counters: Counters) -> None:
    """On, stronger, off; then a model with other weights: nothing is compiled, and every block stays compiled."""
    model = known(name, counters)
    compiles, served = counters.compiles, blocks()["calls"]
    weights = {key: one for key, one in model.model.state_dict().items() if one.ndim == 2 and "block" in key}
    if name == "ltx 2":  # others are of its connectors, some of which no prompt of these samplings goes through
        weights = {key: one for key, one in weights.items() if ".transformer_blocks." in key}
    weights = weights or {key: one for key, one in model.model.state_dict().items() if one.ndim == 2}
    for strength in (0.3, 1.0):
        adapted = model.clone()
        torch.manual_seed(5)
        patches = {key: ("diff", (torch.randn_like(one) * 0.05,)) for key, one in [*weights.items()][:12]}
        assert adapted.add_patches(patches, strength)
        assert check(adapted, name)["calls"] == served
        assert float((dits.sample(adapted, name) - dits.sample(model, name)).norm()) > 0.01
    assert check(model, name)["calls"] == served
    assert check(dits.load(name, seed=9), name)["calls"] == served
    assert counters.compiles == compiles


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=() if one == "flux" else pytest.mark.full) for one in REPLACED]
)
def test_replaced_blocks(name: str, counters: Counters) -> None:
    model = known(name, counters)
    served = blocks()["calls"]

    def halved(args: Any, extra: Any) -> Any:
        found = extra["original_block"](args)
        return {**found, "img": found["img"] * 0.5}

    def skipped(args: Any, extra: Any) -> Any:
        return {key: one for key, one in args.items() if key in ("img", "txt")}

    for replacement, fewer in ((halved, 0), (skipped, 2)):
        changed = model.clone()
        changed.set_model_patch_replace(replacement, "dit", REPLACED[name], 1)
        dits.sample(compiled(changed), name)  # SD 3.5 calls such a block without an argument: a graph of its own
        assert check(changed, name)["calls"] == served - fewer


def test_step_caches_skip_calls_and_change_none(counters: Counters) -> None:
    from comfy_extras.nodes_easycache import EasyCacheNode, LazyCacheNode

    model = known("flux", counters)
    for node in (EasyCacheNode, LazyCacheNode):
        cached = node.execute(model, 0.9, 0.1, 0.95, False).result[0]
        report = check(cached, "flux", steps=6)
        assert 0 < report["calls"] < 30 and not report["eager_codes"], report


def test_patches_between_and_inside_blocks(counters: Counters) -> None:
    model = known("flux", counters)
    seen: list[int] = []

    def after(args: dict[str, Any]) -> dict[str, Any]:
        seen.append(1)
        weight = model.model.diffusion_model.single_blocks[2].linear2.weight
        if len(seen) == 2:  # in the midst of a call, where nobody tells
            weight.data = weight.data * 1.5
        return {**args, "img": args["img"] * 1.1}

    changed = model.clone()
    changed.set_model_patch(after, "post_input")
    found = dits.sample(compiled(changed), "flux")
    wanted_weight = model.model.diffusion_model.single_blocks[2].linear2.weight
    wanted_weight.data = wanted_weight.data / 1.5
    seen.clear()
    wanted = dits.sample(changed, "flux")
    assert_close(found, wanted)
    assert blocks()["calls"] == 10

    def inside(q: Any, k: Any, v: Any, pe: Any = None, attn_mask: Any = None, extra_options: Any = None) -> Any:
        return {"q": q * 0.8, "k": k, "v": v, "pe": pe, "attn_mask": attn_mask}

    changed = model.clone()
    changed.set_model_patch(inside, "attn1_patch")
    report = check(changed, "flux")
    assert report["eager_codes"] == {"block_option": 10}, report


def test_residuals_are_added_between_blocks(counters: Counters) -> None:
    model = known("flux", counters)
    plain = dits.sample(model, "flux")
    dits.control = steering.residual_net(128)
    try:
        report = check(model, "flux")
        assert (report["calls"], report["eager_codes"]) == (10, {})
        assert float((dits.sample(model, "flux") - plain).norm()) > 0.1
    finally:
        dits.control = None


def test_an_exception_in_a_patch_leaves_nothing(counters: Counters) -> None:
    model = known("flux", counters)

    def fails(args: Any, extra: Any) -> Any:
        raise RuntimeError("in the middle")

    changed = model.clone()
    changed.set_model_patch_replace(fails, "dit", "single_block", 1)
    with pytest.raises(RuntimeError, match="in the middle"):
        dits.sample(compiled(changed), "flux")
    assert not any("forward" in vars(module) for module in model.model.diffusion_model.modules())
    assert check(model, "flux")["calls"] == 10


def test_a_block_that_is_changed_runs_eager_alone(counters: Counters) -> None:
    model = known("flux", counters)
    block = model.model.diffusion_model.single_blocks[1]
    block.linear1.register_forward_hook(lambda module, args, output: output * 1.2)
    report = check(model, "flux")
    assert (report["calls"], report["eager_codes"]) == (8, {"forward_hook": 2}), report


def test_graphs_of_blocks_are_preloaded(counters: Counters, fresh_process: Registry) -> None:
    model = known("flux", counters)
    policy = replace(ANY_SPEED, preload_on=("cpu",), preload_room=0)  # else on GPUs only
    with registry.using(Registry(fresh_process.store, policy=policy)) as process:
        assert process is not None
        fast = compiled(model)
        host.wait_for_preloads()
        seen = process.counters
        graphs = process.graphs()
        assert (seen.preloads, seen.restores, seen.binds) == (len(graphs), len(graphs), 0)
        spares = [graph._runners._spare for graph in graphs]
        assert {*map(len, spares)} == {1, 2}  # two double and three single blocks, each with a runner of its own
        found, wanted = dits.sample(fast, "flux"), dits.sample(model, "flux")
        assert_close(found, wanted)
        assert (blocks()["calls"], seen.compiles, seen.restores, spares.count([])) == (10, 0, len(graphs), 2)
        compiled(dits.load("flux", dtype=torch.float64))  # there is nothing for it
        host.wait_for_preloads()
        assert seen.preloads == len(graphs)


def test_graphs_of_a_warm_up_list_serve_blocks(counters: Counters, fresh_process: Registry) -> None:
    """They are restored before any model is there."""
    model = known("flux", counters)
    check(model, "flux")
    names = [id_of(str(graph.entry.folder)) for graph in fresh_process.graphs()]
    with registry.using(Registry(fresh_process.store, policy=ANY_SPEED)) as process:
        assert process is not None
        entries = process.store.disk.entries()
        assert [warm_up.restore(name, entries) for name in names] == [True] * 2
        seen = process.counters
        assert (seen.preloads, seen.restores, seen.binds) == (2, 2, 0)
        found, wanted = dits.sample(compiled(model), "flux"), dits.sample(model, "flux")
        assert_close(found, wanted)
        assert (blocks()["calls"], seen.compiles, seen.restores) == (10, 0, 2)


def test_a_model_is_freed_without_a_collector(counters: Counters) -> None:
    known("flux", counters)
    model = dits.load("flux")
    check(model, "flux")
    block = weakref.ref(model.model.diffusion_model.single_blocks[1])
    gc.collect()
    gc.disable()
    try:
        del model
        assert block() is None
    finally:
        gc.enable()


def test_a_dtype_is_kinds_of_its_own(counters: Counters) -> None:
    known("flux", counters)
    model = dits.load("flux", dtype=torch.bfloat16)
    fast = compiled(model, when_missing="eager")
    assert torch.equal(dits.sample(fast, "flux"), dits.sample(model, "flux"))
    assert blocks()["eager_codes"] == {"no_graph": 10}


def test_the_node_says_what_it_will_do(counters: Counters) -> None:
    text = model_hook.compile_model(dits.load("flux"), model_hook.ModelNodeOptions(backend="inductor"), NODE)[1]
    assert text == "ready: block graphs for 5 blocks, inductor; starts with the first sampling step"
    text = model_hook.compile_model(dits.load("flux"), model_hook.ModelNodeOptions(backend="off"), NODE)[1]
    assert text == "off: the model runs uncompiled"


def test_while_the_host_plans_memory_blocks_are_eager(counters: Counters, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from ComfyUI 0.34 on, whose compiler records what each call allocates: by threads, while a plan is active."""
    from comfy import model_prefetch

    class Plan:
        _comfy_active = True

    model, plans = known("flux", counters), {threading.get_ident(): Plan()}
    monkeypatch.setattr(model_prefetch, "malloc_graph_begin", lambda device: None, raising=False)
    monkeypatch.setattr(model_prefetch, "MALLOC_GRAPHS", plans, raising=False)
    contract.missing.cache_clear()
    report = check(model, "flux")
    assert (report["calls"], report["eager_codes"]) == (0, {"memory_planned": 10})
    plans[threading.get_ident()]._comfy_active = False
    assert check(model, "flux")["calls"] == 10
    monkeypatch.delattr(model_prefetch, "MALLOC_GRAPHS")
    contract.missing.cache_clear()
    text = model_hook.compile_model(model, model_hook.ModelNodeOptions(backend="inductor"), NODE)[1]
    assert "comfy.model_prefetch.MALLOC_GRAPHS" in text
    monkeypatch.undo()
    contract.missing.cache_clear()
    assert check(model, "flux")["calls"] == 10


class Planning:
    """Plans memory as ComfyUI does from 0.34 on, round a model's call: by threads, unless an option turns it off."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from comfy import model_prefetch
        from comfy.cli_args import args

        self.args = args
        self.plans: dict[int, Any] = {}
        self.begun = 0
        monkeypatch.setattr(args, "disable_comfy_compiler", False, raising=False)
        monkeypatch.setattr(model_prefetch, "malloc_graph_begin", self.begin, raising=False)
        monkeypatch.setattr(model_prefetch, "malloc_graph_enabled", self.enabled, raising=False)
        monkeypatch.setattr(model_prefetch, "MALLOC_GRAPHS", self.plans, raising=False)
        contract.missing.cache_clear()

    def enabled(self, device: Any = None) -> bool:
        return not self.args.disable_comfy_compiler

    def begin(self, device: Any = None) -> None:
        if self.enabled():
            self.begun += 1
            self.plans[threading.get_ident()] = SimpleNamespace(_comfy_active=True)

    def around(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        self.begin()
        result = executor(*args, **kwargs)
        self.plans.pop(threading.get_ident(), None)
        return result

    def round(self, model: Any) -> Any:
        """The model with plans round its calls."""
        from comfy.patcher_extension import WrappersMP

        changed = model.clone()
        changed.add_wrapper_with_key(WrappersMP.DIFFUSION_MODEL, "planning", self.around)
        return changed


@pytest.fixture
def planning(counters: Counters, monkeypatch: pytest.MonkeyPatch) -> Iterator[Planning]:
    known("flux", counters)
    with monkeypatch.context() as patch:
        yield Planning(patch)
    contract.missing.cache_clear()


def test_calls_that_graphs_serve_are_made_without_a_plan(planning: Planning) -> None:
    model = planning.round(dits.load("flux"))
    wanted = dits.sample(model, "flux")
    assert planning.begun == 2  # steps
    found = dits.sample(compiled(model), "flux")
    assert_close(found, wanted)
    assert (planning.begun, planning.args.disable_comfy_compiler) == (2, False)
    assert (blocks()["calls"], blocks()["eager_codes"]) == (10, {})
    assert "ComfyUI's memory plan is off" in told()
    planning.args.disable_comfy_compiler = True  # the user's choice stays, and is nothing to tell
    dits.sample(compiled(model), "flux")
    assert planning.args.disable_comfy_compiler is True
    assert "memory plan" not in told()


def test_a_model_whose_blocks_run_eager_keeps_its_plan(planning: Planning) -> None:
    model = planning.round(dits.load("flux", dtype=torch.bfloat16))
    dits.sample(compiled(model, when_missing="eager"), "flux", steps=3)
    assert blocks()["calls"] == 0
    assert (planning.begun, planning.args.disable_comfy_compiler) == (2, False)  # all but the first


def test_plans_are_back_after_an_interrupt_and_beside_another_thread(planning: Planning) -> None:
    from onegraph.host.calls import memory_plans

    class StopError(BaseException): ...

    def stopped(executor: Any, *args: Any, **kwargs: Any) -> Any:
        assert planning.args.disable_comfy_compiler
        raise StopError

    from comfy.patcher_extension import WrappersMP

    model = planning.round(dits.load("flux"))
    model.add_wrapper_with_key(WrappersMP.DIFFUSION_MODEL, "stopped", stopped)
    with memory_plans.off(torch.device("cpu")):
        with pytest.raises(StopError):
            dits.sample(compiled(model), "flux")
        assert planning.args.disable_comfy_compiler  # another call is under way
    assert planning.args.disable_comfy_compiler is False


def test_captures_take_one_path_through_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA ComfyUI 0.33 asks how large the inputs are: which holds for a capture's alone."""
    import comfy.ops

    from onegraph.host.capture import rewrites

    of_torch = torch.nn.functional.scaled_dot_product_attention

    def by_size(q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
        return of_torch(q, k, v, *args, **kwargs) if q.nelement() < 1024 * 128 else None

    monkeypatch.setattr(comfy.ops, "scaled_dot_product_attention", by_size)
    with rewrites.settings().rewrites():
        assert comfy.ops.scaled_dot_product_attention is of_torch
    assert comfy.ops.scaled_dot_product_attention is by_size
