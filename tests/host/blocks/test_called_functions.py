"""HiDream O1 calls its blocks with an attention function and keeps the prompt's keys: compiled for any size, exact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from support.models import dits
from support.scenes.nodes import assert_close, blocks, compiled

from onegraph.runtime.counters import Counters

NAME = "hidream o1"
_TEXT = {
    "vocab_size": 152000, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "rope_dims": [6, 5, 5],
}  # fmt: skip
_VISION = {"hidden_size": 64, "num_heads": 4, "depth": 2, "intermediate_size": 96, "num_hidden_layers": 2}


def _prompt(generator: torch.Generator, sizes: Sequence[int]) -> dict[str, Any]:
    """Tokens, as many as the seed says."""
    return {"text_input_ids": torch.randint(0, 1000, (1, 9 + generator.initial_seed() % 7), generator=generator)}


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Any:
    unet = {"image_model": "hidream_o1", "text_config_overrides": _TEXT, "vision_config_overrides": _VISION}
    monkeypatch.setitem(dits.DITS, NAME, dits.Dit("HiDreamO1", unet, (3,), conds=_prompt))
    return dits.load(NAME)


def test_hidream_o1_is_compiled_for_any_size_and_interrupted_in_a_function(
    plain: Any, counters: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    import comfy.model_management
    import comfy.ops

    def sampled(model: Any, height: int, width: int, **more: Any) -> torch.Tensor:
        model.model.diffusion_model.clear_kv_cache()
        return dits.sample(model, NAME, height, width, steps=3, **more)

    def check(height: int, width: int, **more: Any) -> dict[str, Any]:
        wanted = sampled(plain, height, width, **more)
        model = compiled(plain)
        assert_close(sampled(model, height, width, **more), wanted)
        return blocks()

    assert check(128, 160, cfg=3.0)["eager_codes"].keys() == {"block_recorded"}
    assert counters.compiles == 2  # with the prompt, and after it
    for sides, more in (((128, 160), {}), ((96, 128), {"cfg": 2.0, "tokens": 12}), ((64, 224), {"batch": 2})):
        report = check(*sides, **more)
        assert (report["calls"] > 0, report["eager_codes"]) == (True, {})

    attention, calls = comfy.ops.scaled_dot_product_attention, []

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            comfy.model_management.interrupt_current_processing()
            comfy.model_management.throw_exception_if_processing_interrupted()
        return attention(*args, **kwargs)

    model = compiled(plain)
    with monkeypatch.context() as patches:
        patches.setattr(comfy.ops, "scaled_dot_product_attention", interrupted)
        with pytest.raises(comfy.model_management.InterruptProcessingException):
            sampled(model, 128, 160)
    assert len(calls) == 2
    assert not [one for one in plain.model.diffusion_model.modules() if "forward" in vars(one)]
    assert check(128, 160)["eager_codes"] == {}
    assert counters.compiles == 2
