"""Texts on a GPU: each token's step is replayed as one CUDA graph, and the tokens are those of the uncompiled model."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import NODE

LAUNCHED = 6  # a prompt, the first tokens, by which weights are bound, and three alike


@pytest.mark.usefixtures("base", "engine")
def test_tokens_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    from support.comfyui import texts

    from onegraph.host.calls.clip_hook import ClipNodeOptions, compile_clip
    from onegraph.runtime.graphs.step_replay import StepReplay

    # In 16 bits another sum rounds otherwise, and from there on other tokens are drawn.
    monkeypatch.setattr("comfy.model_management.should_use_bf16", lambda *args, **kwargs: False)
    steps: list[Any] = []
    made = StepReplay.__init__

    def noted(self: StepReplay) -> None:
        made(self)
        steps.append(self)

    monkeypatch.setattr(StepReplay, "__init__", noted)
    clip, own = (texts.load("qwen 3") for _ in range(2))
    fast = compile_clip(own, ClipNodeOptions(backend="inductor"), NODE)[0]
    for seed, (prompt, length) in enumerate(((9, 40), (30, 60), (17, 60))):
        asked = texts.tokens(prompt)
        tokens = [one.generate(asked, max_length=length, do_sample=True, top_k=40, seed=seed) for one in (fast, clip)]
        assert tokens[0] == tokens[1]
    assert steps[-1].replays >= length - LAUNCHED
