"""Text models of ComfyUI's own classes, small: their tokens are eager's, and graphs serve all lengths."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from support.comfyui import texts
from support.scenes.nodes import NODE, compiled_clip, told
from support.scenes.process import new_process

from onegraph.common import reasons
from onegraph.common.refused import Refused
from onegraph.runtime.counters import Counters
from onegraph.runtime.graphs.faithfulness import relative_l2

pytestmark = pytest.mark.usefixtures("inference")
SAME = 1e-5  # relative L2
SAMPLED = {"do_sample": True, "temperature": 1.0, "top_k": 40, "top_p": 0.95, "min_p": 0.01, "seed": 5}
GREEDY = {"do_sample": False}
QUICK = ("qwen 3", "clip")  # whose graphs `make test` compiles; the second's blocks write into what they are given
SMALL = [name for name, one in texts.TEXTS.items() if not one.tokenizer[0]]
GENERATING = [name for name in SMALL if texts.TEXTS[name].generates]
LENGTHS = ((17, 60), (5, 8), (90, 12))  # of prompts and of texts


def marked(names: list[str]) -> list[Any]:
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.full) for name in names]


def check(fast: Any, clip: Any, prompt: int, length: int, **settings: Any) -> list[int]:
    """The same tokens as eager's."""
    asked, settings = texts.tokens(prompt), settings or SAMPLED
    found: list[int] = fast.generate(asked, max_length=length, **settings)
    assert found == clip.generate(asked, max_length=length, **settings)
    return found


@pytest.mark.parametrize("name", marked(GENERATING))
def test_tokens_of_any_length(name: str, counters: Counters, graphs_home: Path) -> None:
    """Two calls are eager, of a prompt and of a token; then graphs serve all, other weights, and another process."""
    clip, fast, small = texts.load(name), compiled_clip(texts.load(name)), texts.TEXTS[name]
    blocks = small.config["num_hidden_layers"]
    check(fast, clip, 9, 60)
    assert counters.compiles and counters.compiled_calls
    check(fast, clip, 77, 2)
    compiles, before = counters.compiles, counters.eager_calls
    if not small.windows:  # blocks that attend to some tokens alone have more kinds of calls
        assert (before, compiles) == (2 * blocks + small.loops, 3 if small.loops else 2), counters.reasons
    for prompt, length in LENGTHS:
        check(fast, clip, prompt, length)
        check(fast, clip, prompt, length, **GREEDY)
    looped = 2 * len(LENGTHS) * small.loops
    assert (counters.eager_calls - looped, counters.compiles) == (before, compiles), counters.reasons
    assert told(f"{NODE}:generation").startswith(f"block graphs: {blocks} of {blocks} blocks compiled")

    with new_process(graphs_home) as fresh:
        check(compiled_clip(texts.load(name, seed=6)), texts.load(name, seed=6), 21, 12)
        assert (fresh.counters.compiles, fresh.counters.eager_calls) == (0, small.loops), fresh.counters.reasons
        assert fresh.counters.compiled_calls and fresh.counters.restores


@pytest.mark.parametrize("name", marked([name for name in SMALL if texts.TEXTS[name].encodes]))
def test_prompts_of_any_length(name: str, counters: Counters, graphs_home: Path) -> None:
    clip, fast = texts.load(name), compiled_clip(texts.load(name))
    lengths = (77,) if name == "clip" else (9, 77, 30, 17, 5, 90)  # which pads all prompts
    asked = [texts.tokens(length, chunks=chunks) for chunks in (1, 3, 2) for length in lengths]
    for number, one in enumerate(asked):
        if number == 2:
            before = counters.compiles, counters.eager_calls
        found, wanted = fast.encode_from_tokens(one), clip.encode_from_tokens(one)
        assert found.shape == wanted.shape
        assert relative_l2(found, wanted) < SAME
    looped = (len(asked) - 2) * texts.TEXTS[name].loops
    assert before[0] and (counters.compiles, counters.eager_calls - looped) == before, counters.reasons
    assert counters.compiled_calls


def test_only_what_was_chosen(counters: Counters, graphs_home: Path) -> None:
    clip = texts.load("qwen 3")
    asked = texts.tokens(9)
    fast = compiled_clip(clip, parts="generation")
    fast.encode_from_tokens_scheduled(asked)
    fast = compiled_clip(clip, parts="encoding")
    fast.generate(asked, max_length=3, **GREEDY)
    off = compiled_clip(fast, backend="off")
    assert off is not clip and type(off) is type(clip) and not hasattr(off, "onegraph")
    assert (counters.compiles, counters.compiled_calls, counters.eager_calls) == (0, 0, 0)


def test_a_clone_with_a_lora_is_compiled_too(counters: Counters, graphs_home: Path) -> None:
    """As LoRA loaders make it, at two strengths, and without."""
    clip, fast = texts.load("qwen 3"), compiled_clip(texts.load("qwen 3"), parts="generation")
    unpatched = check(fast, clip, 9, 12)
    before = counters.compiles, counters.eager_calls
    key = "text.transformer.model.layers.1.mlp.up_proj.weight"
    patch = {key: ("diff", (0.2 * torch.randn(96, 64, generator=torch.Generator().manual_seed(3)),))}
    results = []
    for strength in (1.0, -0.5):
        pair = fast.clone(), clip.clone()
        for one in pair:
            assert one.add_patches(patch, strength) == [key]
        results.append(check(*pair, 9, 12))
    assert results[0] != unpatched
    assert check(fast, clip, 9, 12) == unpatched
    assert (counters.compiles, counters.eager_calls) == before, counters.reasons


def test_copies_that_other_packs_make(counters: Counters, graphs_home: Path) -> None:
    """By `copy`, and by a clone of the CLIP's own class."""
    clip = texts.load("qwen 3")

    class Another(type(clip)):  # type: ignore[misc]
        def clone(self, *args: Any, **kwargs: Any) -> Any:
            return copy.copy(self)

    clip.__class__ = Another
    fast = compiled_clip(clip, when_missing="eager")
    for one in (copy.copy(fast), copy.deepcopy(fast), fast.clone(), fast.clone().clone()):
        assert isinstance(one, Another) and one.onegraph is fast.onegraph
        check(one, clip, 9, 3)
    assert counters.eager_calls + counters.compiled_calls == 4 * 9  # an earlier test's graphs may be at hand


@pytest.mark.parametrize("name", marked(["qwen 3", "gemma 3"]))
def test_weights_that_are_cast(name: str, counters: Counters, graphs_home: Path) -> None:
    """In bfloat16, where the host computes in float32. Gemma's norms add 1 to their weights first, which rounds."""
    clip, fast = (texts.load(name, torch.bfloat16) for _ in range(2))
    fast = compiled_clip(fast)
    check(fast, clip, 9, 30)
    eager, asked = counters.eager_calls, texts.tokens(30, chunks=2)
    assert counters.compiles >= 2 and counters.compiled_calls
    for _ in range(2):
        assert relative_l2(fast.encode_from_tokens(asked), clip.encode_from_tokens(asked)) < SAME
    assert counters.eager_calls <= eager + 3, counters.reasons  # a form that the text did not have


@pytest.mark.parametrize("after", [0, 3])
def test_an_interrupt_leaves_all_as_it_was(
    after: int, counters: Counters, graphs_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip, fast = texts.load("qwen 3"), compiled_clip(texts.load("qwen 3"), when_missing="eager")
    check(fast, clip, 9, 6)
    model, calls = fast.cond_stage_model, []
    before = [set(vars(one)) for one in model.modules()]
    sampled = type(model.text.transformer).sample_token

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) > after:
            raise InterruptedError("by the user")
        return sampled(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(type(model.text.transformer), "sample_token", interrupted)
        with pytest.raises(InterruptedError):
            fast.generate(texts.tokens(9), max_length=6, **GREEDY)
    assert [set(vars(one)) for one in model.modules()] == before
    check(fast, clip, 9, 6)


def test_other_models_pass_through() -> None:
    from onegraph.host.calls.clip_hook import ClipNodeOptions, compile_clip

    clip = texts.load("clip")
    for module in clip.cond_stage_model.modules():
        if isinstance(module, torch.nn.ModuleList):
            for layer in module:
                cls: Any = type(layer)
                layer.__class__ = type("Another", (cls,), {})
    passed, text = compile_clip(clip, ClipNodeOptions(), NODE)
    assert type(passed) is type(clip)
    assert text == "uncompiled: SD1ClipModel has no blocks of texts that OneGraph compiles"


def test_where_no_graph_serves_tokens_they_are_not_looked_at(
    counters: Counters, graphs_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few times in each text; that takes longer than a block on a fast device."""
    from onegraph.runtime.calls.session import BlockRun

    clip, looked = texts.load("qwen 3"), []

    def refused(self: Any, *args: Any) -> Any:
        looked.append(1)
        return Refused(reasons.NoGraph())

    fast = compiled_clip(clip, when_missing="eager")
    monkeypatch.setattr(BlockRun, "_serve", refused)
    check(fast, clip, 9, 20)
    assert len(looked) == 4 * len(clip.cond_stage_model.text.transformer.model.layers)
    assert told(f"{NODE}:generation").startswith("uncompiled: no graph is cached")
