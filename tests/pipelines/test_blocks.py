"""Models whose blocks are compiled inside diffusers' own forward: every call is eager's result, whatever happens."""

from __future__ import annotations

import contextlib
import copy
import gc
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import block_pipes
from support.models.block_pipes import BLOCKS, add_lora, latents, qwen
from support.processes import second_pipe
from support.scenes.judge import distance
from support.scenes.process import new_process

from onegraph.pipelines import compile_module, compile_pipe, load_pipe, save_pipe
from onegraph.runtime.calls.routing import Route
from onegraph.runtime.obtain.registry import Registry

EXACT = 1e-6
STEPS = 3
Change = Callable[[Any], Any]  # of a transformer; returns what was there before, which the test keeps


@pytest.fixture
def engine(blocks_home: Path) -> Iterator[Registry]:
    """A registry as in a fresh process, in which nothing compiles."""
    with new_process(blocks_home) as registry:
        yield registry
        assert registry.counters.compiles == 0


def _compiled(seed: int = 0, transformer: Any = None) -> Any:
    return compile_pipe(qwen(seed, transformer), when_missing="eager")


def _report(pipe: Any) -> Any:
    return pipe.onegraph.report()["transformer"]


def _eager(pipe: Any) -> dict[str, int]:
    """Calls of blocks that ran eager, by code."""
    found: dict[str, int] = _report(pipe).blocks["eager_codes"]
    return found


def _is_routed(pipe: Any) -> bool:
    return any(type(vars(module).get("forward")) is Route for module in pipe.transformer.modules())


# What runs compiled ---------------------------------------------------------------------------------------------


def test_images_of_all_sizes_run_compiled(engine: Registry) -> None:
    pipe, plain = _compiled(), qwen()
    for size in ({}, {"side": 96, "tokens": 30}, {"side": 32, "tokens": 1}):
        assert distance(latents(pipe, **size), latents(plain, **size)) < EXACT, size
    report = _report(pipe)
    assert (report.compiled_calls, dict(report.eager), report.blocks["calls"]) == (3 * STEPS, {}, 3 * STEPS * BLOCKS)
    assert re.fullmatch(
        r"9 calls compiled, block graphs: 2 of 2 blocks compiled, 1 kind, restored in \d+\.\d s"
        r"(, blocks \d+\.\dx (faster|as fast) at first use)?",
        report.text,
    ), report.text
    assert engine.counters.restores == 1 and not _is_routed(pipe)


def test_a_module_by_itself_runs_compiled(engine: Registry, tmp_path: Path) -> None:
    model: Any = compile_module(block_pipes.CASE.model(), when_missing="eager")
    with torch.no_grad():
        found = model(**block_pipes.arguments())[0]
        assert distance(found, block_pipes.CASE.model()(**block_pipes.arguments())[0]) < EXACT
    (report,) = model.onegraph.report().components
    assert (report.name, report.blocks["calls"]) == ("QwenImageTransformer2DModel", BLOCKS)
    model.save_graph(tmp_path / "saved")
    other: Any = compile_module(block_pipes.CASE.model(), when_missing="eager")
    other.load_graph(tmp_path / "saved")


def test_a_fresh_process_compiles_nothing(engine: Registry, blocks_home: Path, tmp_path: Path) -> None:
    """Nor does it where its user's folder has no graphs, only the key that they were signed with."""
    pipe = _compiled()
    latents(pipe)
    save_pipe(pipe, tmp_path / "saved")
    told = second_pipe.told("blocks", tmp_path / "saved", tmp_path / "home", blocks_home)
    counted = {name: told[name] for name in ("compiles", "restores", "compiled_calls", "eager_calls")}
    assert counted == {"compiles": 0, "restores": 1, "compiled_calls": STEPS * BLOCKS, "eager_calls": 0}, told
    assert told["distance"] < EXACT


def test_load_pipe_uses_saved_graphs(engine: Registry, tmp_path: Path) -> None:
    pipe = _compiled()
    latents(pipe)
    save_pipe(pipe, tmp_path / "saved")
    loaded = load_pipe(qwen(), tmp_path / "saved")
    assert distance(latents(loaded, side=96), latents(qwen(), side=96)) < EXACT
    assert _report(loaded).blocks["calls"] == STEPS * BLOCKS and not _eager(loaded)


def test_pipelines_that_share_a_transformer(engine: Registry) -> None:
    model = block_pipes.CASE.model()
    first, second = _compiled(transformer=model), _compiled(transformer=model)
    wanted = latents(qwen())
    for pipe in (first, second, first):
        assert distance(latents(pipe), wanted) < EXACT
    second.onegraph.remove()
    latents(first)
    assert _report(first).blocks["calls"] == 4 * STEPS * BLOCKS and not _eager(first)
    first.onegraph.remove()
    assert distance(latents(first), wanted) == 0.0
    assert _report(first).compiled_calls == 0


def test_models_take_turns_on_one_graph(engine: Registry) -> None:
    pipes, plain = [_compiled(seed) for seed in (0, 1)], [qwen(seed) for seed in (0, 1)]
    for _ in range(2):
        for pipe, other in zip(pipes, plain, strict=True):
            assert distance(latents(pipe), latents(other)) < EXACT
    assert engine.counters.restores == 1 and engine.counters.binds == 2 * BLOCKS


# LoRA -----------------------------------------------------------------------------------------------------------


def test_a_lora_on_changed_scaled_off_fused_and_gone(engine: Registry) -> None:
    """It runs compiled at any strength, also one that is given with a call, and without it the plain graph serves."""
    pipe, plain = _compiled(), qwen()

    def check(**given: Any) -> None:
        assert distance(latents(pipe, **given), latents(plain, **given)) < EXACT
        assert not _eager(pipe), _eager(pipe)

    before = latents(plain)
    check()
    for one in (pipe, plain):
        add_lora(one)
    check()
    assert distance(latents(plain), before) > 1e-3
    check(attention_kwargs={"scale": 0.25})
    check()
    for one in (pipe, plain):
        one.transformer.set_adapters(["style"], [0.5])
    check()
    for one in (pipe, plain):
        one.transformer.disable_lora()
    check()
    for one in (pipe, plain):
        one.transformer.enable_lora()
    check()
    for one in (pipe, plain):
        one.transformer.fuse_lora()
    check()
    for one in (pipe, plain):
        one.transformer.unfuse_lora()
        one.transformer.unload_lora()
    check()
    assert engine.counters.restores == 2 and engine.counters.eager_calls == 0


def test_an_adapter_that_is_no_plain_lora_runs_eager(engine: Registry) -> None:
    pipe, plain = _compiled(), qwen()
    for one in (pipe, plain):
        add_lora(one, use_dora=True)
    assert distance(latents(pipe), latents(plain)) == 0.0
    assert _eager(pipe) == {"adapter_layers": STEPS * BLOCKS}


# What changes a model -------------------------------------------------------------------------------------------


def _parameter(model: Any) -> Any:
    layer = model.transformer_blocks[1].attn.to_q
    old, layer.weight = layer.weight, torch.nn.Parameter(layer.weight.detach() * -2)
    return old


def _storage(model: Any) -> Any:
    weight = model.transformer_blocks[1].attn.to_q.weight
    old, weight.data = weight.data, weight.data * -2
    return old


def _in_place(model: Any) -> Any:
    with torch.no_grad():
        model.transformer_blocks[1].attn.to_q.weight.mul_(-2)


def _layer(model: Any) -> Any:
    attention = model.transformer_blocks[1].attn
    old = attention.to_q
    attention.to_q = copy.deepcopy(old)
    with torch.no_grad():
        attention.to_q.weight.mul_(-2)
    return old


def _block(model: Any) -> Any:
    old = model.transformer_blocks[1]
    model.transformer_blocks[1] = copy.deepcopy(old)
    with torch.no_grad():
        model.transformer_blocks[1].attn.to_q.weight.mul_(-2)
    return old


def _less_precise(model: Any) -> Any:
    model.transformer_blocks[1].img_norm1.eps = 0.5


def _hook(model: Any) -> Any:
    model.transformer_blocks[1].attn.to_q.register_forward_hook(lambda layer, args, output: output * -2)


def _forward(model: Any) -> Any:
    block = model.transformer_blocks[1]
    own = block.forward
    block.forward = lambda *args, **kwargs: tuple(one * 2 for one in own(*args, **kwargs))


def _inner_forward(model: Any) -> Any:
    layer = model.transformer_blocks[1].attn.to_q
    own = layer.forward
    layer.forward = lambda x: own(x) * -2


class _Processor:
    """Of the user's own."""

    def __call__(self, attn: Any, hidden_states: Any, encoder_hidden_states: Any = None, **more: Any) -> Any:
        return hidden_states * 0.5, encoder_hidden_states * 0.5


def _processor(model: Any) -> Any:
    old = model.transformer_blocks[1].attn.processor
    model.transformer_blocks[1].attn.processor = _Processor()
    return old


def _outer_layer(model: Any) -> Any:
    """No part of a block."""
    with torch.no_grad():
        model.img_in.weight.mul_(-2)


# Each with the blocks of four calls (two of two) that run eager after the change, and why.
CHANGES: dict[str, tuple[Change, dict[str, int]]] = {
    "parameter": (_parameter, {}),
    "storage": (_storage, {}),
    "in place": (_in_place, {}),
    "layer": (_layer, {}),
    "block": (_block, {}),
    "outside": (_outer_layer, {}),
    "attribute": (_less_precise, {"no_graph": 2}),
    "hook": (_hook, {"forward_hook": 2}),
    "forward": (_forward, {"block_replaced": 2}),
    "forward within": (_inner_forward, {"replaced_part": 2}),
    "processor": (_processor, {"attention_processor": 2}),
}


@pytest.mark.parametrize("when", ["between runs", "between calls"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_model_computes_what_eager_does(engine: Registry, name: str, when: str) -> None:
    change, eager = CHANGES[name]
    pipe, plain = _compiled(), qwen()
    kept: list[Any] = []

    def changed(one: Any, *more: Any) -> dict[str, Any]:
        step = more[0] if more else 0
        if step == 0:
            kept.append(change(one.transformer))
        return {}

    before = latents(pipe, steps=1)
    if when == "between runs":
        for one in (pipe, plain):
            changed(one)
        found, wanted = (latents(one, steps=2) for one in (pipe, plain))
    else:
        found, wanted = (latents(one, steps=3, callback_on_step_end=changed) for one in (pipe, plain))
    assert distance(found, wanted) < EXACT
    assert distance(found, before) > 1e-3
    if name == "block" and when == "between calls":  # a run knows the blocks that it began with
        assert _eager(pipe) in ({}, {"no_graph": 2})
    else:
        assert _eager(pipe) == eager
    assert not _is_routed(pipe)


def test_a_class_that_is_patched_runs_eager(engine: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    from diffusers.models.transformers import transformer_qwenimage

    pipe, plain = _compiled(), qwen()
    latents(pipe)
    own = transformer_qwenimage.QwenDoubleStreamAttnProcessor2_0.__call__

    def patched(self: Any, *args: Any, **kwargs: Any) -> Any:
        return tuple(one * 2 for one in own(self, *args, **kwargs))

    with monkeypatch.context() as patch:
        patch.setattr(transformer_qwenimage.QwenDoubleStreamAttnProcessor2_0, "__call__", patched)
        assert distance(latents(pipe), latents(plain)) < EXACT
        assert set(_eager(pipe)) == {"function_replaced"}
    latents(pipe)
    assert _report(pipe).blocks["calls"] == 2 * STEPS * BLOCKS


# Around a call --------------------------------------------------------------------------------------------------


def test_hooks_of_accelerate(engine: Registry) -> None:
    """One on the whole model is kept, one on a layer has its block run eager."""
    from accelerate.hooks import ModelHook, add_hook_to_module

    calls: list[int] = []

    class Counting(ModelHook):  # type: ignore[misc]
        def pre_forward(self, module: Any, *args: Any, **kwargs: Any) -> Any:
            calls.append(1)
            return args, kwargs

    pipe = _compiled()
    add_hook_to_module(pipe.transformer, Counting())
    assert distance(latents(pipe), latents(qwen())) < EXACT
    assert len(calls) == STEPS and not _eager(pipe)
    add_hook_to_module(pipe.transformer.transformer_blocks[0].attn.to_q, Counting())
    add_hook_to_module(pipe.transformer.transformer_blocks[1], Counting())
    assert distance(latents(pipe), latents(qwen())) < EXACT
    assert _eager(pipe) == {"library_hook": STEPS, "block_replaced": STEPS}


def test_gradients_and_autocast_run_eager(engine: Registry) -> None:
    model: Any = compile_module(block_pipes.CASE.model(), when_missing="eager")
    model.requires_grad_(True)
    loss = model(**block_pipes.arguments())[0].sum()
    loss.backward()
    assert model.transformer_blocks[0].attn.to_q.weight.grad.abs().sum() > 0
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        model(**block_pipes.arguments())
    (report,) = model.onegraph.report().components
    assert (report.blocks["calls"], report.blocks["eager_codes"]) == (0, {"gradients": BLOCKS, "autocast": BLOCKS})


def test_an_attention_backend_of_another_runs_eager(engine: Registry) -> None:
    from diffusers import attention_backend

    pipe = _compiled()
    latents(pipe)
    with attention_backend("_native_math"):
        assert distance(latents(pipe), latents(qwen())) < EXACT
    latents(pipe)
    assert _eager(pipe) == {"attention_backend": STEPS * BLOCKS}
    pipe.transformer.set_attention_backend("_native_math")
    try:
        latents(pipe)
        assert _eager(pipe)["attention_processor"] + _eager(pipe)["attention_backend"] == 2 * STEPS * BLOCKS
    finally:
        pipe.transformer.set_attention_backend("native")


def test_a_block_that_torch_compiles_is_left_to_it(engine: Registry) -> None:
    pipe = _compiled()
    latents(pipe)
    pipe.transformer.transformer_blocks[0].compile(backend="eager")
    try:
        assert distance(latents(pipe), latents(qwen())) < EXACT
    finally:
        torch._dynamo.reset()
    assert _eager(pipe) == {"torch_compiled": STEPS}


def test_an_exception_in_the_midst_leaves_nothing_behind(engine: Registry) -> None:
    pipe = _compiled()
    latents(pipe)
    for error in (RuntimeError, KeyboardInterrupt):
        handle = pipe.transformer.transformer_blocks[1].register_forward_pre_hook(_raising(error))
        with pytest.raises(error, match="in the midst"):
            latents(pipe)
        handle.remove()
        assert not _is_routed(pipe)
    assert distance(latents(pipe), latents(qwen())) < EXACT
    assert _report(pipe).blocks["calls"] >= 2 * STEPS * BLOCKS


def _raising(error: type[BaseException]) -> Callable[..., None]:
    def hook(module: Any, args: Any) -> None:
        raise error("in the midst")

    return hook


def test_threads_that_call_one_model(engine: Registry) -> None:
    model: Any = compile_module(block_pipes.CASE.model(), when_missing="eager")
    arguments = block_pipes.arguments()
    with torch.no_grad():
        wanted = block_pipes.CASE.model()(**arguments)[0]
    far: list[float] = []

    def call() -> None:
        with torch.no_grad():
            for _ in range(5):
                far.append(distance(model(**arguments)[0], wanted))

    threads = [threading.Thread(target=call) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(far) == 10 and max(far) < EXACT
    assert not any(type(vars(module).get("forward")) is Route for module in model.modules())


def test_a_model_is_freed_at_once(engine: Registry) -> None:
    """Called without a pipeline: diffusers' own make a model refer to itself."""
    model: Any = compile_module(block_pipes.CASE.model(), when_missing="eager")
    with torch.no_grad():
        model(**block_pipes.arguments())
    gone = [weakref.ref(model), weakref.ref(model.transformer_blocks[0])]
    with _without_collector():
        del model
        assert [one() for one in gone] == [None, None]


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
