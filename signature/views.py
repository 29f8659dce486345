"""Calls that share containers with other calls, seen as calls of one block alone.

Video VAEs hand all their convolutions one list, in which each has a place for the frames before those at hand. What a
block does with its own places is a function of tensors as any other: a view takes them out before a call, and puts what
the block has left there back afterwards.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from typing import Any, Protocol

import torch

from ..common.reasons import Reason
from ..common.torch_private import memory_of
from .call_tree import class_of

VIEWED = "^"  # the key of a call that a view has opened


class UnservedCallError(TypeError):
    """A call that no graph may serve, with the reason."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.text)
        self.reason = reason


class View(Protocol):
    """How calls of the blocks of a class are seen."""

    def open(self, block: torch.nn.Module, named: Mapping[str, Any]) -> dict[str, Any]:
        """Return a call as one of the block alone.

        Args:
            named: its arguments by name.

        Raises:
            TypeError: it is no such call.
        """

    def call(self, block: torch.nn.Module, opened: Mapping[str, Any]) -> Any:
        """Make a call that was opened, which stays as it is; what it returns is for `close`."""

    def close(self, block: torch.nn.Module, named: Mapping[str, Any], returned: Any) -> Any:
        """Put what a call has left where the call's caller expects it, and return the block's result."""

    def open_result(self, block: torch.nn.Module, named: Mapping[str, Any], result: Any) -> tuple[Any, Any]:
        """Return what `call` returns, of the block's own call: the result, and what it has left; None: nothing."""


_views: dict[str, View] = {}
_holders: set[str] = set()
_kept: set[str] = set()


def register(cls: str, view: View) -> None:
    """Have calls of a class, `module:name`, seen so. It is a block wherever a model has it in a list or a sequence."""
    _views[cls] = view
    if isinstance(view, OfThread):
        _kept.add(view.attribute)
    _of_class.cache_clear()


def register_holder(cls: str) -> None:
    """Have a class, `module:name`, be no block: those that it holds are."""
    _holders.add(cls)


def is_kept(attribute: str) -> bool:
    """Whether modules keep something for their next call in an attribute of that name: a view has it in their calls."""
    return attribute in _kept


def is_holder(module: torch.nn.Module) -> bool:
    """Whether a module holds blocks, and is none itself. Nor is a plain `torch.nn.Module`, which nobody calls."""
    cls: Any = type(module)
    return cls is torch.nn.Module or _name(cls) in _holders


def view_of(block: torch.nn.Module) -> View | None:
    """Return how calls of a block are seen; None: as they are."""
    cls: Any = type(block)
    return _of_class(cls)


@functools.cache
def _of_class(cls: Any) -> View | None:
    return _views.get(_name(cls))


def _name(cls: Any) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def opened(block: torch.nn.Module, named: dict[str, Any]) -> dict[str, Any]:
    """Return a call's arguments as one of the block alone. Raises TypeError: it is no such call."""
    view = view_of(block)
    return named if view is None else {VIEWED: True, **view.open(block, named)}


def opened_result(block: torch.nn.Module, named: Mapping[str, Any], result: Any) -> tuple[Any, Any]:
    """Return what `View.call` returns for a call that the block itself has answered."""
    view = view_of(block)
    return (result, None) if view is None else view.open_result(block, named, result)


def closed(block: torch.nn.Module, named: Mapping[str, Any], returned: Any) -> Any:
    """Return a block's result from what a call that was opened has returned."""
    view = view_of(block)
    return returned if view is None else view.close(block, named, returned)


class Places:
    """Of blocks that are given a list with places for all of a model's convolutions, and a list with their position.

    Each place has the last frames of the call before, as a tensor [B, C, T, H, W]; none at first, or fewer than the
    convolution reaches back to, which then computes with zeros in their place. Those are put in, so that there is
    one form of a call for them.

    Args:
        count: how many places a block has.
        frames: how far a convolution reaches back.
        places: the argument that is the list.
        position: the one that holds the number of the block's first place, to be moved on.
    """

    def __init__(self, count: int, frames: int, places: str, position: str) -> None:
        self._count = count
        self._frames = frames
        self._places = places
        self._position = position

    def _first(self, named: Mapping[str, Any]) -> int:
        """The block's first place."""
        position, places = named[self._position], named[self._places]
        first = position[0] if type(position) is list and len(position) == 1 else None
        if type(first) is not int or type(places) is not list or not 0 <= first <= len(places) - self._count:
            raise TypeError("no place in the list of what is kept")
        return first

    def open(self, block: torch.nn.Module, named: Mapping[str, Any]) -> dict[str, Any]:
        others = {name: value for name, value in named.items() if name not in (self._places, self._position)}
        if named[self._places] is None:
            return others
        first = self._first(named)
        return {**others, self._places: [self._filled(one) for one in named[self._places][first : first + self._count]]}

    def _filled(self, kept: torch.Tensor | None) -> torch.Tensor | None:
        if kept is None or kept.ndim != 5 or kept.shape[2] >= self._frames:
            return kept
        shape = [*kept.shape]
        shape[2] = self._frames - kept.shape[2]
        return torch.cat((kept.new_zeros(shape), kept), 2)

    def call(self, block: torch.nn.Module, opened: Mapping[str, Any]) -> Any:
        cls: Any = type(block)
        named = {name: value for name, value in opened.items() if name != VIEWED}
        if self._places not in opened:
            return cls.forward(block, **named), None
        before = opened[self._places]
        left, position = [*before], [0]
        result = cls.forward(block, **{**named, self._places: left, self._position: position})
        if position != [self._count] or len(left) != self._count:
            raise TypeError("a block uses places of others")
        return result, apart(left, {memory_of(one) for one in tensors_in((*named.values(), before, result))})

    def close(self, block: torch.nn.Module, named: Mapping[str, Any], returned: Any) -> Any:
        result, left = returned
        if left is not None:
            first = self._first(named)
            named[self._places][first : first + self._count] = left
            named[self._position][0] += self._count
        return result

    def open_result(self, block: torch.nn.Module, named: Mapping[str, Any], result: Any) -> tuple[Any, Any]:
        end = named[self._position][0]
        return result, None if named[self._places] is None else named[self._places][end - self._count : end]


class Carried:
    """Of blocks that are given a list of what each convolution of the chunk before has left, and fill one for the next.

    Each takes what it needs from the first list's front; both lists are None in a call that is the first, or the last.

    Args:
        count: how many convolutions a block has.
        taken, left: the arguments that are the lists.
    """

    def __init__(self, count: int, taken: str, left: str) -> None:
        self._count = count
        self._taken = taken
        self._left = left

    def open(self, block: torch.nn.Module, named: Mapping[str, Any]) -> dict[str, Any]:
        others = {name: value for name, value in named.items() if name not in (self._taken, self._left)}
        carried = named[self._taken]
        if carried is None:
            return others
        if type(carried) is not list or len(carried) < self._count:
            raise TypeError("a list that has not what each convolution needs")
        return {**others, self._taken: carried[: self._count]}

    def call(self, block: torch.nn.Module, opened: Mapping[str, Any]) -> Any:
        cls: Any = type(block)
        named = {name: value for name, value in opened.items() if name != VIEWED}
        carried = [*named[self._taken]] if self._taken in named else None
        left: list[Any] = []
        result = cls.forward(block, **{**named, self._taken: carried, self._left: left})
        if carried or len(left) != self._count:
            raise TypeError("a block with another number of convolutions")
        return result, left

    def close(self, block: torch.nn.Module, named: Mapping[str, Any], returned: Any) -> Any:
        result, left = returned
        if named[self._taken] is not None:
            del named[self._taken][: self._count]
        if named[self._left] is not None:
            named[self._left].extend(left)
        return result

    def open_result(self, block: torch.nn.Module, named: Mapping[str, Any], result: Any) -> tuple[Any, Any]:
        return result, None if named[self._left] is None else named[self._left][-self._count :]


class OfThread:
    """Of blocks whose modules keep something for their next call, in a dictionary by the number of the thread.

    Args:
        attribute: the modules' dictionary.
    """

    def __init__(self, attribute: str) -> None:
        self.attribute = attribute

    def _modules(self, block: torch.nn.Module) -> list[dict[str, Any]]:
        return [vars(one) for one in block.modules() if self.attribute in vars(one)]

    def open(self, block: torch.nn.Module, named: Mapping[str, Any]) -> dict[str, Any]:
        thread = threading.get_ident()
        return {**named, self.attribute: [one[self.attribute].get(thread) for one in self._modules(block)]}

    def call(self, block: torch.nn.Module, opened: Mapping[str, Any]) -> Any:
        cls: Any = type(block)
        named = {name: value for name, value in opened.items() if name not in (VIEWED, self.attribute)}
        thread, modules = threading.get_ident(), self._modules(block)
        before = [one[self.attribute] for one in modules]
        try:
            for one, kept in zip(modules, opened[self.attribute], strict=True):
                one[self.attribute] = {} if kept is None else {thread: kept}
            result = cls.forward(block, **named)
            left = [one[self.attribute].get(thread) for one in modules]
        finally:
            for one, own in zip(modules, before, strict=True):
                one[self.attribute] = own
        given = [*tensors_in((*named.values(), opened[self.attribute])), *tensors_in(result)]
        return result, apart(left, {memory_of(one) for one in given})

    def close(self, block: torch.nn.Module, named: Mapping[str, Any], returned: Any) -> Any:
        result, left = returned
        for one, kept in zip(self._modules(block), left, strict=True):
            if kept is not None:
                one[self.attribute][threading.get_ident()] = kept
        return result

    def open_result(self, block: torch.nn.Module, named: Mapping[str, Any], result: Any) -> tuple[Any, Any]:
        return result, [one[self.attribute].get(threading.get_ident()) for one in self._modules(block)]


class Keyed:
    """Of blocks that are given a dictionary in which each of their modules has what it keeps for its next call.

    Args:
        kept: the argument that is the dictionary.
        members: arguments that are members of an enumeration, `module:name` of its class. A member is part of the form.
    """

    def __init__(self, kept: str, members: Mapping[str, str]) -> None:
        self._kept = kept
        self._members = members

    def open(self, block: torch.nn.Module, named: Mapping[str, Any]) -> dict[str, Any]:
        others = {name: value for name, value in named.items() if name != self._kept}
        for name, cls in self._members.items():
            if not isinstance(others[name], class_of(cls)):
                raise TypeError("no member of the enumeration")
            others[name] = others[name].name
        kept = named[self._kept]
        if kept is None:
            return others
        if type(kept) is not dict:
            raise TypeError("no dictionary of what is kept")
        return {**others, self._kept: [kept.get(one) for one in block.modules()]}

    def call(self, block: torch.nn.Module, opened: Mapping[str, Any]) -> Any:
        cls: Any = type(block)
        members: dict[str, Any] = {name: class_of(one) for name, one in self._members.items()}
        named = {name: members[name][one] if name in members else one for name, one in opened.items() if name != VIEWED}
        if self._kept not in opened:
            return cls.forward(block, **{**named, self._kept: None}), None
        modules = [*block.modules()]
        kept = {one: value for one, value in zip(modules, opened[self._kept], strict=True) if value is not None}
        result = cls.forward(block, **{**named, self._kept: kept})
        if not kept.keys() <= {*modules}:
            raise TypeError("a block keeps something for others")
        given = tensors_in((*named.values(), result))
        return result, apart([kept.get(one) for one in modules], {memory_of(one) for one in given})

    def close(self, block: torch.nn.Module, named: Mapping[str, Any], returned: Any) -> Any:
        result, left = returned
        for one, value in zip(block.modules(), left or (), strict=left is not None):
            if value is None:
                named[self._kept].pop(one, None)
            else:
                named[self._kept][one] = value
        return result

    def open_result(self, block: torch.nn.Module, named: Mapping[str, Any], result: Any) -> tuple[Any, Any]:
        kept = named[self._kept]
        return result, None if kept is None else [kept.get(one) for one in block.modules()]


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors in lists and tuples."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [one for part in value for one in tensors_in(part)] if isinstance(value, list | tuple) else []


def apart(value: Any, taken: set[int]) -> Any:
    """Return lists and tuples with copies of the tensors that share memory with others.

    Args:
        taken: the others' memory; what is returned is added.
    """
    if isinstance(value, list | tuple):
        return type(value)(apart(one, taken) for one in value)
    if not isinstance(value, torch.Tensor):
        return value
    kept = value.clone() if memory_of(value) in taken else value
    taken.add(memory_of(kept))
    return kept
