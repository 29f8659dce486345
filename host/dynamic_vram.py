"""DynamicVRAM: the weights of a model whose modules do not hold them.

Under DynamicVRAM (ComfyUI's default on NVIDIA cards) `module.weight` is a tensor of the checkpoint's file in system
memory. What computes are pages of GPU memory: filled at a module's use, with LoRA applied, and taken away whenever
other work needs the room. Their addresses never change, so a graph bound to them is right as long as they are filled.

A call of a graph therefore holds the pages of the whole model while it runs, by the host's own call that makes pages
resident and pins them, or that says they do not fit: then the call is eager, which pages. Pages whose contents went
or are to change (another LoRA) are filled by the host's own function, the one that every eager layer calls, and its
result counts only where it lies in the pages themselves. Nothing stays pinned between calls, so that other models
get room as they would without a graph; the host waits for the device before it takes a page away.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..common import reasons
from ..common.shapes import Refused
from ..common.torch_private import Tables, copy_all, set_tables, tables
from ..compiler.fingerprint import is_own_method

# What the host keeps on the modules (and on the model itself) to page them; the model computes the same without.
BOOKKEEPING = {
    "_v",
    "_v_signature",
    "_v_weight",
    "_v_bias",
    "_pins",
    "_pin_state",
    "_prefetch",
    "seed_key",
    "comfy_cast_weights",
    "weight_function",
    "bias_function",
    "weight_lowvram_function",
    "bias_lowvram_function",
    "dynamic_vbars",
    "dynamic_pins",
    "dynamic_patchers",
}
_VBAR = ("base_addr", "offset", "fault", "unpin", "get_residency")  # used of comfy_aimdo's ModelVBAR
_SMALL = 1 << 20  # bytes: a resident weight up to this size is copied for each call
_ORDER = {"weight": 0, "bias": 1}  # as torch registers them; the host registers them in the file's order

Form = tuple[torch.nn.Module, ...]  # copies of a module and its children, in the order of `modules()`
_Metadata = tuple[tuple[Any, ...], ...]


def is_paged(patcher: Any) -> bool:
    """Whether DynamicVRAM looks after this patcher's model."""
    return bool(getattr(patcher, "is_dynamic", lambda: False)())


def _twins(module: torch.nn.Module) -> Form:
    """The module and its children as they are without paging: same classes and configuration, weights still missing."""
    made: dict[int, torch.nn.Module] = {}

    def twin_of(original: torch.nn.Module) -> torch.nn.Module:
        known = made.get(id(original))
        if known is not None:
            return known
        twin: torch.nn.Module = object.__new__(type(original))
        made[id(original)] = twin
        state = {
            name: value
            for name, value in vars(original).items()
            if name not in BOOKKEEPING and not is_own_method(original, name, value)
        }
        for name in _ORDER:  # a missing bias is a plain attribute here, where torch has it among the parameters
            if name in state and state[name] is None:
                del state[name]
        children = {n: None if child is None else twin_of(child) for n, child in tables(original).children.items()}
        twin.__dict__.update(state)
        set_tables(twin, Tables({}, {}, children))
        return twin

    twin_of(module)
    return tuple(made.values())


def _weights_of(module: torch.nn.Module) -> list[tuple[str, torch.Tensor | None]]:
    """A module's own parameters in torch's order, with None for the missing ones."""
    found: dict[str, torch.Tensor | None] = {n: None for n in _ORDER if vars(module).get(n, module) is None}
    found |= tables(module).parameters
    return sorted(found.items(), key=lambda item: _ORDER.get(item[0], len(_ORDER)))


def _dtype(module: torch.nn.Module, name: str, tensor: torch.Tensor) -> torch.dtype:
    """What a weight is computed in: the host may keep the file's dtype until the weight is used."""
    dtype = getattr(module, f"{name}_comfy_model_dtype", None)
    return dtype if isinstance(dtype, torch.dtype) else tensor.dtype


def _fill(form: Form, module: torch.nn.Module, give: Callable[[torch.nn.Module, str, torch.Tensor], Any]) -> None:
    """Put weights into the copies of a module."""
    for original, twin in zip(module.modules(), form, strict=True):
        parameters, buffers = (
            {name: None if tensor is None else give(original, name, tensor) for name, tensor in weights}
            for weights in (_weights_of(original), tables(original).buffers.items())
        )
        set_tables(twin, Tables(parameters, buffers, tables(twin).children))


def _metadata(module: torch.nn.Module) -> _Metadata:
    """All that a form without weights depends on and that may change while the module lives."""
    rows: list[tuple[Any, ...]] = []
    for child in module.modules():
        rows.append((type(child), len(tables(child).children)))
        rows += [
            (name, tensor.shape, tensor.stride(), _dtype(child, name, tensor))
            for name, tensor in [*_weights_of(child), *tables(child).buffers.items()]
            if tensor is not None
        ]
    return tuple(rows)


def _without_storage(module: torch.nn.Module) -> Form:
    form = _twins(module)
    made: dict[int, torch.Tensor] = {}  # weights that modules share stay shared

    def give(owner: torch.nn.Module, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in made:
            dtype = _dtype(owner, name, tensor)
            empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device="meta")
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            made[id(tensor)] = torch.nn.Parameter(empty, requires_grad=False) if is_parameter else empty
        return made[id(tensor)]

    _fill(form, module, give)
    return form


@dataclass(frozen=True)
class _Forms:
    """Copies of a module, kept as long as it lives, for making them takes longer than a sampling step.

    They never hold the module itself, nor its weights: those with storage are emptied at the end of each run.

    Attributes:
        version: of the module's other state, by its watch.
        small: by module and name, places for the weights that the host does not page because they are small. It makes
            them anew for each run, and graphs want to find them where they were: they are copied there for each call.
    """

    metadata: _Metadata
    version: int
    empty: Form
    filled: Form
    small: dict[tuple[int, str], torch.Tensor]


_forms: weakref.WeakKeyDictionary[torch.nn.Module, _Forms] = weakref.WeakKeyDictionary()


def _forms_of(module: torch.nn.Module, version: int) -> _Forms:
    metadata = _metadata(module)
    known = _forms.get(module)
    if known is None or (known.metadata, known.version) != (metadata, version):
        known = _Forms(metadata, version, _without_storage(module), _twins(module), {})
        _forms[module] = known
    return known


def _inside(tensor: torch.Tensor, place: tuple[Any, int, int]) -> bool:
    """Whether a tensor lies in a module's place among the pages."""
    _, start, size = place
    return start <= tensor.data_ptr() and tensor.data_ptr() + tensor.nbytes <= start + size


class Paged:
    """The paged weights of one model during one run.

    Attributes:
        form: the module as a graph is made for it: without paging, and without weights.
        filling_s: seconds spent in this run on having pages filled, as an eager call would, too.
    """

    def __init__(
        self, module: torch.nn.Module, version: int, vbar: Any, device: torch.device, cast: Any, uncast: Any
    ) -> None:
        """`cast` and `uncast` are the host's functions by which an eager layer gets its weights and lets them go."""
        self._module = module
        self._vbar = vbar
        self._device = device
        self._cast = cast
        self._uncast = uncast
        forms = _forms_of(module, version)
        self._filled, self._small = forms.filled, forms.small
        self.form = forms.empty[0]
        self.filling_s = 0.0
        self._signature: bytes | None = None  # of all pages, when the weights were last taken up
        self._paged: list[tuple[dict[str, Any], Any, Any]] = []
        self._resident: list[tuple[dict[str, Any], str, torch.Tensor, int]] = []
        self._copied: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])  # places, weights

    @contextlib.contextmanager
    def held(self) -> Iterator[torch.nn.Module | Refused]:
        """While this lasts, a copy of the module has all weights on the device; or the reason why it has not."""
        size = self._vbar.offset
        signature = self._vbar.fault(self._vbar.base_addr, size) if size else b""
        if signature is None:
            yield Refused(reasons.NoRoomForWeights())
            return
        try:
            refused = None
            if not self._unchanged(bytes(signature)):
                started = time.perf_counter()
                refused = self._take_up(bytes(signature))
                self.filling_s += time.perf_counter() - started
            if refused is None:
                copy_all(*self._copied)
            yield self._filled[0] if refused is None else refused
        finally:
            if size:
                self._vbar.unpin(self._vbar.base_addr, size)

    def release(self) -> None:
        """The run is over: keep none of the tensors."""
        self._signature = None
        self._paged, self._resident, self._copied = [], [], ([], [])
        for twin in self._filled:
            set_tables(twin, Tables({}, {}, tables(twin).children))

    def _unchanged(self, signature: bytes) -> bool:
        """Whether every weight is still what was taken up.

        The pages' signature changes when one of them went and came back, a module's when the host fills its place or
        wants that done.
        """
        return (
            signature == self._signature
            and all(
                state.get("_v") is place and state.get("_v_signature") is filled and "_prefetch" not in state
                for state, place, filled in self._paged
            )
            and all(
                tensors.get(name) is tensor and tensor.data_ptr() == address
                for tensors, name, tensor, address in self._resident
            )
        )

    def _take_up(self, signature: bytes) -> Refused | None:
        """Have the host fill what is not filled, and put the weights into the copy. The pages are held."""
        self.release()
        if not self._pins_nest():
            return Refused(reasons.PagedWeights())
        found: dict[tuple[int, str], torch.Tensor] = {}
        for name, child in self._module.named_modules():
            state = vars(child)
            place = state.get("_v")
            if place is None:
                continue
            if "_prefetch" in state:
                return Refused(reasons.WeightsMoving())
            weight, bias = (tables(child).parameters.get(key) for key in ("weight", "bias"))
            assert weight is not None
            filled = self._cast(
                child,
                dtype=_dtype(child, "weight", weight),
                device=self._device,
                bias_dtype=None if bias is None else _dtype(child, "bias", bias),
                offloadable=True,
            )
            self._uncast(child, *filled)
            for key, tensor in (("weight", filled[0]), ("bias", filled[1])):
                if tensor is None:
                    continue
                if not _inside(tensor, place):
                    return Refused(reasons.DynamicVramMoves(key, name))
                found[id(child), key] = torch.nn.Parameter(tensor, requires_grad=False)
            if state.get("_v_signature") is None:
                return Refused(reasons.WeightsMoving())
            self._paged.append((state, place, state["_v_signature"]))

        def give(owner: torch.nn.Module, name: str, tensor: torch.Tensor) -> torch.Tensor:
            paged = found.get((id(owner), name))
            if paged is not None:
                return paged
            parameters, buffers, _ = tables(owner)
            self._resident.append((parameters if name in parameters else buffers, name, tensor, tensor.data_ptr()))
            if tensor.device != self._device:
                return tensor  # binding refuses it
            # The host keeps small weights in the file's dtype and casts them at each use: the copy is that cast.
            dtype = _dtype(owner, name, tensor) if "comfy_cast_weights" in vars(owner) else tensor.dtype
            if dtype == tensor.dtype and tensor.nbytes > _SMALL:
                return tensor
            place = self._small.get((id(owner), name))
            if place is None or place.device != self._device:
                with torch.inference_mode(False):
                    place = torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device=self._device)
                    if isinstance(tensor, torch.nn.Parameter):
                        place = torch.nn.Parameter(place, requires_grad=False)
                self._small[id(owner), name] = place
            for entry, one in zip(self._copied, (place, tensor), strict=True):
                entry.append(one)
            return place

        _fill(self._filled, self._module, give)
        self._signature = signature
        return None

    def _pins_nest(self) -> bool:
        """Whether pages stay pinned by this hold when a layer, too, pins and unpins them."""
        size = self._vbar.offset
        if not size:
            return True
        pinned = sum(bool(page & 2) for page in self._vbar.get_residency())
        if self._vbar.fault(self._vbar.base_addr, size) is None:
            return False
        self._vbar.unpin(self._vbar.base_addr, size)
        return 0 < pinned == sum(bool(page & 2) for page in self._vbar.get_residency())


class _NoPages:
    """For a model so small that all its weights are resident."""

    base_addr = offset = 0


def paged(patcher: Any, module: torch.nn.Module, version: int) -> Paged | Refused:
    """Access to the weights of a module that is (a part of) the patcher's model, under DynamicVRAM.

    `version` is the module's, by its watch: another one needs another skeleton. Refuses where this ComfyUI or its
    comfy-aimdo lacks what that needs.
    """
    import comfy.ops

    cast, uncast = getattr(comfy.ops, "cast_bias_weight", None), getattr(comfy.ops, "uncast_bias_weight", None)
    vbars = getattr(patcher.model, "dynamic_vbars", None)
    if cast is None or uncast is None or not isinstance(vbars, dict):
        return Refused(reasons.PagedWeights())
    for tensor in (*module.parameters(), *module.buffers()):
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            return Refused(reasons.NotPlainWeight(type(tensor).__name__))
    places = [state["_v"] for state in map(vars, module.modules()) if state.get("_v") is not None]
    vbar = vbars.get(patcher.load_device)
    if vbar is None and not places:
        vbar = _NoPages()
    elif any(not hasattr(vbar, name) for name in _VBAR):
        return Refused(reasons.PagedWeights())
    for place in places:
        if not isinstance(place, tuple) or len(place) != 3 or place[0] is not vbar:
            return Refused(reasons.PagedWeights())
    return Paged(module, version, vbar, patcher.load_device, cast, uncast)
