"""Calls whose sizes tensors alone do not tell: the numbers beside them, prompts joined with images, lists of images."""

from __future__ import annotations

from typing import Any

import torch

from onegraph.compiler.blocks.other_sizes import NewSizes, Varying
from onegraph.compiler.blocks.readings import ByPlace, ways

SIZES = NewSizes(batch=3, tokens=29, frames=5, height=24, width=40)


def by_value(**named: Any) -> list[dict[str, Any]]:
    """The call read by value, in each way."""
    readings = [way for way in ways(named, SIZES, Varying()) if way.args[0].func is not ByPlace]  # type: ignore[attr-defined]
    return [way() for way in readings]


def made(number: int = 0, **named: Any) -> dict[str, Any]:
    return by_value(**named)[number]


def test_an_image_as_tokens_and_its_sides_as_numbers() -> None:
    found = made(
        hidden=torch.ones(2, 48, 16),
        text=torch.ones(2, 7, 24),
        mask=torch.ones(2, 7, dtype=torch.long),
        img_shapes=[[(1, 8, 6)], [(1, 8, 6)]],
        img_ids=torch.ones(48, 3),
    )
    assert found["hidden"].shape == (3, 240, 16) and found["img_ids"].shape == (240, 3)
    assert found["text"].shape == (3, 29, 24) and found["mask"].shape == (3, 29)
    assert found["img_shapes"] == [[(1, 12, 20)]] * 3


def test_a_batch_of_one_becomes_more_and_its_images_stay_one_each() -> None:
    found = made(hidden=torch.ones(1, 48, 16), text=torch.ones(1, 7, 24), img_shapes=[[(1, 8, 6)]])
    assert found["hidden"].shape == (3, 240, 16) and found["text"].shape == (3, 29, 24)
    assert found["img_shapes"] == [[(1, 12, 20)]] * 3


def test_a_video_as_tokens() -> None:
    found = made(
        hidden=torch.ones(2, 240, 4), text=torch.ones(2, 7, 24), num_frames=5, height=8, width=6, return_dict=False
    )
    assert found["hidden"].shape == (3, 1200, 4)
    assert (found["num_frames"], found["height"], found["width"], found["return_dict"]) == (5, 12, 20, False)


def test_a_mask_of_prompt_and_image_keeps_its_two_parts() -> None:
    mask = torch.cat([torch.zeros(2, 7), torch.ones(2, 48)], 1).bool()
    found = made(hidden=torch.ones(2, 48, 16), text=torch.ones(2, 7, 24), mask=mask)
    assert found["mask"].shape == (3, 29 + 240)
    assert not found["mask"][:, :29].any() and found["mask"][:, 29:].all()


def test_channels_may_be_the_last_side_or_the_second() -> None:
    video = torch.ones(2, 5, 8, 6, 4)
    shapes = [tuple(one["hidden"].shape) for one in by_value(hidden=video, rope=torch.ones(60, 16))]
    assert (3, 5, 24, 40, 4) in shapes and (2, 5, 24, 40, 4) in shapes  # with the batch, and without
    found = made(number=2, hidden=video, rope=torch.ones(60, 16), rows=torch.arange(4), pooled=torch.ones(2, 8))
    assert found["rope"].shape == (1200, 16) and found["rows"].shape == (12,) and found["pooled"].shape == (3, 8)


def test_an_image_of_colours_has_large_patches_and_its_prompt_whole_numbers() -> None:
    """HiDream O1: tokens of a prompt and of the image in one sequence, of which positions are counted beforehand."""
    tokens, patches = 9, 4 * 5
    named = {
        "x": torch.ones(1, 3, 128, 160),
        "t": torch.ones(1),
        "input_ids": torch.arange(tokens)[None],
        "position_ids": torch.arange(tokens + patches).repeat(1, 3, 1),
        "mask": (torch.arange(tokens + patches) >= tokens)[None],
        "ar_len": tokens - 1,
    }
    others = by_value(**named)
    found = next(one for one in others if one["x"].shape == (3, 3, 192, 320))
    assert found["input_ids"].shape == (3, 29) and found["ar_len"] == 28
    assert found["position_ids"].shape == (3, 3, 29 + 60) and found["mask"].shape == (3, 29 + 60)
    assert not found["mask"][:, :29].any() and found["mask"][:, 29:].all()
    assert any(one["x"].shape == (1, 3, 192, 320) for one in others)


def test_images_in_a_list() -> None:
    call = {"x": [torch.ones(4, 1, 8, 6)] * 2, "t": torch.ones(2), "text": [torch.ones(7, 24)] * 2}
    named = ways(call, SIZES, Varying())[0]()
    assert [one.shape for one in named["x"]] == [(4, 1, 24, 40)] * 3
    assert [one.shape for one in named["text"]] == [(29, 24)] * 3 and named["t"].shape == (3,)


def test_a_call_without_an_image_has_no_other_sizes() -> None:
    assert ways({"x": torch.ones(3), "n": 4}, SIZES, Varying()) == []
