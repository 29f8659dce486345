"""A text model's call at other lengths: of its tokens, and of those whose keys and values it is given."""

from __future__ import annotations

from typing import Any

import torch

from onegraph.compiler.blocks.other_sizes import NewSizes
from onegraph.compiler.blocks.text_calls import ways

SIZES = NewSizes(batch=3, tokens=29, frames=1, height=1, width=1)


def shapes(found: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(one.shape) if isinstance(one, torch.Tensor) else one for name, one in found.items()}


def test_a_prompt_of_another_length() -> None:
    named = {
        "x": torch.ones(2, 7, 16),
        "mask": torch.ones(2, 7, dtype=torch.long),
        "causal": torch.ones(7, 7),
        "ropes": torch.ones(2, 1, 7, 7, 4),
        "bias": torch.ones(16),
        "heads": 7,
    }
    whole, some, fewest = (shapes(way()) for way in ways(named, SIZES))
    assert whole == {
        "x": (3, 29, 16), "mask": (3, 29), "causal": (29, 29), "ropes": (3, 1, 29, 29, 4), "bias": (16,), "heads": 7,
    }  # fmt: skip
    assert some == whole
    assert fewest == {**dict.fromkeys(named), "x": (3, 29, 16), "heads": 7}


def test_a_long_prompt_has_about_as_many() -> None:
    """Code may ask whether there are more than so many."""
    assert [way()["x"].shape for way in ways({"x": torch.ones(1, 100, 4)}, SIZES)] == [(3, 71, 4)] * 3


def test_the_next_token_after_more_tokens() -> None:
    """The cache of a call has room for more, so has that of the other call; a batch stays, which the cache has."""
    keys, values = torch.ones(2, 4, 12, 8), torch.ones(2, 4, 12, 8)
    found = ways({"x": torch.ones(2, 1, 16), "cache": [(keys, values, 9), ()]}, SIZES)[0]()
    assert found["x"].shape == (2, 1, 16)
    (new_keys, new_values, count), nothing = found["cache"]
    assert count == 9 + 29 and nothing == ()
    assert new_keys.shape == new_values.shape == (2, 4, 9 + 29 + 1 + 29, 8)


def test_what_is_no_text_has_no_other_lengths() -> None:
    assert ways({"x": torch.ones(2, 3)}, SIZES) == []
