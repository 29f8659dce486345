"""DynamicVRAM: the weights of a model whose modules do not hold them.

Under DynamicVRAM (ComfyUI's default on NVIDIA cards) `module.weight` is a tensor of the checkpoint's file in system
memory. What computes are pages of GPU memory: filled at a module's use, with LoRA applied, and taken away whenever
other work needs the room. Their addresses never change, so a graph bound to them is right as long as they are filled.

A call of a graph therefore holds the pages of the whole model while it runs, by the host's own call that makes pages
resident and pins them. That is done only where there is room for them and for what the call computes with: to ask for
more than fits takes even those pages away that are there. Without room the call is eager, which pages, or blocks have
their weights brought one by one (streamed.py). Pages whose contents went or are to change (another LoRA) are filled by
the host's own function, the one that every eager layer calls, and its result counts only where it lies in the pages
themselves. Nothing stays pinned between calls, so that other models get room as they would without a graph; the host
waits for the device before it takes a page away.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from ...common import reasons
from ...common.refused import Refused
from ...common.torch_guards import TensorLooks
from ...common.torch_private import Tables, copy_all, set_tables, tables
from ...compiler.composite_weights import PLAIN
from ..comfyui import contract
from .quantised import is_quantised, tensors_of_weight
from .skeletons import PagedCopies, copies_of, dtype_of, fill

_VBAR = (
    "base_addr", "offset", "fault", "unpin", "get_residency", "loaded_size", "free_memory", "prioritize", "alloc",
)  # used of comfy_aimdo's ModelVBAR  # fmt: skip
_PIECE = 256 << 20  # bytes of pages that are asked for at once
_SMALL = 1 << 20  # bytes: a resident weight up to this size is copied for each call


def is_paged(patcher: Any) -> bool:
    """Tell whether DynamicVRAM looks after this patcher's model."""
    return bool(getattr(patcher, "is_dynamic", lambda: False)())


def inside(weight: torch.Tensor, start: int, size: int) -> bool:
    """Tell whether a weight, with all its parts, lies in some memory."""
    return all(
        start <= one.data_ptr() and one.data_ptr() + one.nbytes <= start + size for one in tensors_of_weight(weight)
    )


def cast_arguments(layer: torch.nn.Module, weight: torch.Tensor, bias: torch.Tensor | None) -> dict[str, Any]:
    """Return the dtypes with which a layer asks the host for its weights; a quantised weight stays quantised."""
    dtype = dtype_of(layer, "weight", weight)
    arguments: dict[str, Any] = {"dtype": dtype, "bias_dtype": None if bias is None else dtype_of(layer, "bias", bias)}
    return arguments | ({"compute_dtype": dtype, "want_requant": True} if is_quantised(weight) else {})


class Resident:
    """Weights that the host does not page, as a copy of the model has them.

    Args:
        slots: by module and name, tensors for small ones: the host makes those anew for each run, and graphs want to
            find them where they were.
    """

    def __init__(self, slots: dict[tuple[int, str], torch.Tensor], device: torch.device) -> None:
        self._slots = slots
        self._device = device
        self._weights: list[tuple[dict[str, Any], str, torch.Tensor, int]] = []
        self._looks = TensorLooks([])  # of these
        self._copied: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])  # targets, weights

    def of(self, owner: torch.nn.Module, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor that a copy has in place of a module's."""
        parameters, buffers, _ = tables(owner)
        self._weights.append((parameters if name in parameters else buffers, name, tensor, tensor.data_ptr()))
        if tensor.device != self._device:
            return tensor  # binding refuses it
        # The host keeps small weights in the file's dtype and casts them at each use: the copy is that cast.
        dtype = dtype_of(owner, name, tensor) if "comfy_cast_weights" in vars(owner) else tensor.dtype
        if is_quantised(tensor) or (dtype == tensor.dtype and tensor.nbytes > _SMALL):
            return tensor
        slot = self._slots.get((id(owner), name))
        if slot is None or slot.device != self._device:
            with torch.inference_mode(False):
                slot = torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device=self._device)
                if isinstance(tensor, torch.nn.Parameter):
                    slot = torch.nn.Parameter(slot, requires_grad=False)
            self._slots[id(owner), name] = slot
        for entry, one in zip(self._copied, (slot, tensor), strict=True):
            entry.append(one)
        return slot

    def complete(self) -> None:
        """Note what the weights look like, once all have been asked for."""
        self._looks = TensorLooks([tensor for _, _, tensor, _ in self._weights])

    def unchanged(self) -> bool:
        """Tell whether all are the same objects at the same addresses, and look the same."""
        return all(
            tensors.get(name) is tensor and tensor.data_ptr() == address
            for tensors, name, tensor, address in self._weights
        ) and self._looks.same([tensor for _, _, tensor, _ in self._weights])

    def copy(self) -> None:
        """Bring the values of small ones to where graphs read them."""
        copy_all(*self._copied)


class Casting(NamedTuple):
    """The host's functions by which an eager layer gets its weights and lets them go."""

    cast: Callable[..., Any]
    uncast: Callable[..., Any]


class Paged:
    """The paged weights of one model during one run.

    Attributes:
        skeleton: the module as a graph is compiled for it: without paging, and without weights.
        filling_s: seconds spent in this run on having pages filled, as an eager call would, too.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        version: int,
        vbar: Any,
        device: torch.device,
        casting: Casting,
        has_room: Callable[[int, Any], bool] = lambda missing, vbar: True,
    ) -> None:
        """`has_room` tells whether so many bytes of pages can become resident beside a call's activations."""
        self._module = module
        self.vbar = vbar
        self._device = device
        self._cast, self._uncast = casting
        self._has_room = has_room
        self.copies: PagedCopies = copies_of(module, version)
        self.skeleton = self.copies.skeletons[0]
        self.filling_s = 0.0
        self._signature: bytes | None = None  # of all pages, when the weights were last loaded
        self._paged: list[tuple[dict[str, Any], Any, Any]] = []
        self._resident = Resident(self.copies.small, device)

    @contextlib.contextmanager
    def held(self, without: Sequence[torch.nn.Module] = ()) -> Iterator[torch.nn.Module | Refused]:
        """While this lasts, a copy of the module has all weights on the device; or the reason why it has not.

        Args:
            without: layers whose weights nobody reads, and whose addresses are the last ones.
        """
        left = [vars(layer)["_v"][1] for layer in without]
        size = min(left, default=self.vbar.base_addr + self.vbar.offset) - self.vbar.base_addr
        missing = max(0, size - self.vbar.loaded_size()) if size else 0
        signature: bytes | None = None
        if not size or self._has_room(missing, self.vbar):
            signature = self._fault(size)
        if signature is None:
            yield Refused(reasons.NoRoomForWeights())
            return
        try:
            refused = None
            if not self._unchanged(signature):
                started = time.perf_counter()
                refused = self._load_weights(signature, size)
                self.filling_s += time.perf_counter() - started
            if refused is None:
                self._resident.copy()
            yield self.copies.filled[0] if refused is None else refused
        finally:
            if size:
                self.vbar.unpin(self.vbar.base_addr, size)

    def _fault(self, size: int) -> bytes | None:
        """Pin the pages of the first bytes; their signature, or None where they have no room together.

        They are asked for in pieces. comfy-aimdo 0.6.0 wants room for twice what it is asked for, and what it gives up
        for that has no page before the model is loaded again: an H200 with 13.8 GiB free refused 11.5 GiB as a whole,
        kept 2.3 of them, and had room for all of them layer by layer.
        """
        vbar, signature = self.vbar, b""
        for start in range(0, size, _PIECE):
            pages = vbar.fault(vbar.base_addr + start, min(_PIECE, size - start))
            if pages is None:
                if start:
                    vbar.unpin(vbar.base_addr, start)
                return None
            signature += bytes(pages)
        return signature

    def release(self) -> None:
        """Drop all tensors, since the run is over."""
        self.forget()
        self._paged, self._resident = [], Resident(self.copies.small, self._device)
        for copied in self.copies.filled:
            set_tables(copied, Tables({}, {}, tables(copied).children))

    def forget(self) -> None:
        """Somebody else used the copy: put the weights there again."""
        self._signature = None

    def _unchanged(self, signature: bytes) -> bool:
        """Whether every weight is still what was loaded.

        The pages' signature changes when one of them went and came back, a module's when the host fills its slot or
        wants that done.
        """
        return (
            signature == self._signature
            and all(
                state.get("_v") is slot and state.get("_v_signature") is filled and "_prefetch" not in state
                for state, slot, filled in self._paged
            )
            and self._resident.unchanged()
        )

    def _load_weights(self, signature: bytes, size: int) -> Refused | None:
        """Have the host fill what is not filled, and put the weights into the copy. Pages of `size` bytes are held."""
        self.release()
        if not self._pins_nest(size):
            return Refused(reasons.PagedWeights())
        parameters: dict[tuple[int, str], torch.Tensor] = {}
        for name, child in self._module.named_modules():
            state = vars(child)
            slot = state.get("_v")
            if slot is None or slot[1] >= self.vbar.base_addr + size:
                continue
            if "_prefetch" in state:
                return Refused(reasons.WeightsMoving())
            weight, bias = (tables(child).parameters.get(key) for key in ("weight", "bias"))
            assert weight is not None
            arguments = cast_arguments(child, weight, bias)
            filled = self._cast(child, device=self._device, offloadable=True, **arguments)
            self._uncast(child, *filled)
            for key, tensor in (("weight", filled[0]), ("bias", filled[1])):
                if tensor is None:
                    continue
                if not inside(tensor, *slot[1:]):
                    return Refused(reasons.DynamicVramMoves(key, name))
                parameters[id(child), key] = torch.nn.Parameter(tensor, requires_grad=False)
            if state.get("_v_signature") is None:
                return Refused(reasons.WeightsMoving())
            self._paged.append((state, slot, state["_v_signature"]))

        def give(owner: torch.nn.Module, name: str, tensor: torch.Tensor) -> torch.Tensor:
            paged = parameters.get((id(owner), name))
            return self._resident.of(owner, name, tensor) if paged is None else paged

        fill(self.copies.filled, self._module, give)
        self._resident.complete()
        self._signature = signature
        return None

    def _pins_nest(self, size: int) -> bool:
        """Whether pages stay pinned by this hold when a layer, too, pins and unpins them."""
        if not size:
            return True
        pinned = sum(bool(page & 2) for page in self.vbar.get_residency())
        if self._fault(size) is None:
            return False
        self.vbar.unpin(self.vbar.base_addr, size)
        return 0 < pinned == sum(bool(page & 2) for page in self.vbar.get_residency())


def room_on(device: torch.device) -> Callable[[int, Any], bool]:
    """Return what tells whether pages of a model have room on a device: free memory, or pages of other models."""
    import comfy.model_management as management
    from comfy_aimdo import model_vbar

    # Of all models' pages; a comfy-aimdo that cannot tell has free memory counted alone.
    resident = getattr(model_vbar, "vbars_analyze", None)

    def has_room(missing: int, vbar: Any) -> bool:
        wanted = missing + management.minimum_inference_memory()
        if wanted <= torch.get_device_module(device).mem_get_info(device)[0]:
            return True
        free = management.get_free_memory(device)  # with what torch keeps for later tensors
        return wanted <= free or (resident is not None and wanted <= free + resident(device.index) - vbar.loaded_size())

    return has_room


def room_maker(patcher: Any) -> Callable[[int], None] | None:
    """Return what takes the pages of a model away when another process needs their memory; None: it has none.

    Nothing else does: pages give way only to this process. Those taken are filled again for the next run.
    """
    vbars = getattr(patcher.model, "dynamic_vbars", None)
    vbar = vbars.get(patcher.load_device) if isinstance(vbars, dict) else None
    if not hasattr(vbar, "free_memory"):
        return None
    reference, device = weakref.ref(vbar), patcher.load_device

    def make_room(size: int) -> None:
        vbar = reference()
        if vbar is not None and size <= vbar.loaded_size():  # else they would go for nothing
            torch.get_device_module(device).synchronize(device)  # work under way may still read them
            vbar.free_memory(size)

    return make_room


class _NoPages:
    """For a model so small that all its weights are resident."""

    base_addr = offset = 0


def paged(patcher: Any, module: torch.nn.Module, version: int) -> Paged | Refused:
    """Access to the weights of a module that is (a part of) the patcher's model, under DynamicVRAM.

    `version` is the module's, by its guard: another one needs another skeleton. Refuses where this ComfyUI or its
    comfy-aimdo lacks what that needs.
    """
    lacking = contract.refusal("DynamicVRAM")
    if lacking is not None:
        return Refused(lacking)
    import comfy.ops

    casting = Casting(comfy.ops.cast_bias_weight, comfy.ops.uncast_bias_weight)
    vbars = getattr(patcher.model, "dynamic_vbars", None)
    if not isinstance(vbars, dict):
        return Refused(reasons.PagedWeights())
    for tensor in (*module.parameters(), *module.buffers()):
        if type(tensor) not in PLAIN and not is_quantised(tensor):
            return Refused(reasons.NotPlainWeight(type(tensor).__name__))
    slots = [state["_v"] for state in map(vars, module.modules()) if state.get("_v") is not None]
    vbar = vbars.get(patcher.load_device)
    if vbar is None and not slots:
        vbar = _NoPages()
    elif any(not hasattr(vbar, name) for name in _VBAR):
        return Refused(reasons.PagedWeights())
    for slot in slots:
        if not isinstance(slot, tuple) or len(slot) != 3 or slot[0] is not vbar:
            return Refused(reasons.PagedWeights())
    return Paged(module, version, vbar, patcher.load_device, casting, room_on(patcher.load_device))
