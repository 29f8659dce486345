"""In which order pages stay, with a stand-in for the host's: whole blocks, spread evenly, and nothing that is filled or
in use is lost."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.comfyui.pages import PAGE, FakeVbar

from onegraph.host.weights import page_order

BLOCKS = 8


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = torch.nn.Linear(64, 32, bias=False), torch.nn.Linear(32, 32, bias=False)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(BLOCKS))
        self.last = torch.nn.Linear(32, 32, bias=False)


class Model(torch.nn.Module):
    """A model with more than what is called, as the host's have."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.diffusion_model = torch.nn.Linear(48, 32, bias=False), Net()


def loaded() -> tuple[Any, FakeVbar]:
    """A patcher of a model whose layers have addresses by size and name, as the host gives them."""
    model: Any = Model().requires_grad_(False)
    layers = [(-one.weight.nbytes, name, one) for name, one in model.named_modules() if hasattr(one, "weight")]
    vbar = FakeVbar(sum(-size for size, _, _ in layers) // PAGE + 1)
    for size, _, layer in sorted(layers, key=lambda one: one[:2]):
        layer._v, layer._v_signature = vbar.alloc(-size), b"filled"
    model.dynamic_vbars = {torch.device("cpu"): vbar}
    return SimpleNamespace(model=model, load_device=torch.device("cpu")), vbar


def arranged(patcher: Any) -> bool:
    return page_order.arrange(patcher, patcher.model.diffusion_model)


def addresses(patcher: Any) -> dict[str, int]:
    return {name: one._v[1] for name, one in patcher.model.named_modules() if "_v" in vars(one)}


def resident_blocks(patcher: Any, room: int) -> list[int]:
    """Which blocks have all of their pages below an address."""
    end = patcher.model.dynamic_vbars[patcher.load_device].base_addr + room
    blocks = enumerate(patcher.model.diffusion_model.blocks)
    return [n for n, block in blocks if all(one._v[1] + one._v[2] <= end for one in block.children())]


@pytest.mark.parametrize("count", [1, 2, 34, 57])
def test_every_beginning_of_the_order_is_spread_evenly(count: int) -> None:
    order = page_order.spread(count)
    assert sorted(order) == [*range(count)] and order[0] == 0
    for kept in range(2, count):
        staying = sorted(order[:kept])
        gaps = [b - a for a, b in zip(staying, [*staying[1:], count], strict=True)]
        assert len({*gaps[:-1]}) <= 3 and max(gaps) <= 3 * count / kept + 1


def test_whole_blocks_stay_and_not_the_largest_layers_of_each() -> None:
    patcher, vbar = loaded()
    half = vbar.offset // 2
    assert resident_blocks(patcher, half) == []
    end = vbar.offset
    assert arranged(patcher) and vbar.offset == end
    assert resident_blocks(patcher, half) == [0, 2, 5, 7]
    found = addresses(patcher)
    assert len({*found.values()}) == len(found) == 2 * BLOCKS + 2
    assert min(found, key=lambda name: found[name]) == "diffusion_model.last"  # is called at each step
    assert max(found, key=lambda name: found[name]) == "encoder"  # is not
    assert all(one._v_signature is None for one in patcher.model.modules() if "_v" in vars(one))


def test_what_is_in_order_stays_filled() -> None:
    patcher, vbar = loaded()
    assert arranged(patcher)
    vbar.fault(vbar.base_addr, vbar.offset)
    vbar.unpin(vbar.base_addr, vbar.offset)
    before, size = addresses(patcher), vbar.loaded_size()
    assert not arranged(patcher)
    assert addresses(patcher) == before and vbar.loaded_size() == size > 0


def test_pages_that_are_filled_are_given_back_first() -> None:
    patcher, vbar = loaded()
    vbar.fault(vbar.base_addr, vbar.offset)
    vbar.unpin(vbar.base_addr, vbar.offset)
    serials = [*vbar.serials]
    assert arranged(patcher) and not vbar.loaded_size()
    assert vbar.fault(vbar.base_addr, vbar.offset) is not None, "the host fills none of them any more"
    assert all(now != before for now, before in zip(vbar.serials, serials, strict=True) if before)


def pinned(patcher: Any, vbar: FakeVbar) -> None:
    vbar.fault(vbar.base_addr, PAGE)


def fetched(patcher: Any, vbar: FakeVbar) -> None:
    patcher.model.diffusion_model.blocks[3].wide._prefetch = {}


def paged_by_blocks(patcher: Any, vbar: FakeVbar) -> None:
    patcher.model.diffusion_model.blocks[3]._v_block = patcher.model.diffusion_model.blocks[3].wide._v


def away(patcher: Any, vbar: FakeVbar) -> None:
    """A layer was exchanged, and may come back with its address."""
    patcher.model.diffusion_model.blocks[3].wide = torch.nn.Linear(64, 32, bias=False)


def last_away(patcher: Any, vbar: FakeVbar) -> None:
    vbar.alloc(PAGE)


def elsewhere(patcher: Any, vbar: FakeVbar) -> None:
    layer = patcher.model.diffusion_model.blocks[3].wide
    layer._v = (FakeVbar(1), *layer._v[1:])


def unfreed(patcher: Any, vbar: FakeVbar) -> None:
    """Somebody forbids to take the pages."""
    vbar.fault(vbar.base_addr, PAGE)
    vbar.unpin(vbar.base_addr, PAGE)
    vbar.free_memory = lambda size: 0  # type: ignore[method-assign]


def of_another_host(patcher: Any, vbar: FakeVbar) -> None:
    patcher.model.dynamic_vbars = {patcher.load_device: object()}


def nothing_paged(patcher: Any, vbar: FakeVbar) -> None:
    for one in patcher.model.modules():
        vars(one).pop("_v", None)
    patcher.model.dynamic_vbars = {}


@pytest.mark.parametrize(
    "state", [pinned, fetched, paged_by_blocks, away, last_away, elsewhere, unfreed, of_another_host, nothing_paged]
)
def test_addresses_stay_where_another_order_could_lose_a_weight(state: Callable[[Any, FakeVbar], None]) -> None:
    patcher, vbar = loaded()
    state(patcher, vbar)
    before = addresses(patcher)
    assert not arranged(patcher)
    assert addresses(patcher) == before
