"""The product of what changes, who changes it and when, in diffusers: the result is that of the plain pipeline to which
the same happens. Half of the cases are checked before the launch, half after it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from support.edits.cases import is_chosen
from support.edits.code import CODE
from support.edits.edit import Dropped, Edit
from support.edits.weights import REGISTERED, UNREGISTERED
from support.models import pipes
from support.models.block_pipes import latents, qwen
from support.scenes.judge import OTHER, SAME, distance
from support.scenes.places import around, hook, in_thread, once

from onegraph.graph_cache.store import Store
from onegraph.pipelines import compile_pipe
from onegraph.runtime.obtain.registry import Registry, using
from onegraph.runtime.policy import ANY_SPEED

Act = Callable[[], None]
WHAT: dict[str, Edit] = {
    name: {**CODE, **REGISTERED, **UNREGISTERED}[name]
    for name in (
        "values in place", "parameter set", "data replaced", "storage replaced", "memory freed and taken anew",
        "eps of a norm", "forward of a layer",
        "forward hook", "layer exchanged", "layer written into the table",
    )
}  # fmt: skip
ROLES: dict[str, Mapping[str, str]] = {
    "transformer": {
        "block": "transformer_blocks.1",
        "layer": "transformer_blocks.1.img_mlp.net.2",
        "norm": "transformer_blocks.1.img_norm2",
    },
    "unet": {"block": "mid_block.resnets.0", "layer": "mid_block.resnets.0.conv1", "norm": "mid_block.resnets.0.norm1"},
}
OUTSIDE = {"transformer": "img_in", "unet": "conv_in"}  # a layer of no block
STEPS = 4


class Taking:
    """One pipeline of a case.

    Attributes:
        undo: called when its run is over.
        given: to the pipeline.
    """

    def __init__(self, name: str, pipe: Any) -> None:
        self.name, self.pipe = name, pipe
        self.module = getattr(pipe, name)
        self.undo: list[Callable[[], Any]] = []
        self.given: dict[str, Any] = {}

    @property
    def outside(self) -> Any:
        return self.module.get_submodule(OUTSIDE[self.name])

    def run(self) -> torch.Tensor:
        try:
            if self.name == "transformer":
                return latents(self.pipe, steps=STEPS, **self.given)
            found = pipes.image(self.pipe, output_type="latent", steps=STEPS, **self.given)
            assert isinstance(found, torch.Tensor)
            return found
        finally:
            for undo in reversed(self.undo):
                undo()


def torch_hook(one: Taking, act: Act, at: int) -> None:
    hook(one.undo, one.module, act, at)


def torch_hook_outside(one: Taking, act: Act, at: int) -> None:
    hook(one.undo, one.outside, act, at)


def hook_on_a_block(one: Taking, act: Act, at: int) -> None:
    """Between two blocks; of a UNet, in the midst of it."""
    blocks = one.module.transformer_blocks if one.name == "transformer" else one.module.down_blocks
    hook(one.undo, blocks[0], act, at)


def _diffusers_hook(module: Any, one: Taking, act: Act, at: int) -> None:
    from diffusers.hooks import HookRegistry, ModelHook

    changed = once(act, at)

    class Hook(ModelHook):  # type: ignore[misc]
        def pre_forward(self, module: Any, *args: Any, **kwargs: Any) -> Any:
            changed()
            return args, kwargs

    registry = HookRegistry.check_if_exists_or_initialize(module)
    registry.register_hook(Hook(), "a pack's")
    one.undo.append(lambda: registry.remove_hook("a pack's"))


def diffusers_hook(one: Taking, act: Act, at: int) -> None:
    _diffusers_hook(one.module, one, act, at)


def diffusers_hook_outside(one: Taking, act: Act, at: int) -> None:
    _diffusers_hook(one.outside, one, act, at)


def accelerates_hook(one: Taking, act: Act, at: int) -> None:
    from accelerate.hooks import ModelHook, add_hook_to_module, remove_hook_from_module

    changed = once(act, at)

    class Hook(ModelHook):  # type: ignore[misc]
        def pre_forward(self, module: Any, *args: Any, **kwargs: Any) -> Any:
            changed()
            return args, kwargs

    add_hook_to_module(one.module, Hook())
    one.undo.append(lambda: remove_hook_from_module(one.module))


def wrapped_forward(one: Taking, act: Act, at: int) -> None:
    """A function over the module's forward, below which ours stands."""
    around(one.undo, one.module, "forward", act, at)


def callback(one: Taking, act: Act, at: int) -> None:
    changed = once(act, at)

    def on_step_end(pipe: Any, step: int, timestep: Any, given: dict[str, Any]) -> dict[str, Any]:
        changed()
        return given

    one.given["callback_on_step_end"] = on_step_end


def scheduler_step(one: Taking, act: Act, at: int) -> None:
    around(one.undo, one.pipe.scheduler, "step", act, at)


def another_thread(one: Taking, act: Act, at: int) -> None:
    torch_hook(one, in_thread(act), at)


WHO: dict[str, Callable[[Taking, Act, int], None]] = {
    "torch's hook": torch_hook,
    "torch's hook outside": torch_hook_outside,
    "hook on a block": hook_on_a_block,
    "diffusers' hook": diffusers_hook,
    "diffusers' hook outside": diffusers_hook_outside,
    "accelerate's hook": accelerates_hook,
    "wrapped forward": wrapped_forward,
    "callback": callback,
    "scheduler's step": scheduler_step,
    "another thread": another_thread,
}
WHEN = {"first": 1, "second": 2}
CASES = [*itertools.product(("transformer", "unet"), WHO, WHEN, WHAT)]


@pytest.fixture(scope="module")
def registries(home: Path, blocks_home: Path) -> dict[tuple[str, bool], Registry]:
    """By what is compiled, and whether graphs are launched before the check."""
    behind = dataclasses.replace(ANY_SPEED, checks_behind_on=("cpu",))
    return {
        (name, one): Registry(Store(folder), policy=behind if one else ANY_SPEED)
        for name, folder in (("unet", home), ("transformer", blocks_home))
        for one in (True, False)
    }


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    return {"transformer": qwen(), "unet": pipes.sd()}


@pytest.fixture(scope="module")
def compiled() -> dict[tuple[str, bool], Any]:
    return {}


@pytest.mark.parametrize(
    ("name", "who", "when", "what"),
    [
        pytest.param(*case, marks=[] if is_chosen(8, repr(case)) else [pytest.mark.full], id="-".join(case))
        for case in CASES
    ],
)
@torch.no_grad()
def test_a_change(
    name: str,
    who: str,
    when: str,
    what: str,
    registries: dict[tuple[str, bool], Registry],
    plain: dict[str, Any],
    compiled: dict[tuple[str, bool], Any],
) -> None:
    key = name, is_chosen(2, f"{name} {who} {when} {what}")

    def taken(pipe: Any) -> torch.Tensor:
        one = Taking(name, pipe)
        with contextlib.ExitStack() as undone:
            WHO[who](one, lambda: undone.enter_context(WHAT[what](one.module, ROLES[name], Dropped())), WHEN[when])
            return one.run()

    with using(registries[key]):
        if key not in compiled:
            compiled[key] = compile_pipe(qwen() if name == "transformer" else pipes.sd(), when_missing="eager")
        pipe = compiled[key]
        found = taken(pipe)
        told = str(pipe.onegraph.report())
    wanted, unchanged = taken(plain[name]), Taking(name, plain[name]).run()
    apart = distance(found, wanted)
    assert apart < SAME, f"relative L2 {apart:.3g} ({told})"
    assert distance(unchanged, wanted) > OTHER, "the change shows nothing"
