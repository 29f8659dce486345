"""Blocks of a model that does not fit into VRAM: DynamicVRAM brings the weights of each one while it runs.

What the host does for the blocks of some models before each of them, by the same functions: pages that are there are
pinned, pages for which there is room are filled, and what has no room goes to a buffer of the stream that copies it,
which the next block but one uses again. LoRAs are applied on the way. Copies are enqueued before the graph that reads
them and wait for the block before the last one only, so that they overlap with the block before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...common import reasons
from ...common.reasons import Reason
from ...common.refused import Refused
from ...common.torch_private import Tables, set_tables, tables
from ...runtime.calls.weight_source import Brought, Most
from ..comfyui import contract
from .page_order import place_last
from .paged_weights import Paged, Resident, cast_arguments, inside
from .quantised import is_quantised, tensors_of_weight
from .skeletons import Copies, fill
from .weight_facts import facts_of

_Address = tuple[int, str, tuple[int, ...]]


@dataclass(frozen=True)
class Transaction:
    """The host's functions that bring the weights of some layers and let them go.

    Attributes:
        fetch: (layers, dtype, device, bias dtype, non blocking) pins pages and enqueues copies; the stream of these.
        resolve: (layer, dtype, device, bias dtype, compute dtype, whether to quantise) weight and bias of a layer.
        sync: (device, stream) has the current stream wait for the copies.
    """

    fetch: Callable[..., Any]
    resolve: Callable[..., Any]
    sync: Callable[..., Any]


@dataclass
class _Block:
    """A block and its copy, module by module.

    Attributes:
        layers: those whose weights the host pages.
    """

    module: torch.nn.Module
    copies: Copies
    layers: list[torch.nn.Module]


@dataclass(eq=False)
class StreamedBlocks:
    """Access to the weights of blocks, one block at a time, during one run.

    Attributes:
        refusal: why no further block's weights are brought in this run, or None.
    """

    model: torch.nn.Module
    paged: Paged
    device: torch.device
    host: Transaction
    refusal: Reason | None = None
    _blocks: dict[str, _Block] = field(default_factory=dict)
    _brought_before: set[str] = field(default_factory=set)  # names of blocks, in this step
    _left: dict[str, list[torch.nn.Module]] = field(default_factory=dict)  # layers that this step does without
    _absent: frozenset[int] = frozenset()  # ids of layers whose weights the copy that is held does not have
    _crowded: bool = False  # the others have no room together
    _last: dict[str, list[torch.nn.Module]] = field(default_factory=dict)  # those of the step before
    _parameters: dict[_Address, torch.nn.Parameter] = field(
        default_factory=dict
    )  # of pages and the host's buffers alone

    @contextlib.contextmanager
    def weights(self, name: str, without: Collection[str] = ()) -> Iterator[Brought | Refused]:
        """See `WeightSource`."""
        block = self._blocks.get(name) or self._look_at(name)
        left = {id(one) for path in without for one in block.module.get_submodule(path).modules()}
        self._note_step(name, [layer for layer in block.layers if id(layer) in left])
        with self._bringing(block, [layer for layer in block.layers if id(layer) not in left]) as brought:
            yield brought

    @contextlib.contextmanager
    def _bringing(self, block: _Block, layers: list[torch.nn.Module]) -> Iterator[Brought | Refused]:
        """Bring the weights of some layers of a block, while this lasts."""
        refusal = self.refusal or _busy(layers)
        if refusal is not None:
            yield Refused(refusal)
            return
        fetched = [layer for layer in layers if "_prefetch" not in vars(layer)]
        stream = None
        try:
            try:
                if fetched:
                    stream = self.host.fetch(fetched, None, self.device, None, True)
                    self.host.sync(self.device, stream)
                brought = self._brought(block, layers)
            except torch.OutOfMemoryError:
                brought = Refused(reasons.MemoryRanOut())
            except RuntimeError as error:  # the host's own buffers
                if "grow failed" not in str(error):
                    raise
                brought = Refused(reasons.MemoryRanOut())
            if brought == Refused(reasons.MemoryRanOut()):
                self.refusal = reasons.MemoryRanOut()
            yield brought
        finally:
            if not all(id(layer) in self._absent for layer in layers):
                self.paged.forget()
            for copied in block.copies:
                set_tables(copied, Tables({}, {}, tables(copied).children))
            if stream is not None:
                stream.wait_stream(torch.get_device_module(self.device).current_stream(self.device))
            _let_go(fetched)

    @contextlib.contextmanager
    def most(self) -> Iterator[Most | None]:
        """See `WeightSource`."""
        if not self._last or self._crowded:
            yield None
            return
        layers = [layer for some in self._last.values() for layer in some]
        with self.paged.held(layers) as held:
            self._crowded = isinstance(held, Refused)  # to ask again would take pages away
            self._absent = frozenset() if self._crowded else frozenset(map(id, layers))
            try:
                yield None if isinstance(held, Refused) else Most(held, frozenset(self._last))
            finally:
                self._absent = frozenset()

    def facts(self, name: str, module: str) -> Any:
        """See `WeightSource`. Of a block that the host itself brings before it runs, all weights come anyway."""
        block = self._blocks.get(name) or self._look_at(name)
        if self.refusal is not None:
            return Refused(self.refusal)
        if any("_prefetch" in vars(layer) for layer in block.layers):
            return None
        return facts_of(block.module.get_submodule(module))

    def results(self, name: str, module: str, arguments: Sequence[torch.Tensor]) -> list[Any] | Refused:
        """See `WeightSource`. No page is filled: those are for what every step needs."""
        part = self._blocks.get(f"{name}.{module}") or self._look_at(f"{name}.{module}")
        slots = [(vars(layer), vars(layer)["_v"]) for layer in part.layers]
        try:
            for state, slot in slots:
                state["_v"] = _NoRoom, *slot[1:]
            with self._bringing(part, part.layers) as brought:
                return brought if isinstance(brought, Refused) else [*map(brought.module, arguments)]
        finally:
            for state, slot in slots:
                state["_v"] = slot

    def _note_step(self, name: str, left: list[torch.nn.Module]) -> None:
        """Once a step was seen, have the layers that it does without be the first whose pages go."""
        if name in self._brought_before:
            layers = [layer for some in self._left.values() for layer in some]
            if layers and place_last(self.model, layers, self.paged.vbar, self.device):
                self._last = self._left
            self._brought_before, self._left = set(), {}
        self._brought_before.add(name)
        if left:
            self._left[name] = left

    def _look_at(self, name: str) -> _Block:
        module = self.model.get_submodule(name)
        by_module = {
            id(one): copied for one, copied in zip(self.model.modules(), self.paged.copies.filled, strict=True)
        }
        layers = [one for one in module.modules() if vars(one).get("_v") is not None]
        made = self._blocks[name] = _Block(module, tuple(by_module[id(one)] for one in module.modules()), layers)
        return made

    def _brought(self, block: _Block, layers: list[torch.nn.Module]) -> Brought | Refused:
        """Put what was fetched for some layers of a block into its copy."""
        parameters: dict[tuple[int, str], torch.Tensor] = {}
        bytes_streamed = 0
        for layer in layers:
            state = vars(layer)
            fetched, slot = state["_prefetch"], state["_v"]
            stays = fetched["signature"] is not None
            weight, bias = (tables(layer).parameters.get(key) for key in ("weight", "bias"))
            assert weight is not None
            if not stays and _requantised_by_us_alone(layer, weight):
                return Refused(reasons.DynamicVramMoves("weight", type(layer).__name__))
            arguments = {"compute_dtype": None, "want_requant": False, **cast_arguments(layer, weight, bias)}
            memory = slot[1:] if stays else _memory(fetched.get("xfer_dest"))
            if not stays:
                bytes_streamed += memory[1]
            resolved = self.host.resolve(layer, device=self.device, **arguments)
            for key, tensor in zip(("weight", "bias"), resolved, strict=True):
                if tensor is not None:
                    parameters[id(layer), key] = self._parameter(layer, key, tensor, memory)

        resident = Resident(self.paged.copies.small, self.device)

        def give(owner: torch.nn.Module, name: str, tensor: torch.Tensor) -> torch.Tensor:
            brought = parameters.get((id(owner), name))
            return resident.of(owner, name, tensor) if brought is None else brought

        fill(block.copies, block.module, give)
        resident.copy()
        return Brought(block.copies[0], bytes_streamed)

    def _parameter(
        self, layer: torch.nn.Module, key: str, tensor: torch.Tensor, memory: tuple[int, int]
    ) -> torch.nn.Parameter:
        """A weight as a parameter: the same one for the same memory, so that a graph is not bound anew to it."""
        address = id(layer), key, tuple(one.data_ptr() for one in tensors_of_weight(tensor))
        parameter = self._parameters.get(address)
        if parameter is None or (parameter.dtype, parameter.shape, parameter.stride()) != (
            tensor.dtype,
            tensor.shape,
            tensor.stride(),
        ):
            parameter = torch.nn.Parameter(tensor, requires_grad=False)
            if inside(tensor, *memory):  # anything else is memory of its own, to be freed after the block
                self._parameters[address] = parameter
        return parameter


class _NoRoom:
    """In place of comfy-aimdo's ModelVBAR: for no page is there room."""

    @staticmethod
    def fault(address: int, size: int) -> None:
        """Give no page."""

    @staticmethod
    def unpin(address: int, size: int) -> None:
        """Nothing: none was pinned."""


def _let_go(layers: list[torch.nn.Module]) -> None:
    """Unpin the pages of layers, and forget what was fetched. The host's own function for it differs by version."""
    for layer in layers:
        fetched = vars(layer).get("_prefetch")
        if fetched is None:
            continue
        for key in ("weight", "bias"):
            lora = getattr(layer, f"{key}_lowvram_function", None)
            if lora is not None:
                lora.clear_prepared()
        if fetched["signature"] is not None:
            vbar, start, size = vars(layer)["_v"]
            vbar.unpin(start, size)
        del layer._prefetch


def _busy(layers: list[torch.nn.Module]) -> Reason | None:
    """Why the weights of layers cannot be brought now, or None.

    The host itself may have fetched them before the block. What it fetched without a page is not for two: a LoRA is
    applied where the weights are, each time somebody asks for them.
    """
    fetched = [layer for layer in layers if "_prefetch" in vars(layer)]
    if fetched and len(fetched) != len(layers):
        return reasons.WeightsMoving()
    for layer in fetched:
        if vars(layer)["_prefetch"]["signature"] is None and _has_lora(layer):
            return reasons.WeightsMoving()
    return None


def _has_lora(layer: torch.nn.Module) -> bool:
    return any(getattr(layer, f"{key}_lowvram_function", None) is not None for key in ("weight", "bias"))


def _requantised_by_us_alone(layer: Any, weight: torch.Tensor) -> bool:
    """Whether a layer computes with a weight as a LoRA left it, where a graph reads that quantised once more."""
    return is_quantised(weight) and bool(getattr(layer, "_full_precision_mm", False)) and _has_lora(layer)


def _memory(buffer: torch.Tensor | None) -> tuple[int, int]:
    return (0, 0) if buffer is None else (buffer.data_ptr(), buffer.nbytes)


def is_possible() -> bool:
    """Tell whether this ComfyUI has what it takes to bring the weights of one block after the other."""
    return not contract.missing(contract.STREAMING)


def streamed(model: torch.nn.Module, paged: Paged, device: torch.device) -> StreamedBlocks | None:
    """Access block by block to the weights of a model; None where this ComfyUI lacks what that needs."""
    if not is_possible():
        return None
    import comfy.model_management
    import comfy.ops

    host = Transaction(
        comfy.ops.cast_modules_with_vbar,
        comfy.ops.resolve_cast_module_with_vbar,
        comfy.model_management.sync_stream,
    )
    return StreamedBlocks(model, paged, device, host)
