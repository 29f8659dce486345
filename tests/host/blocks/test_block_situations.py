"""Block graphs for long, and what happens in the middle: many prompts, two models in turns, errors, interrupts."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from support.comfyui.shared_graphs import SharedGraphs, dit_graphs
from support.dit_matrix import around, inside, steering, weights
from support.models import dits
from support.scenes.judge import FURTHEST, distance
from support.scenes.nodes import assert_close, compiled, restored
from support.scenes.sampling import Addition, Sampling, settings

from onegraph.host.show import progress
from onegraph.runtime.counters import Counters

PROMPTS = 60
MOST_GROWTH = 48 << 20  # bytes of 50 prompts, of which allocators keep some


@pytest.fixture
def flux(graphs_home: Path, shared_graphs: SharedGraphs) -> Any:
    shared_graphs.give(graphs_home, None, *dit_graphs("flux"))
    return dits.load("flux")


def sampled(model: Any, *added: Addition, fast: Callable[[Any], Any] = lambda one: one) -> torch.Tensor:
    sampling = Sampling("flux", model)
    for add in added:
        add(sampling)
    sampling.model = fast(sampling.model)
    return sampling.run()


def same(model: Any, *added: Addition) -> None:
    found, wanted = sampled(model, *added, fast=restored), sampled(model, *added)
    assert_close(found, wanted)


def routes(model: Any) -> list[str]:
    return [name for name, one in model.model.diffusion_model.named_modules() if "forward" in vars(one)]


def test_two_models_in_turns(flux: Any, counters: Counters) -> None:
    """Both are loaded, and share graphs."""
    other = dits.load("flux", seed=9)
    first, second = restored(flux), restored(other)
    for _ in range(3):
        for plain, fast in ((flux, first), (other, second)):
            assert_close(sampled(fast), sampled(plain))
    assert counters.compiles == counters.eager_calls == 0
    assert counters.restores == 2


def test_two_models_in_each_step(flux: Any, counters: Counters) -> None:
    other = dits.load("flux", seed=9)

    def both(one: Callable[[Any], Any]) -> torch.Tensor:
        sampling = Sampling("flux", one(flux), steps=3)
        around.dual_model(sampling)
        sampling.second = one(other)
        return sampling.run()

    assert_close(both(restored), both(lambda model: model))
    assert counters.eager_calls == 0


@pytest.mark.parametrize("at", [1, 2, 7])
def test_an_exception_in_the_middle(at: int, flux: Any, counters: Counters) -> None:
    """In a patch after a block, in the first call or a later one."""
    calls: list[int] = []

    def fails(args: Any, extra: Any) -> Any:
        calls.append(1)
        if len(calls) == at:
            raise RuntimeError("in the middle")
        return extra["original_block"](args)

    changed = flux.clone()
    for kind, number in (("double_block", 0), ("single_block", 1)):
        changed.set_model_patch_replace(fails, "dit", kind, number)
    with pytest.raises(RuntimeError, match="in the middle"):
        sampled(restored(changed), settings(steps=6))
    assert not routes(flux)
    same(flux)
    assert counters.eager_calls == 0


def test_an_interrupt_in_mid_sampling(flux: Any, counters: Counters) -> None:
    import comfy.model_management

    seen: list[int] = []

    def interrupted(args: dict[str, Any]) -> dict[str, Any]:
        seen.append(1)
        if len(seen) == 2:
            comfy.model_management.interrupt_current_processing()
            comfy.model_management.throw_exception_if_processing_interrupted()
        return args

    changed = flux.clone()
    changed.set_model_patch(interrupted, "post_input")
    with pytest.raises(comfy.model_management.InterruptProcessingException):
        sampled(restored(changed), settings(steps=4))
    assert not routes(flux)
    same(flux)
    assert counters.eager_calls == 0


def test_an_interrupt_of_the_compile(flux: Any, counters: Counters, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the sampling; no process is left, and the next sampling is right."""
    import comfy.model_management

    say = progress.CompileProgress.__call__

    def interrupted(self: Any, state: Any) -> None:
        comfy.model_management.interrupt_current_processing()
        say(self, state)

    half = dits.load("flux", dtype=torch.bfloat16)  # of which there are no graphs
    with monkeypatch.context() as patches:
        patches.setattr(progress.CompileProgress, "__call__", interrupted)
        fast = compiled(half)
        with pytest.raises(comfy.model_management.InterruptProcessingException):
            sampled(fast)
    assert counters.compiles == 0 and not routes(half)
    assert not [one for one in psutil.Process().children(recursive=True) if "worker.py" in " ".join(one.cmdline())]
    plain = sampled(half)
    assert torch.equal(sampled(restored(half)), plain)
    same(flux)


TURNS: tuple[tuple[Addition, ...], ...] = (
    (),
    (weights.lora(0.7),),
    (settings(height=20, width=12, batch=2),),
    (settings(tokens=(40, 9)), inside.replaced_block("double_block", 1)),
    (steering.references(1), settings(cfg=1.0)),
    (inside.skip_layers("1", "0"),),
    (inside.attention_override,),
    (weights.lora(-0.4, seed=8), around.easy_cache),
)


@pytest.mark.full
def test_sixty_prompts_leave_nothing(flux: Any, counters: Counters) -> None:
    process = psutil.Process()

    def measured() -> tuple[int, int, int]:
        gc.collect()
        return process.memory_info().rss, process.num_fds(), process.num_threads()

    sizes: list[tuple[int, int, int]] = []
    for number in range(PROMPTS):
        added = (*TURNS[number % len(TURNS)], settings(seed=number))
        found, wanted = sampled(flux, *added, fast=restored), sampled(flux, *added)
        assert distance(found, wanted) < FURTHEST, number
        sizes.append(measured())
    assert (counters.compiles, counters.restores, counters.eager_calls) == (0, 4, 0), counters.reasons
    assert not routes(flux)
    early, late = sizes[10], sizes[-1]
    assert late[0] - early[0] < MOST_GROWTH, [size[0] >> 20 for size in sizes[::10]]
    assert late[1:] == early[1:], sizes[::10]
