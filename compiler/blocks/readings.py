"""The ways to read a call that is to have other sizes, most telling first: see `Reading`.

A call is read by place: batch, channels and then sides, with texts of [B, N, C]. Or it is read by value, and what is as
long as something known follows it: images may come as tokens [B, N, C], with their sides as numbers beside them;
channels may be the last side or the second; an image of a batch may be an entry of a list; it may be one of colours,
cut into large patches.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeAlias, get_args

import torch

from .other_sizes import Arguments, Batches, Leaves, NewSizes, Reading, Varying

# Which sides change of pictures beside the main one that have other sides.
_Pictures: TypeAlias = Literal["all", "longest", "first", "none"]

_BATCHED: Mapping[Batches, tuple[bool, ...]] = {"varied": (True, False), "kept": (False,)}  # most telling first

# Which sides of the main tensor are those of an image or a video, or its tokens; by the number of its dimensions.
_SIDES: Mapping[int, tuple[tuple[int, ...], ...]] = {
    3: ((1,), (2,)),
    4: ((2, 3), (1, 2)),
    5: ((2, 3, 4), (1, 3, 4), (1, 2, 3)),
}
_LISTED_SIDES: Mapping[int, tuple[tuple[int, ...], ...]] = {3: ((1, 2),), 4: ((2, 3), (1, 2, 3))}
_TEXTS_DIFFER = 3  # in length, those of several prompts
_VIDEO = 5  # dimensions
_PICTURE = 8  # pixels of a picture that steers a model, for each latent unit
_PATCH = 4  # pixels of a token of an image
_COLOURS = 3  # channels of an image that is no latent
_COLOUR_PATCHES = (16 * 16, 32 * 32)  # pixels of a token of such an image


def ways(named: Mapping[str, Any], sizes: NewSizes, varying: Varying) -> list[Callable[[], Arguments]]:
    """Return the ways to have a call at other sizes, most telling first; each gives the arguments by name."""
    leaves = Leaves()
    leaves.walk(named)
    main = leaves.main
    if main is None:
        return []
    if varying.frames == "kept" and main.ndim == _VIDEO:
        sizes = replace(sizes, frames=main.shape[2])
    batched = _BATCHED[varying.batches]
    made: list[Callable[[], Reading]] = []
    if not leaves.listed:
        pictures = itertools.product(batched, get_args(_Pictures))
        made += [functools.partial(ByPlace, leaves, sizes, *one) for one in pictures]
    sides = itertools.product(batched, (_LISTED_SIDES if leaves.listed else _SIDES).get(main.ndim, ()))
    made += [functools.partial(ByValue, leaves, sizes, *one) for one in sides]
    if main.ndim == 4 and main.shape[1] == _COLOURS:
        pixels = replace(sizes, height=_PICTURE * sizes.height, width=_PICTURE * sizes.width)
        made += [functools.partial(ByValue, leaves, pixels, one, (2, 3), _COLOUR_PATCHES) for one in batched]
    return [functools.partial(_arguments, one, named) for one in made]


def _arguments(reading: Callable[[], Reading], named: Mapping[str, Any]) -> Arguments:
    return reading().arguments(named)


class ByPlace(Reading):
    """A call of tensors [batch, channels, sides], and of texts [batch, tokens, channels].

    Args:
        pictures: which sides change of tensors of four and more dimensions beside the main one.
    """

    def __init__(self, leaves: Leaves, sizes: NewSizes, batched: bool, pictures: _Pictures) -> None:
        super().__init__(leaves, sizes, batched)
        self._image, self._sizes, self._pictures = leaves.main, sizes, pictures
        self._tokens = {one.shape[1] for one in leaves.tensors if one.ndim == 3}
        images = [one for one in leaves.tensors if one.ndim > 3]
        sides = [(one, dim, was) for one in images for dim, was in enumerate(one.shape) if dim >= 2 < was]
        self._sides = {was: self._size(one, dim, was) for one, dim, was in sides}  # which numbers may tell, too

    def _number(self, place: int, value: int) -> int:
        return self._sides.get(value, value)

    def _size(self, tensor: torch.Tensor, dim: int, size: int) -> int:
        if dim == 0:
            return self._new_batch if size == self._batch else size
        if tensor.ndim > 3:
            return self._side(tensor, dim) if dim in self._changing(tensor) else size
        if dim > 1:
            return size
        if tensor is self._image:
            return self._sizes.height * self._sizes.width // _PATCH
        if tensor.ndim == 3 or size in self._tokens:
            return self._sizes.tokens if size > 1 else size
        return self._sizes.frames if len(self._main) == _VIDEO and size == self._main[2] > 1 else size

    def _changing(self, tensor: torch.Tensor) -> list[int]:
        """The sides that change of a tensor of four or more dimensions."""
        sides = [*range(max(2, tensor.ndim - 3), tensor.ndim)]
        if self._pictures == "all" or tensor.shape[-2:] == self._main[-2:]:  # the same picture, or one frame of it
            return sides
        if self._pictures == "longest":
            return [max(sides, key=lambda dim: tensor.shape[dim])]
        return sides[:1] if self._pictures == "first" else []

    def _side(self, tensor: torch.Tensor, dim: int) -> int:
        """The size of a side: as much of the main tensor's as it is now, else one of its own."""
        size, from_end = tensor.shape[dim], tensor.ndim - dim
        wanted = (self._sizes.width, self._sizes.height, self._sizes.frames)[from_end - 1]
        if size == 1:
            return 1
        if tensor.ndim >= len(self._main) >= from_end + 2:
            main = self._main[-from_end]
            if size in (main, _PICTURE * main):
                return wanted * (size // main)
            if 2 * size == main:  # a pose at half the resolution
                return wanted // 2
            if from_end == 3 and abs(size - main) == 1:  # frames with one of a reference before them, or without it
                return wanted + size - main
        return max(2, wanted + (4 if from_end == 1 else -4))


class ByValue(Reading):
    """A call of which everything that is as long as something known is to follow it.

    Args:
        sides: of the main tensor, which are those of an image or a video, or its tokens.
        patches: pixels of a token that an image of colours may have; its prompt may be one of whole numbers.
    """

    def __init__(
        self, leaves: Leaves, sizes: NewSizes, batched: bool, sides: tuple[int, ...], patches: tuple[int, ...] = ()
    ) -> None:
        super().__init__(leaves, sizes, batched)
        main = self._main
        self._listed = leaves.listed
        old = [main[side] for side in sides]
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

    def _texts(self, leaves: Leaves, tokens: int, numbered: bool) -> list[int]:
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

    def _number(self, place: int, value: int) -> int:
        mapped = self._map.get(value, self._but_last.get(value, value)) if value > 2 else value
        return self._numbers.get(place, mapped)

    def _is_batch(self, first: Any) -> bool:
        return type(first) in (list, tuple) or (self._listed and isinstance(first, torch.Tensor))

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
