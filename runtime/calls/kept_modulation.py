"""What the modulation of blocks returned, kept from step to step where weights are streamed: a timestep that was met
before needs none of its weights, a third of some models.

Kept by the bits of what the module saw, as long as its weights are what they were, in system memory; the block itself
runs by a graph that takes the results as arguments (`signature/modulation.py`). A result is the module's own,
computed as uncompiled, to the bit. All blocks of a step see one tensor, which is read once: in a run's first step, and
where other code runs between blocks, for each of them, since that may write to it.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...common import reasons
from ...common.reasons import Reason
from ...common.refused import Refused
from ...common.tensor_bytes import bytes_of
from ...common.torch_private import writes_to
from ...signature.call_rules import Attention
from ...signature.call_tree import OPTIONS, Form, UnknownArgumentError, flatten, is_function, rebuild
from ...signature.modulation import GIVEN, Given, watching
from ...signature.parameters import parameters_of
from ...signature.views import view_of
from ..obtain.registry import Registry, registry
from .client import BlockClient
from .look_ahead import LookAhead, is_as_written
from .requests import stored_modulation
from .run_block import RunBlock
from .weight_source import WeightSource

_MOST = 128  # results of one module: in fp8 they take a twelfth of its weights where these are 3,072 wide
_LATER = 64  # timesteps that are looked ahead to
_LOOKS = 4  # calls of the model in a run at which is looked ahead: its first steps, with and without a prompt
_MOST_VALUES = 1 << 16  # of an argument that is read each step
_ALIGNED = 256  # bytes
_DEEPEST = 6  # containers in each other, one of which may hold itself
_AROUND = {"wrappers", "callbacks"}  # of the options: they run around a model's call, not between its blocks

# By the architecture digests of blocks, of each registry, whose graphs they are for; empty: none.
_modules: weakref.WeakKeyDictionary[Registry, dict[str, tuple[Given, ...]]] = weakref.WeakKeyDictionary()


class Packed:
    """A result as one run of bytes in system memory."""

    def __init__(self, result: Any, packages: Sequence[str]) -> None:
        self._form: Form
        self._form, leaves = flatten(result, packages)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self._places: list[tuple[int, torch.Size, torch.dtype]] = []
        size = 0
        for tensor in tensors:
            self._places.append((size, tensor.shape, tensor.dtype))
            size += -(-tensor.nbytes // _ALIGNED) * _ALIGNED
        device = tensors[0].device
        packed = torch.empty(size, dtype=torch.uint8, device=device)
        for view, tensor in zip(self._views(packed), tensors, strict=True):
            view.copy_(tensor)
        self.first = self._result(packed)
        self._bytes, self._copied = packed, None
        if device.type != "cpu":
            self._bytes = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            self._bytes.copy_(packed, non_blocking=True)
            self._copied = torch.get_device_module(device).Event()
            self._copied.record()

    def on(self, device: torch.device) -> Any:
        """The result on a device: tensors of its own, which a block may change."""
        if self._copied is None:
            return self._result(self._bytes.clone())
        self._copied.wait()  # on the current stream
        return self._result(self._bytes.to(device, non_blocking=True))

    def _views(self, packed: torch.Tensor) -> list[torch.Tensor]:
        return [
            packed[start : start + shape.numel() * dtype.itemsize].view(dtype).view(shape)
            for start, shape, dtype in self._places
        ]

    def _result(self, packed: torch.Tensor) -> Any:
        return rebuild(self._form, self._views(packed))


@dataclass
class _Results:
    """What one module returned.

    Attributes:
        facts: of its weights then.
    """

    facts: Any
    by_bits: dict[Any, Packed]


_kept: weakref.WeakKeyDictionary[torch.nn.Module, dict[Given, _Results]] = weakref.WeakKeyDictionary()  # of blocks


@dataclass
class Watching:
    """A call of a block that is watched. `named`: its arguments with what its modulation returned; empty: nothing."""

    named: Mapping[str, Any] = field(default_factory=dict)


class KeptModulation:
    """The modulation of the blocks of one run."""

    def __init__(self, client: BlockClient) -> None:
        self._client = client
        self._source: WeightSource | None = None
        self._kept = self._computed = 0
        self._steps = 0
        self._read: dict[int, tuple[torch.Tensor, int | None, Any]] = {}  # in this step
        self._changes = False  # a tensor was written to between two blocks
        self._ahead: dict[str, dict[Any, torch.Tensor]] = {}  # by names of arguments and bits, what may be given later
        self._asked: set[str] = set()
        self._known = _modules.setdefault(registry(), {})

    @property
    def counts(self) -> tuple[int, int]:
        """How many calls of modules were answered by a kept result, and how many were not."""
        return self._kept, self._computed

    def begin(self, source: WeightSource | None) -> None:
        """A call of the model begins. `source`: of its weights, which are streamed; None: they are in place."""
        self._source = source
        self._steps += 1
        self._read.clear()

    def forget(self) -> None:
        """The call of the model is over: keep none of its tensors."""
        self._read.clear()

    def given(
        self, one: RunBlock, method: str, named: Mapping[str, Any], attention: Attention, options: Any
    ) -> Mapping[str, Any] | Refused:
        """The arguments of a call of a block, with what its modulation returns for it where such results are kept."""
        source = self._source
        if source is None or method != "forward" or attention != "captured":
            return named
        results: dict[str, Any] = {}
        try:
            for module in self._modules(one):
                argument = named.get(module.argument)
                facts = source.facts(one.name, module.module)
                if isinstance(facts, Refused):
                    return facts
                if facts is None or not isinstance(argument, torch.Tensor) or argument.numel() > _MOST_VALUES:
                    return named
                found = self._result(one, module, (one.version, facts), argument, options, source)
                if isinstance(found, Refused):
                    return found
                results[str(module)] = found
        except torch.OutOfMemoryError:
            return Refused(reasons.MemoryRanOut())
        return {**named, GIVEN: results} if results else named

    def look_ahead(
        self,
        model: torch.nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        timesteps: Sequence[float],
        block_of: Callable[[torch.nn.Module], RunBlock | None],
    ) -> None:
        """Predict what blocks are given at later timesteps, so that a module's weights are brought once for all.

        Done before a call of the model, and only if its blocks are given now what they never were.
        """
        if self._source is None or self._steps > _LOOKS or not timesteps or _has_functions(kwargs.get(OPTIONS)):
            return
        if not is_as_written(model, lambda module: block_of(module) is not None, self._client.rules().beside):
            return
        try:
            looking = LookAhead(model, args, kwargs, timesteps, self._client.packages)
        except (UnknownArgumentError, TypeError):
            return
        now = looking.first_block(looking.current)
        one = None if now is None else block_of(now[0])
        if now is None or one is None:
            return
        names = {module.argument for module in self._modules(one)}
        tables = _kept.get(one.block, {}).values()
        known = {bits for table in tables for bits in table.by_bits}
        if not names or all(_bits_of(now[1][name]) in known for name in names):
            return
        for timestep in looking.later[:_LATER]:
            found = looking.first_block(timestep)
            for name, value in found[1].items() if found is not None else ():
                if name in names:
                    self._ahead.setdefault(name, {})[_bits_of(value)] = value

    def _modules(self, one: RunBlock) -> tuple[Given, ...]:
        """The modules of a block whose results are kept, so far as is known."""
        architecture = one.guard.architecture(one.skeleton)
        if architecture not in self._known and architecture not in self._asked:
            self._asked.add(architecture)
            stored = stored_modulation(self._client, architecture)
            if stored:
                self._known[architecture] = stored
        return self._known.get(architecture, ())

    def gave_up(self, one: RunBlock) -> bool:
        """Whether there is no graph for a block's last call because its modulation was given; no further one is."""
        kind = one.kinds[0] if one.kinds else None
        if kind is None or not kind.without or kind.graph is not None or kind.refusal == reasons.BlockRecorded():
            return False
        self._known[one.guard.architecture(one.skeleton)] = ()
        return True

    @contextlib.contextmanager
    def watched(
        self, one: RunBlock, method: str, args: Sequence[Any], kwargs: Mapping[str, Any], reason: Reason
    ) -> Iterator[Watching]:
        """While a block runs uncompiled: see which of its modules have results to keep, where that is not known.

        Args:
            reason: why it runs so.
        """
        self._read.clear()  # whatever runs may write to it
        source, packages, found = self._source, self._client.packages, Watching()
        recorded = source is not None and reason == reasons.BlockRecorded() and method == "forward"
        recorded = recorded and view_of(one.block) is None
        architecture = one.guard.architecture(one.skeleton) if recorded else ""
        if source is None or not recorded or architecture in self._known:
            yield found
            return
        cls: Any = type(one.block)
        named = parameters_of(cls).bind(args, kwargs)
        with watching(one.block, named, packages) as seen:
            yield found
        facts = {module: source.facts(one.name, module.module) for module in seen.results}
        if any(isinstance(fact, Refused) for fact in facts.values()):
            return
        given = {module: result for module, result in seen.results.items() if facts[module] is not None}
        self._known[architecture] = tuple(given)
        if given:
            found.named = {**named, GIVEN: {str(module): result for module, result in given.items()}}

    def _result(
        self, one: RunBlock, module: Given, facts: Any, argument: torch.Tensor, options: Any, source: WeightSource
    ) -> Any:
        table = _kept.setdefault(one.block, {})
        known = table.get(module)
        if known is None or known.facts != facts:
            known = table[module] = _Results(facts, {})
        bits = self._bits(argument, options)
        packed = known.by_bits.get(bits)
        if packed is not None:
            self._kept += 1
            return packed.on(argument.device)
        self._computed += 1
        ahead = self._ahead.get(module.argument, {})
        wanted = {key: one for key, one in ahead.items() if _alike(key, bits) and key not in known.by_bits}
        wanted.pop(bits, None)
        computed = source.results(one.name, module.module, [argument, *wanted.values()])
        if isinstance(computed, Refused):
            return computed
        for key, result in zip((bits, *wanted), computed, strict=True):
            packed = Packed(result, self._client.packages)
            if key == bits:
                first = packed.first
            packed.first = None
            if len(known.by_bits) >= _MOST:
                known.by_bits.pop(next(iter(known.by_bits)), None)  # None: another thread did
            known.by_bits[key] = packed
        return first

    def _bits(self, tensor: torch.Tensor, options: Any) -> Any:
        """What a tensor holds. It is read once in a step, if nobody can have written to it since."""
        version = writes_to(tensor)
        known = self._read.get(id(tensor))
        unwritten = known is not None and known[1] == version
        if known is not None and unwritten and self._steps > 1 and not self._changes and not _has_functions(options):
            return known[2]
        bits = _bits_of(tensor)
        self._changes = self._changes or (known is not None and known[2] != bits)
        self._read[id(tensor)] = tensor, version, bits
        return bits


def _bits_of(tensor: torch.Tensor) -> Any:
    """What a tensor holds, to be compared. Waits for its device."""
    return tensor.dtype, tensor.shape, bytes_of(tensor)


def _alike(bits: Any, others: Any) -> bool:
    """Whether two tensors have one dtype and one shape."""
    return bool(bits[:2] == others[:2])


def _has_functions(options: Any) -> bool:
    """Whether options have code of others, which may run between blocks."""
    if not isinstance(options, dict):
        return options is not None
    return any(_has_function(value, _DEEPEST) for key, value in options.items() if key not in _AROUND)


def _has_function(value: Any, depth: int) -> bool:
    """Whether a value has code; containers in each other are looked into, but one that is too deep may have some."""
    if isinstance(value, dict | list | tuple):
        items = value.values() if isinstance(value, dict) else value
        return bool(value) and (not depth or any(_has_function(item, depth - 1) for item in items))
    return is_function(value) or (callable(value) and not isinstance(value, type))
