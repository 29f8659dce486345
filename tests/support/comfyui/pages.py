"""Stand-ins for DynamicVRAM's pages, in this process's memory, and models whose weights they hold."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

PAGE = 4096


class FakeVbar:
    """comfy_aimdo's ModelVBAR as the pack uses it: page residency, pins that nest, a serial number per residency.

    Where there is no room for all pages, those at the highest addresses go, and do not come back before the model is
    loaded again (comfy-aimdo 0.4.11, src/model-vbar.c).

    Attributes:
        room: how many pages may be resident at a time; None: all.
        nesting: whether a page that is pinned twice stays pinned when it is unpinned once.
        watermark: pages from here on have gone.
        filled: how often some page became resident.
    """

    def __init__(self, pages: int, room: int | None = None, nesting: bool = True) -> None:
        self.memory = torch.zeros((pages + 1) * PAGE, dtype=torch.uint8)
        self.base_addr = -(-self.memory.data_ptr() // PAGE) * PAGE
        self.offset = 0
        self.pins = [0] * pages
        self.serials = [0] * pages
        self.resident = [False] * pages
        self.room = room
        self.nesting = nesting
        self.watermark = pages
        self.filled = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> FakeVbar:
        """A copy of a layer has the same pages."""
        return self

    def alloc(self, size: int) -> tuple[Any, int, int]:
        self.offset = -(-self.offset // 512) * 512 + size
        return self, self.base_addr + self.offset - size, size

    def _pages(self, address: int, size: int) -> range:
        start = address - self.base_addr
        return range(start // PAGE, -(-(start + size) // PAGE))

    def fault(self, address: int, size: int) -> bytes | None:
        pages = self._pages(address, size)
        if pages.stop > self.watermark:
            return None
        missing = [page for page in pages if not self.resident[page]]
        if missing and self.room is not None:
            self._free_for(pages.stop, self.room - sum(self.resident) - (pages.stop - missing[0]))
            if pages.stop > self.watermark:
                return None
        for page in pages:
            self.filled += not self.resident[page]
            self.serials[page] = (self.serials[page] + (not self.resident[page])) % 256
            self.resident[page] = True
            self.pins[page] += 1
        return bytes(self.serials[page] for page in pages)

    def _free_for(self, end: int, spare: int) -> None:
        """Take the last pages until all before `end` have room, or what has is before all that was taken.

        Args:
            spare: pages for which there is room; below zero: that lack room.
        """
        absent = (page for page in range(end) if not self.resident[page])
        first = next(absent, end)
        while True:
            while spare > 0 and first < min(end, self.watermark):
                spare, first = spare - 1, next(absent, end)
            if not self.watermark or (spare >= 0 and first >= min(end, self.watermark)):
                return
            self.watermark -= 1
            spare += self._take(self.watermark)

    def _take(self, page: int) -> bool:
        """Take a page that is not pinned; whether it was resident."""
        taken = self.resident[page] and not self.pins[page]
        self.resident[page] &= not taken
        return taken

    def prioritize(self) -> None:
        """What the host does when it loads the model."""
        self.watermark = len(self.resident)

    def unpin(self, address: int, size: int) -> None:
        for page in self._pages(address, size):
            self.pins[page] = self.pins[page] - 1 if self.nesting else 0
            self.resident[page] &= bool(self.pins[page]) or page < self.watermark

    def loaded_size(self) -> int:
        return sum(self.resident) * PAGE

    def get_residency(self) -> list[int]:
        return [r + 2 * bool(p) for r, p in zip(self.resident, self.pins, strict=True)]

    def evict(self) -> None:
        """What other work may do between calls until the model is loaded again: take all pages that are not pinned."""
        self.prioritize()
        self.resident = [r and bool(p) for r, p in zip(self.resident, self.pins, strict=True)]
        for page, resident in enumerate(self.resident):
            if not resident:
                start = self.base_addr - self.memory.data_ptr() + page * PAGE
                self.memory[start : start + PAGE].fill_(255)  # NaN in every format

    def free_memory(self, size: int) -> int:
        """Take pages that are not pinned, the last ones first, until so many bytes are free; how many bytes."""
        freed = 0
        while freed < size and self.watermark and not self.pins[self.watermark - 1]:
            self.watermark -= 1
            freed += PAGE * self._take(self.watermark)
        return freed

    def bytes_of(self, place: tuple[Any, int, int]) -> torch.Tensor:
        """The memory of an allocation."""
        start = place[1] - self.memory.data_ptr()
        return self.memory[start : start + place[2]]

    def view(self, place: tuple[Any, int, int], like: torch.Tensor) -> torch.Tensor:
        return self.bytes_of(place)[: like.nbytes].view(like.dtype).view(like.shape)


def page(model: Any, room: float) -> FakeVbar:
    """Have the layers of a MODEL paged as DynamicVRAM has them, with room for a part of their pages.

    Args:
        room: the part, from 0 to 1.
    """
    from comfy.memory_management import vram_aligned_size

    layers = [
        (name, layer, vram_aligned_size([layer.weight, layer.bias]))
        for name, layer in model.model.named_modules()
        if hasattr(layer, "comfy_cast_weights") and getattr(layer, "weight", None) is not None
    ]
    layers = [one for one in layers if one[2] > PAGE]
    total = sum(size for _, _, size in layers)
    vbar = FakeVbar(total // PAGE + len(layers) + 1, None if room >= 1 else int(room * total / PAGE))
    for name, layer, size in layers:
        layer._v, layer._v_signature, layer._pin_state, layer.seed_key = vbar.alloc(size), None, None, name
        layer.weight_function, layer.bias_function = [], []
        layer.weight_lowvram_function = layer.bias_lowvram_function = None
    model.model.dynamic_vbars = {model.load_device: vbar}
    return vbar


def patch(model: Any, patched: Any) -> int:
    """Give the paged layers of a MODEL the LoRAs of a clone of it, to be applied when they are filled; how many."""
    from comfy.model_patcher import LowVramPatch

    module, found = model.model, 0
    for name, layer in module.named_modules():
        if vars(layer).get("_v") is None:
            continue
        for key in ("weight", "bias"):
            path = f"{name}.{key}"
            lora = LowVramPatch(path, patched.patches) if path in patched.patches else None
            if lora is not None:
                lora._pin_state = None  # type: ignore[attr-defined]
                found += 1
            setattr(layer, f"{key}_lowvram_function", lora)
        layer._v_signature = None
    return found


def _has_room(missing: int, vbar: FakeVbar) -> bool:
    return vbar.room is None or missing <= vbar.room * PAGE - vbar.loaded_size()


@contextlib.contextmanager
def simulated(monkeypatch: Any) -> Iterator[None]:
    """The host's own functions bring weights to such pages, on a CPU."""
    import comfy_aimdo.torch
    from comfy.cli_args import args

    from onegraph.host.weights import paged_weights

    def to_tensor(place: tuple[Any, int, int], device: torch.device) -> torch.Tensor:
        found: torch.Tensor = place[0].bytes_of(place)
        return found

    def is_paged(patcher: Any) -> bool:
        return bool(getattr(patcher.model, "dynamic_vbars", None))

    with monkeypatch.context() as patching:
        patching.setattr(args, "disable_pinned_memory", True)
        patching.setattr(comfy_aimdo.torch, "aimdo_to_tensor", to_tensor)
        patching.setattr(paged_weights, "is_paged", is_paged)
        patching.setattr(paged_weights, "room_on", lambda device: _has_room)
        yield
