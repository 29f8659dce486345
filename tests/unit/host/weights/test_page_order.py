"""Which layers of a model have the last addresses among its pages."""

from __future__ import annotations

from typing import Any

import torch
from support.comfyui.pages import PAGE, FakeVbar

from onegraph.host.weights.page_order import place_last

_CPU = torch.device("cpu")


def model(count: int = 4) -> tuple[torch.nn.Sequential, FakeVbar]:
    """Layers of some pages each, all filled."""
    vbar = FakeVbar(3 * count)
    made = torch.nn.Sequential(*(torch.nn.Linear(1, 1) for _ in range(count)), torch.nn.SiLU())
    for layer in [*made][:count]:
        vars(layer).update(_v=vbar.alloc(2 * PAGE), _v_signature=b"filled")
        vbar.fault(*vars(layer)["_v"][1:])
        vbar.unpin(*vars(layer)["_v"][1:])
    return made, vbar


def order(made: torch.nn.Sequential) -> list[int]:
    places = [(vars(layer)["_v"][1], number) for number, layer in enumerate(made) if "_v" in vars(layer)]
    return [number for _, number in sorted(places)]


def test_layers_are_placed_last_once() -> None:
    made, vbar = model()
    size = vbar.offset
    vbar.free_memory(5 * PAGE)
    assert vbar.watermark < len(vbar.resident)
    assert place_last(made, [made[0], made[2]], vbar, _CPU)
    assert order(made) == [1, 3, 0, 2]
    assert vbar.offset == size and vbar.loaded_size() == 0 and vbar.watermark == len(vbar.resident)
    assert all(vars(layer)["_v_signature"] is None for layer in [*made][:4])
    slots: list[Any] = [vars(layer)["_v"] for layer in [*made][:4]]
    assert place_last(made, [made[2], made[0]], vbar, _CPU)  # as they are
    assert all(vars(layer)["_v"] is slot for layer, slot in zip([*made][:4], slots, strict=True))


def test_pages_that_somebody_holds_stay_where_they_are() -> None:
    made, vbar = model()
    slot = vars(made[3])["_v"]
    vbar.fault(*slot[1:])
    assert not place_last(made, [made[0]], vbar, _CPU)
    assert order(made) == [0, 1, 2, 3] and vars(made[3])["_v"] is slot


def test_blocks_that_the_host_keeps_as_wholes_are_left_alone() -> None:
    made, vbar = model()
    vars(made)["_v_block"] = vars(made[0])["_v"]
    assert not place_last(made, [made[0]], vbar, _CPU)
    assert order(made) == [0, 1, 2, 3] and vbar.loaded_size()


def test_pages_of_other_layers_are_left_alone() -> None:
    """A layer of the same pages that is no part of the model would lie where another one is put."""
    made, vbar = model()
    rest = torch.nn.Sequential(*[*made][1:])
    assert not place_last(rest, [rest[0]], vbar, _CPU)
    rest = torch.nn.Sequential(*[*made][:3])
    assert not place_last(rest, [rest[0]], vbar, _CPU)
    assert order(made) == [0, 1, 2, 3] and vbar.loaded_size()
