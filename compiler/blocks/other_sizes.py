"""A call's arguments at other sizes, where nobody says which sides of its tensors vary.

Each way to read a call (`readings`) gives other arguments, and the model itself tells which are right: it can be called
with those.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import torch

from ...signature.call_tree import OPTIONS

Arguments: TypeAlias = dict[str, Any]
Batches: TypeAlias = Literal["varied", "kept"]
Frames: TypeAlias = Literal["varied", "kept"]

_LISTED = (3, 4)  # dimensions of an image in a list, which has no batch


class Scale(NamedTuple):
    """In which units a model counts, beside a diffusion model of its family.

    Attributes:
        sides: by which heights and widths are multiplied.
        frames, more_frames: by which numbers of frames are multiplied, and what is added.
        texts: whether calls are of texts, which have lengths alone.
    """

    sides: float = 1.0
    frames: int = 1
    more_frames: int = 0
    texts: bool = False


AS_IT_IS = Scale()
TEXTS = Scale(texts=True)
FORWARD: Mapping[str, Scale] = {"forward": AS_IT_IS}  # of models that are called as modules


@dataclass(frozen=True)
class NewSizes:
    """What a call is to have."""

    batch: int
    tokens: int
    frames: int
    height: int
    width: int

    def scaled(self, by: Scale) -> NewSizes:
        """Return the sizes of a call that counts in other units."""
        height, width = (int(side * by.sides) for side in (self.height, self.width))
        return replace(self, frames=by.frames * self.frames + by.more_frames, height=height, width=width)


class Varying(NamedTuple):
    """Whether further calls may have other batches, and videos other frames, than the call."""

    batches: Batches = "varied"
    frames: Frames = "varied"


@dataclass
class Leaves:
    """What a call consists of, in order, but for its options.

    Attributes:
        main: the tensor that is an image or a video.
        listed: whether it is one of a list, and has no batch.
    """

    tensors: list[torch.Tensor] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    main: torch.Tensor | None = None
    listed: bool = False
    length: int = 0

    def walk(self, value: Any, among: Sequence[Any] = ()) -> None:
        """Record a value and those in it. `among`: the list that it is an entry of."""
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
            if self.main is None and value.is_floating_point() and value.ndim >= 3:
                alike = all(isinstance(one, torch.Tensor) and one.shape == value.shape for one in among)
                self.main, self.length = value, len(among)
                self.listed = bool(among) and alike and value.ndim in _LISTED
        elif type(value) is int:
            self.numbers.append(value)
        elif isinstance(value, Mapping):
            for name, one in value.items():
                if name != OPTIONS:
                    self.walk(one)
        elif type(value) in (list, tuple):
            for one in value:
                self.walk(one, value if type(value) is list else ())

    @property
    def batch(self) -> int:
        assert self.main is not None
        return self.length if self.listed else self.main.shape[0]


class Reading(ABC):
    """One way to read a call, and what is made of it. `batched`: whether the batch is another, too."""

    def __init__(self, leaves: Leaves, sizes: NewSizes, batched: bool) -> None:
        assert leaves.main is not None
        self._main = leaves.main.shape
        self._batch = leaves.batch
        self._new_batch = sizes.batch if batched else leaves.batch

    @abstractmethod
    def _size(self, tensor: torch.Tensor, dim: int, size: int) -> int:
        """What the size of a tensor's dimension becomes."""

    @abstractmethod
    def _number(self, place: int, value: int) -> int:
        """What a number becomes, the `place`th of the call."""

    def _indices(self, size: int, wanted: int) -> torch.Tensor:
        """Which entries of so many make up those wanted."""
        return torch.arange(wanted) % size

    def _is_batch(self, first: Any) -> bool:
        """Whether a list as long as the batch has an entry for each of it, to judge by its first one."""
        return False

    def arguments(self, named: Mapping[str, Any]) -> Arguments:
        """The arguments at other sizes."""
        self._seen = 0
        return {name: self._made(value) for name, value in named.items()}

    def _made(self, value: Any, batched: bool = False) -> Any:
        """A value at other sizes. `batched`: it belongs to one entry of a list that has one for each of the batch."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if type(value) is int:
            place, self._seen = self._seen, self._seen + 1
            return self._number(place, value)
        if type(value) is dict:
            return {name: one if name == OPTIONS else self._made(one, batched) for name, one in value.items()}
        if type(value) is list and value and len(value) == self._batch and not batched and self._is_batch(value[0]):
            made = [self._made(one, batched=True) for one in value]
            return [made[number % len(made)] for number in range(self._new_batch)]
        if type(value) in (list, tuple):
            return type(value)(self._made(one, batched) for one in value)
        return value

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        made = tensor
        for dim, size in enumerate(tensor.shape):
            wanted = self._size(tensor, dim, size)
            if wanted != size:
                made = made.index_select(dim, self._indices(size, wanted).to(tensor.device))
        return made
