"""What calls of a graph look like, remembered: most of a step's calls look alike and lie in the same places."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from ...common.torch_guards import TensorLooks
from ...signature.size_one_dims import SizeOneDims

_ADDRESS = torch.Tensor.data_ptr
MOST_SEEN = 8  # looks of calls of one graph that are remembered
_MOST_PLACES = 64  # addresses of calls of one look


class Memory(NamedTuple):
    """Where a call's tensors are.

    Attributes:
        shared: whether one that the block changes lies where another one does.
        as_expected: whether all are as compiled code expects them.
    """

    shared: bool
    as_expected: bool


_EXPECTED, _UNEXPECTED = Memory(False, True), Memory(False, False)


@dataclass(frozen=True, eq=False)
class Seen:
    """What calls of some look are like: of these sizes, dtypes, strides and devices.

    Attributes:
        numbers: whole numbers among the leaves.
        sizes: the values of the graph's symbols by names; None: it does not serve them.
        elsewhere: a device that is not the graph's, or None.
        as_they_are: whether all tensors are as compiled code expects them, whatever their addresses.
        extents: bytes from the first to the last element of each tensor.
        memory: what is known of calls by their tensors' addresses.
        ones: by which they differ from those that the graph serves, where that is why it does not serve them.
        outside_rules: whether their sizes do not follow from one another as those of the graph's calls.
    """

    looks: TensorLooks
    numbers: list[int]
    sizes: Mapping[str, int] | None
    elsewhere: torch.device | None
    as_they_are: bool
    extents: list[int]
    memory: dict[tuple[int, ...], Memory] = field(default_factory=dict)
    ones: SizeOneDims | None = None
    outside_rules: bool = False

    @classmethod
    def of(
        cls,
        tensors: Sequence[torch.Tensor],
        numbers: list[int],
        sizes: Mapping[str, int] | None,
        elsewhere: torch.device | None = None,
        ones: SizeOneDims | None = None,
        outside_rules: bool = False,
    ) -> Seen:
        """Look at a call."""
        plain = all(one.is_contiguous() and not one.is_neg() and not one.is_conj() for one in tensors)
        extents = list(map(_extent, tensors))
        return cls(TensorLooks(tensors), numbers, sizes, elsewhere, plain, extents, {}, ones, outside_rules)

    def memory_of(self, tensors: Sequence[torch.Tensor], changed: Sequence[int]) -> Memory:
        """Where the tensors of a call of this look are. `changed`: those that the module writes to."""
        addresses = tuple(map(_ADDRESS, tensors))
        if not changed:  # a step's own tensors rarely come back to where they were
            return _EXPECTED if self.as_they_are and not functools.reduce(operator.or_, addresses) % 16 else _UNEXPECTED
        return self.memory.get(addresses) or self._looked_at(addresses, changed)

    def _looked_at(self, addresses: tuple[int, ...], changed: Sequence[int]) -> Memory:
        if len(self.memory) >= _MOST_PLACES:
            self.memory.clear()
        aligned = not functools.reduce(operator.or_, addresses) % 16
        memory = Memory(self._shares(addresses, changed), self.as_they_are and aligned)
        self.memory[addresses] = memory
        return memory

    def _shares(self, addresses: Sequence[int], changed: Sequence[int]) -> bool:
        """Whether a tensor that the block changes lies where another one of the call does."""
        spans = [*zip(addresses, map(operator.add, addresses, self.extents), strict=True)]
        for number in changed:
            begin, end = spans[number]
            if sum([other < end and begin < its_end for other, its_end in spans]) > 1:
                return True
        return False


def _extent(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (1 + last) * tensor.element_size()


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous, aligned and with its values in memory, as compiled code expects."""
    if tensor.is_contiguous() and not tensor.data_ptr() % 16 and not tensor.is_neg() and not tensor.is_conj():
        return tensor
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    return tensor.clone() if tensor.data_ptr() % 16 else tensor
