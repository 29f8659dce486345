"""In which order weights lie among the pages of DynamicVRAM.

comfy-aimdo keeps pages from the first address on, as many as have room with all that lie before them, absent ones
included. So weights that nobody reads take the place of others if they come first, and the host has the largest layers
first, as a modulation's are.
"""

from __future__ import annotations

from typing import Any

import torch

_ALIGNED = 512  # bytes, by which ModelVBAR.alloc rounds an address up


def place_last(model: torch.nn.Module, layers: list[torch.nn.Module], vbar: Any, device: torch.device) -> bool:
    """Give some layers of a model the last addresses among its pages, if others have them; whether they have these.

    All pages go for that, and the host fills those that are used next. Nothing changes where it keeps blocks as wholes
    (`_v_block`, of ComfyUI 0.33 and later for some models), and where pages are not the model's alone.
    """
    ids = {id(vars(one)) for one in layers}
    paged = [state for state in map(vars, model.modules()) if state.get("_v") is not None]
    order = sorted(paged, key=lambda state: state["_v"][1])
    wanted = sorted(order, key=lambda state: id(state) in ids)
    if list(map(id, order)) == list(map(id, wanted)):
        return True
    if any("_v_block" in vars(one) for one in model.modules()) or not _are_all(order, vbar):
        return False
    torch.get_device_module(device).synchronize(device)  # work under way may still read them
    vbar.free_memory(vbar.loaded_size())
    emptied = not vbar.loaded_size()  # else somebody holds some
    if emptied:
        vbar.offset = 0
        for state in wanted:
            state["_v"], state["_v_signature"] = vbar.alloc(state["_v"][2]), None
    vbar.prioritize()
    return emptied


def _are_all(order: list[dict[str, Any]], vbar: Any) -> bool:
    """Whether these layers, in the order of their addresses, are all that have pages."""
    end = vbar.base_addr
    for state in order:
        _, start, size = state["_v"]
        if start - end not in range(_ALIGNED):
            return False
        end = start + size
    return bool(end == vbar.base_addr + vbar.offset)
