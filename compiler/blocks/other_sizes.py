"""A call's arguments at other sizes where tensors alone do not say which of their sides vary.

Images may come as tokens [B, N, C], with their sides as numbers beside them; channels may be the last side or the
second; an image of a batch may be an entry of a list; it may be one of colours, cut into large patches. Each way to
read a call gives other arguments, and the model itself tells which are right: it can be called with those.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import torch

Arguments: TypeAlias = dict[str, Any]
Batches: TypeAlias = Literal["varied", "kept"]
Frames: TypeAlias = Literal["varied", "kept"]

BATCHED: Mapping[Batches, tuple[bool, ...]] = {"varied": (True, False), "kept": (False,)}  # most telling first

# Which sides of the main tensor are those of an image or a video, or its tokens; by the number of its dimensions.
_SIDES: Mapping[int, tuple[tuple[int, ...], ...]] = {
    3: ((1,), (2,)),
    4: ((2, 3), (1, 2)),
    5: ((2, 3, 4), (1, 3, 4), (1, 2, 3)),
}
_LISTED_SIDES: Mapping[int, tuple[tuple[int, ...], ...]] = {3: ((1, 2),), 4: ((2, 3), (1, 2, 3))}
_TEXTS_DIFFER = 3  # in length, those of several prompts
_PATCH = 4  # pixels of a token of an image
_COLOURS = 3  # channels of an image that is no latent
_PIXELS = 8  # of such an image, for each of a latent
_COLOUR_PATCHES = (16 * 16, 32 * 32)  # pixels of a token of such an image


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


def ways(
    named: Mapping[str, Any], sizes: NewSizes, batches: Batches = "varied"
) -> tuple[list[Callable[[], Arguments]], bool]:
    """Return the ways to have a call at other sizes.

    Args:
        batches: whether the batch may be another, too.

    Returns:
        What makes the arguments by name, for each way; and whether the call has its images in a list, one an entry.
    """
    leaves = _Leaves()
    leaves.walk(named)
    if leaves.main is None:
        return [], False
    sides = (_LISTED_SIDES if leaves.listed else _SIDES).get(leaves.main.ndim, ())
    made: list[Callable[[], Arguments]] = []
    for batched, some in itertools.product(BATCHED[batches], sides):
        made.append(functools.partial(_arguments, leaves, some, sizes, batched, named))
    if leaves.main.ndim == 4 and leaves.main.shape[1] == _COLOURS:
        pixels = replace(sizes, height=_PIXELS * sizes.height, width=_PIXELS * sizes.width)
        for batched in BATCHED[batches]:
            made.append(functools.partial(_arguments, leaves, (2, 3), pixels, batched, named, _COLOUR_PATCHES))
    return made, leaves.listed


def _arguments(
    leaves: _Leaves,
    sides: tuple[int, ...],
    sizes: NewSizes,
    batched: bool,
    named: Mapping[str, Any],
    patches: tuple[int, ...] = (),
) -> Arguments:
    return _Reading(leaves, sides, sizes, batched, patches).arguments(named)


@dataclass
class _Leaves:
    """What a call consists of, in order.

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
        """Take a value down. `among`: the list that it is an entry of."""
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
            if self.main is None and value.is_floating_point() and value.ndim >= 3:
                alike = all(isinstance(one, torch.Tensor) and one.shape == value.shape for one in among)
                self.main, self.length = value, len(among)
                self.listed = bool(among) and alike and value.ndim in _LISTED_SIDES
        elif type(value) is int:
            self.numbers.append(value)
        elif isinstance(value, Mapping):
            for one in value.values():
                self.walk(one)
        elif type(value) in (list, tuple):
            for one in value:
                self.walk(one, value if type(value) is list else ())

    @property
    def batch(self) -> int:
        assert self.main is not None
        return self.length if self.listed else self.main.shape[0]


class _Reading:
    """One way to read a call, and what is made of it.

    Args:
        patches: pixels of a token that an image of colours may have; its prompt may be one of whole numbers.
    """

    def __init__(
        self, leaves: _Leaves, sides: tuple[int, ...], sizes: NewSizes, batched: bool, patches: tuple[int, ...] = ()
    ) -> None:
        main = leaves.main
        assert main is not None
        self._main = main.shape
        self._listed = leaves.listed
        self._batch = leaves.batch
        self._new_batch = sizes.batch if batched else leaves.batch
        old = [main.shape[side] for side in sides]
        self._numbers: dict[int, int] = {}
        if len(sides) == 1:
            new = [self._tokens(leaves.numbers, old[0], sizes)]
        else:
            new = [sizes.frames, sizes.height, sizes.width][-len(sides) :]
        self._sides = dict(zip(sides, new, strict=True))
        texts = self._texts(leaves, old[0] if len(sides) == 1 else 0, bool(patches))
        self._map: dict[int, int] = {}
        for was, now in [*zip(old, new, strict=True), *_counts(old, new, patches)]:
            self._map.setdefault(was, now)
        images = dict(self._map)
        # Of a table [x, y] of fractions, y may be channels: no side of an image, though a number of frames or tokens.
        self._sides_alone = {*old[-2:]} if len(sides) > 1 else set()
        self._joined: dict[
            int, tuple[int, int]
        ] = {}  # lengths of a prompt and an image, and of the prompt, then and now
        self._but_last: dict[int, int] = {}  # lengths of prompts without their last token, which numbers may tell
        for number, text in enumerate(texts):
            other = sizes.tokens + _TEXTS_DIFFER * number
            self._map.setdefault(text, other)
            if patches:
                self._but_last.setdefault(text - 1, other - 1)
            for was, now in images.items():
                if text + was not in self._map:
                    self._map[text + was] = other + now
                    self._joined[text + was] = text, other
        for was, now in zip(old, new, strict=True):
            if not was % 2 and not now % 2 and was // 2 not in self._map:
                self._map[was // 2] = now // 2
                self._sides_alone.add(was // 2)
        self._map.pop(1, None)

    def _tokens(self, numbers: list[int], count: int, sizes: NewSizes) -> int:
        """How many tokens an image is to have, of whose sides a call may tell as two or three numbers in a row."""
        for length, new in (
            (3, (sizes.frames, sizes.height // 2, sizes.width // 2)),
            (2, (sizes.height // 2, sizes.width // 2)),
        ):
            start = 0
            total = 0
            while start + length <= len(numbers):
                sides = numbers[start : start + length]
                if math.prod(sides) != count or count <= 1:
                    start += 1
                    continue
                made = [1 if side == 1 and length == 3 else other for side, other in zip(sides, new, strict=True)]
                self._numbers |= {start + n: other for n, other in enumerate(made)}
                total = math.prod(made)
                start += length
            if total:
                return total
        return sizes.height * sizes.width // _PATCH

    def _texts(self, leaves: _Leaves, tokens: int, numbered: bool) -> list[int]:
        """The lengths of prompts, each once. `numbered`: also of those of whole numbers."""
        lengths: dict[int, None] = {}
        for tensor in leaves.tensors:
            dim = 0 if self._listed else 1
            prompt = tensor.ndim == 2 if self._listed else tensor.ndim in (3, 4) and tensor.shape[0] == self._batch
            if tensor.is_floating_point() and prompt and tensor.shape != self._main:
                lengths[tensor.shape[dim]] = None
            elif numbered and tensor.dtype is torch.int64 and tensor.ndim == 2:
                lengths[tensor.shape[1]] = None
        return [one for one in lengths if one > 1 and one != tokens]

    def arguments(self, named: Mapping[str, Any]) -> Arguments:
        """The arguments at other sizes."""
        self._seen = 0
        return {name: self._made(value) for name, value in named.items()}

    def _made(self, value: Any, batched: bool = False) -> Any:
        """A value at other sizes. `batched`: it belongs to one entry of a list that has one for each of the batch."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if type(value) is int:
            number, self._seen = self._seen, self._seen + 1
            mapped = self._map.get(value, self._but_last.get(value, value)) if value > 2 else value
            return self._numbers.get(number, mapped)
        if type(value) is dict:
            return {name: self._made(one, batched) for name, one in value.items()}
        if type(value) is list and value and len(value) == self._batch and not batched and self._is_batch(value[0]):
            made = [self._made(one, batched=True) for one in value]
            return [made[number % len(made)] for number in range(self._new_batch)]
        if type(value) in (list, tuple):
            return type(value)(self._made(one, batched) for one in value)
        return value

    def _is_batch(self, first: Any) -> bool:
        return type(first) in (list, tuple) or (self._listed and isinstance(first, torch.Tensor))

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        made = tensor
        for dim, size in enumerate(tensor.shape):
            wanted = self._size(tensor, dim, size)
            if wanted != size:
                made = made.index_select(dim, self._indices(size, wanted).to(tensor.device))
        return made

    def _size(self, tensor: torch.Tensor, dim: int, size: int) -> int:
        if dim == 0 and size == self._batch and (not self._listed or tensor.ndim == 1):
            return self._new_batch
        same = tensor.ndim == len(self._main) and all(tensor.shape[side] == self._main[side] for side in self._sides)
        if same and (self._listed or tensor.shape[0] == self._main[0]):
            return self._sides.get(dim, size)
        if tensor.is_floating_point() and dim == tensor.ndim - 1 and dim >= (1 if self._listed else 2):
            return size  # channels
        if tensor.is_floating_point() and (tensor.ndim, dim) == (2, 1) and size in self._sides_alone:
            return size
        return self._map.get(size, size)

    def _indices(self, size: int, wanted: int) -> torch.Tensor:
        """Which entries of so many make up those wanted: the prompt's and then the image's, where both are there."""
        text, other = self._joined.get(size, (0, 0))
        if not text:
            return torch.arange(wanted) % size
        return torch.cat([torch.arange(other) % text, text + torch.arange(wanted - other) % (size - text)])


def _counts(old: list[int], new: list[int], patches: tuple[int, ...] = ()) -> Iterator[tuple[int, int]]:
    """Numbers of tokens, before and after: of a video or an image, without patches and with those of two by two.

    Args:
        patches: pixels of further ones.
    """
    if len(old) == 1:
        if not old[0] % _PATCH and not new[0] % _PATCH:
            yield old[0] // _PATCH, new[0] // _PATCH
        return
    for some in (slice(None), slice(-2, None)):
        was, now = math.prod(old[some]), math.prod(new[some])
        yield was, now
        for patch in (_PATCH, *patches):
            if not was % patch and not now % patch:
                yield was // patch, now // patch
