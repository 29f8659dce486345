"""The order in which DynamicVRAM keeps the pages of a model: whole blocks, spread evenly over the model.

Of a model that does not fit, the host keeps the pages at the lowest addresses. It gives addresses by size, and by name
where sizes are equal: so every block brings its smallest layers at each step, and those that come last by name bring
nearly everything, one after the other, while their neighbours compute with hardly a copy to hide. Here the layers of a
block lie together, blocks in an order of which every beginning is spread evenly: as many blocks as have room stay, and
the copies of one that does not have the blocks before it to hide behind.

What is kept is the host's choice as before, as are its checks of each page: only addresses change, while no page is
filled.
"""

from __future__ import annotations

from typing import Any

import torch

from ...compiler.blocks.repeated import repeated_blocks
from .paged_weights import room_maker

_ALIGNED = 512  # bytes: of what comfy_aimdo's ModelVBAR allocates
_GOLDEN = (5**0.5 - 1) / 2


def spread(count: int) -> list[int]:
    """Return the numbers below `count` in an order of which every beginning is spread evenly over them.

    Multiples of the golden ratio, modulo 1, below any bound: between two of them lie gaps of three lengths at most.
    """
    return sorted(range(count), key=lambda number: number * _GOLDEN % 1)


def arrange(patcher: Any, module: torch.nn.Module) -> bool:
    """Give the layers of a patcher's model addresses in the order in which their pages shall stay.

    Pages that are filled are given back, to be filled again at the next use: once for as long as the model is loaded.

    Args:
        module: (a part of) the model, whose blocks are repeated.

    Returns:
        Whether addresses changed. They stay where they are in this order already, where pages are in use, where the
        host pages blocks together by itself (ComfyUI 0.33), or where some address belongs to a layer that is not in the
        model just now: it may come back.
    """
    vbar = patcher.model.dynamic_vbars.get(patcher.load_device)
    make_room = room_maker(patcher)
    states = [one.__dict__ for one in patcher.model.modules()]
    layers = [state for state in states if state.get("_v") is not None]
    if not layers or make_room is None or not hasattr(vbar, "prioritize"):
        return False
    if any("_v_block" in state or "_prefetch" in state for state in states):
        return False
    layers.sort(key=lambda state: state["_v"][1])
    if any(state["_v"][0] is not vbar for state in layers) or any(page & 2 for page in vbar.get_residency()):
        return False
    sizes = [state["_v"][2] for state in layers]
    before = [state["_v"][1] for state in layers]
    if _addresses(vbar.base_addr, sizes) != (before, vbar.base_addr + vbar.offset):
        return False
    blocks = [*repeated_blocks(module).values()]
    rank = {id(vars(one)): 0 for one in module.modules()}  # what is in no block first: nothing computes ahead of it
    rank |= {id(vars(one)): n for n, block in enumerate(spread(len(blocks)), 1) for one in blocks[block].modules()}
    layers.sort(key=lambda state: rank.get(id(state), len(rank)))  # what is not called last
    sizes = [state["_v"][2] for state in layers]
    after, end = _addresses(vbar.base_addr, sizes)
    if after == [state["_v"][1] for state in layers]:
        return False
    if vbar.loaded_size():
        make_room(vbar.loaded_size())
        vbar.prioritize()  # or the host fills none of the pages that it gave back
        if vbar.loaded_size():
            return False
    for state in layers:
        state["_v_signature"] = None  # what was filled is no longer there
    for state, start, size in zip(layers, after, sizes, strict=True):
        state["_v"] = vbar, start, size
    vbar.offset = end - vbar.base_addr
    return True


def _addresses(start: int, sizes: list[int]) -> tuple[list[int], int]:
    """The addresses of what is allocated one after the other from some address on, and where the last one ends."""
    addresses, end = [], start
    for size in sizes:
        addresses.append(start + -(-(end - start) // _ALIGNED) * _ALIGNED)
        end = addresses[-1] + size
    return addresses, end
