"""Texts whose tokens' steps are replayed, by small models of ComfyUI's own classes: the tokens are eager's.

There is no GPU here: in place of a CUDA graph, a function runs the graphs again with what the capture has read.
tests/gpu has the same with CUDA graphs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.comfyui import texts
from support.scenes.nodes import compiled_clip

from onegraph.backends import cuda_graphs
from onegraph.host.families import text_blocks
from onegraph.runtime.graphs.captures import Captures
from onegraph.runtime.graphs.loaded_graph import LoadedGraph
from onegraph.runtime.graphs.step_replay import StepReplay
from onegraph.runtime.obtain.registry import Registry

pytestmark = pytest.mark.usefixtures("inference", "graphs_home")
LAUNCHED = 6  # a prompt, the first tokens, by which weights are bound, and three alike


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, fresh_process: Registry) -> list[StepReplay]:
    """All runs' steps, of this test."""
    found: list[StepReplay] = []
    made = StepReplay.__init__

    def captured(function: Callable[[], torch.Tensor], device: torch.device) -> Any:
        results = function()
        return SimpleNamespace(replay=lambda: results.copy_(function())), results

    def noted(self: StepReplay) -> None:
        made(self)
        found.append(self)

    monkeypatch.setattr(StepReplay, "__init__", noted)
    monkeypatch.setattr(cuda_graphs, "captured", captured)
    monkeypatch.setattr(text_blocks, "REPLAYED_ON", ("cpu",))
    monkeypatch.setattr(Captures, "possible", property(lambda self: True, lambda self, value: None), raising=False)
    monkeypatch.setattr(LoadedGraph, "launched", lambda self, bound, inputs: bound.runner(*inputs))
    fresh_process.policy = dataclasses.replace(fresh_process.policy, checks_behind_on=("cpu",), checks_share=0.0)
    return found


def check(fast: Any, clip: Any, prompt: int, length: int, **settings: Any) -> list[int]:
    asked = texts.tokens(prompt)
    found: list[int] = fast.generate(asked, max_length=length, **settings)
    assert found == clip.generate(asked, max_length=length, **settings)
    return found


@pytest.mark.parametrize(
    "name", ["qwen 3", *(pytest.param(one, marks=pytest.mark.full) for one in ("ministral 3", "gemma 3"))]
)
def test_tokens_are_those_of_eager(name: str, steps: list[StepReplay], fresh_process: Registry) -> None:
    clip, fast = texts.load(name), compiled_clip(texts.load(name))
    counters = fresh_process.counters
    for compiles in (None, "none more"):
        before = counters.compiles
        for prompt, length in ((17, 60), (5, 20), (90, 30)):
            check(fast, clip, prompt, length, do_sample=True, top_k=40, seed=5)
            assert steps[-1].replays >= length - LAUNCHED or compiles is None
    assert counters.compiles == before and counters.compiled_calls


@pytest.fixture
def check_changing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """As `check`, of texts of 24 tokens; `change(model, n)` is called at the n-th token of each."""

    def checked(fast: Any, clip: Any, change: Callable[[Any, int], None]) -> list[int]:
        cls: Any = type(clip.cond_stage_model.text.transformer)
        sampled, tokens = cls.sample_token, []

        def changing(self: Any, *args: Any, **kwargs: Any) -> Any:
            tokens.append(1)
            change(self.model, len(tokens) % 24)
            return sampled(self, *args, **kwargs)

        with monkeypatch.context() as patched:
            patched.setattr(cls, "sample_token", changing)
            return check(fast, clip, 9, 24, do_sample=False)

    return checked


def test_weights_that_change_in_the_midst_of_a_text(
    steps: list[StepReplay], check_changing: Callable[..., list[int]]
) -> None:
    """In place, and for other tensors, as at a token that a sampler is about to choose."""
    clip, fast = texts.load("qwen 3"), compiled_clip(texts.load("qwen 3"))
    unchanged = check(fast, clip, 9, 24, do_sample=False)

    def change(model: Any, token: int) -> None:
        if token == 12:
            model.layers[1].mlp.up_proj.weight.mul_(-2)
        if token == 18:
            layer = model.layers[2].self_attn.o_proj
            layer.weight = torch.nn.Parameter(layer.weight.detach() * -2, requires_grad=False)

    changed = check_changing(fast, clip, change)
    assert changed[:12] == unchanged[:12] and changed != unchanged
    assert steps[-1].replays > 10


def test_a_hook_on_a_block_in_the_midst_of_a_text(
    steps: list[StepReplay], check_changing: Callable[..., list[int]]
) -> None:
    clip, fast = texts.load("qwen 3"), compiled_clip(texts.load("qwen 3"))
    unchanged = check(fast, clip, 9, 24, do_sample=False)

    def change(model: Any, token: int) -> None:
        if token == 12:
            model.layers[1].register_forward_hook(lambda module, args, result: (-result[0], result[1]))

    assert check_changing(fast, clip, change) != unchanged
    assert steps[-1].replays > 5


def test_another_packs_forward_around_the_blocks(steps: list[StepReplay], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows what it does between them: all are launched."""
    clip, fast = texts.load("qwen 3"), compiled_clip(texts.load("qwen 3"))
    cls: Any = type(clip.cond_stage_model.text.transformer.model)
    own = cls.forward

    @functools.wraps(own)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return own(self, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(cls, "forward", forward)
        check(fast, clip, 9, 24, do_sample=False)
    assert not steps[-1].replays
    check(fast, clip, 9, 24, do_sample=False)
    assert steps[-1].replays > 10
