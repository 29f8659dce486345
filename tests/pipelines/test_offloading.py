"""Blocks whose weights diffusers brings for each call: compiled, right, and gone again after it.

On a CPU the weights are brought from the disk, so that they lie elsewhere at each call and nowhere between calls.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.hooks import HookRegistry, ModelHook, apply_group_offloading
from support.models.block_pipes import BLOCKS, add_lora, latents, qwen
from support.scenes.judge import distance
from torch.multiprocessing.reductions import StorageWeakRef

from onegraph.pipelines import compile_pipe
from onegraph.runtime.obtain.registry import Registry

from .test_blocks import EXACT, STEPS, _compiled, _eager, _is_routed, _report, engine

__all__ = ["engine"]  # a fixture


def offload(pipe: Any, folder: Path, group: int = 1, **options: Any) -> Any:
    """As `enable_group_offload` does, for a model on a CPU."""
    given = {"offload_type": "block_level", "num_blocks_per_group": group, **options}
    apply_group_offloading(
        pipe.transformer, torch.device("cpu"), torch.device("cpu"), offload_to_disk_path=str(folder), **given
    )
    return pipe


def hooks_of(pipe: Any) -> Iterator[Any]:
    for block in pipe.transformer.transformer_blocks:
        yield block._diffusers_hook


@pytest.mark.parametrize(("group", "first"), [(1, "compiled"), (2, "offloaded")])
def test_blocks_run_compiled(engine: Registry, tmp_path: Path, group: int, first: str) -> None:
    plain = latents(qwen()), latents(qwen(), side=96, tokens=30)
    if first == "compiled":
        pipe = offload(_compiled(), tmp_path, group)
    else:
        pipe = compile_pipe(offload(qwen(), tmp_path, group), when_missing="eager")
    assert distance(latents(pipe), plain[0]) < EXACT
    assert distance(latents(pipe, side=96, tokens=30), plain[1]) < EXACT
    report = _report(pipe)
    assert (report.blocks["calls"], _eager(pipe)) == (2 * STEPS * BLOCKS, {}), report
    assert report.blocks["streamed"] == BLOCKS and f"0 resident, {BLOCKS} streamed" in report.text
    assert report.blocks["streamed_bytes"] > 0 and not _is_routed(pipe)
    weights = pipe.transformer.transformer_blocks[0].state_dict()
    assert len({one.data_ptr() for one in weights.values()}) == len(weights)


def test_the_weights_are_those_of_each_call(engine: Registry, tmp_path: Path) -> None:
    """Others in the files from now on: a graph reads what was brought, not what was there before."""
    from safetensors.torch import load_file, save_file

    pipe = offload(_compiled(), tmp_path)
    before = latents(pipe)
    for file in tmp_path.glob("*.safetensors"):
        save_file({name: one * 1.25 for name, one in load_file(file).items()}, file)
    eager = offload(qwen(), tmp_path)  # the files are there: it takes what they have
    wanted = latents(eager)
    assert distance(latents(pipe), wanted) < EXACT < 1e-3 < distance(before, wanted)
    assert not _eager(pipe)


def test_nothing_of_a_call_is_kept(engine: Registry, tmp_path: Path) -> None:
    pipe = offload(_compiled(), tmp_path)
    latents(pipe)
    brought: list[StorageWeakRef] = []
    group = next(hooks_of(pipe)).hooks["group_offloading"].group
    onload = group.onload_

    def watched() -> None:
        onload()
        weights = [one for module in group.modules for one in module.parameters()]
        brought.extend(StorageWeakRef(one.untyped_storage()) for one in weights)
        assert not any(one.expired() for one in brought[-len(weights) :])

    group.onload_ = watched
    latents(pipe)
    gc.collect()
    assert len(brought) > 10 and all(one.expired() for one in brought)
    assert not _eager(pipe)


def test_removed_and_compiled_again(engine: Registry, tmp_path: Path) -> None:
    """The hooks stay, and what stands behind them comes and goes."""
    pipe, wanted = offload(_compiled(), tmp_path), latents(qwen())
    latents(pipe)
    pipe.onegraph.remove()
    before = engine.counters.compiled_calls
    assert distance(latents(pipe), wanted) < EXACT
    assert engine.counters.compiled_calls == before
    compile_pipe(pipe, when_missing="eager")
    assert distance(latents(pipe), wanted) < EXACT
    # The report goes on from where it was.
    assert (_report(pipe).blocks["calls"], _eager(pipe)) == (2 * STEPS * BLOCKS, {}), _report(pipe)


def test_a_lora_of_an_offloaded_model(engine: Registry, tmp_path: Path) -> None:
    pipe, plain = _compiled(), qwen()
    for one in (pipe, plain):
        add_lora(one)
    offload(pipe, tmp_path)
    for strength in (1.0, 0.3):
        for one in (pipe, plain):
            one.transformer.set_adapters(["style"], [strength])
        assert distance(latents(pipe), latents(plain)) < EXACT
    assert (_report(pipe).blocks["calls"], _eager(pipe)) == (2 * STEPS * BLOCKS, {})


def test_offloading_that_ends(engine: Registry, tmp_path: Path) -> None:
    pipe, wanted = offload(_compiled(), tmp_path), latents(qwen())
    assert distance(latents(pipe), wanted) < EXACT
    for registry in (*hooks_of(pipe), pipe.transformer._diffusers_hook):
        registry.hooks["group_offloading"].group.onload_()
        registry.remove_hook("group_offloading", recurse=False)
    assert distance(latents(pipe), wanted) < EXACT
    report = _report(pipe)
    assert (report.blocks["calls"], _eager(pipe), report.blocks["streamed"]) == (2 * STEPS * BLOCKS, {}, 0)


class Louder(ModelHook):
    """Somebody else's."""

    def post_forward(self, module: Any, output: Any) -> Any:
        return tuple(one * 1.5 for one in output) if isinstance(output, tuple) else output * 1.5


@pytest.mark.parametrize("where", ["over", "below"])
def test_another_hook_on_a_block_is_called(engine: Registry, tmp_path: Path, where: str) -> None:
    """It is called as by eager; its block is not compiled."""
    pipe, plain = _compiled(), qwen()
    if where == "over":
        offload(pipe, tmp_path)
    for one in (pipe, plain):
        block = one.transformer.transformer_blocks[0]
        HookRegistry.check_if_exists_or_initialize(block).register_hook(Louder(), "louder")
    if where == "below":
        offload(pipe, tmp_path)
    assert distance(latents(pipe), latents(plain)) < EXACT
    assert _eager(pipe) == {"block_replaced": STEPS}
    assert _report(pipe).blocks["calls"] == STEPS * (BLOCKS - 1)


def test_a_forward_that_was_exchanged_within_the_hooks(engine: Registry, tmp_path: Path) -> None:
    pipe, plain = offload(_compiled(), tmp_path), qwen()
    for one in (pipe, plain):
        block = one.transformer.transformer_blocks[0]
        own = type(block).forward.__get__(block)

        def louder(*args: Any, own: Any = own, **kwargs: Any) -> Any:
            return tuple(1.5 * part for part in own(*args, **kwargs))

        if one is plain:
            block.forward = louder
        else:
            block._diffusers_hook._fn_refs[0].forward = louder
    assert distance(latents(pipe), latents(plain)) < EXACT
    assert _eager(pipe) == {"block_replaced": STEPS}


def test_an_error_in_the_midst_leaves_the_hooks_as_they_were(engine: Registry, tmp_path: Path) -> None:
    pipe, wanted = offload(_compiled(), tmp_path), latents(qwen())
    latents(pipe)
    last = pipe.transformer.norm_out
    raising = last.register_forward_pre_hook(lambda *args: (_ for _ in ()).throw(RuntimeError("planted")))
    with pytest.raises(RuntimeError, match="planted"):
        latents(pipe)
    raising.remove()
    for registry in hooks_of(pipe):
        block = registry._module_ref
        assert registry._fn_refs[0].forward == type(block).forward.__get__(block)
    assert distance(latents(pipe), wanted) < EXACT
    assert not _eager(pipe)


def test_offloading_within_blocks_runs_eager(engine: Registry, tmp_path: Path) -> None:
    pipe = offload(_compiled(), tmp_path, offload_type="leaf_level")
    assert distance(latents(pipe), latents(qwen())) < EXACT
    assert set(_eager(pipe)) == {"library_hook"}, _report(pipe)
