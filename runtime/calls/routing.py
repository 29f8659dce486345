"""Calls of blocks are routed to this thread's session, if it has one, by a forward, or another method, on the block
itself.

It stands there only while a call of a model lasts that has a session: a copy of a model would call the blocks of the
one that it was copied from. A thread without a session calls the class's own method. What a block's own methods call is
no call of the model: of a block that is called by several of them, the outermost call is routed alone.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

import torch


class Session(Protocol):
    """What takes the calls of blocks."""

    def call_of(self, block: torch.nn.Module, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call of a routed module."""


_session: ContextVar[Session | None] = ContextVar("onegraph_block_session", default=None)
_lock = threading.Lock()
_users: Counter[tuple[int, str]] = Counter()  # sessions that calls are routed for, by the block's id and its method


class Route:
    """A method of one block while its calls are routed. `alone`: the block is called by no other one."""

    __slots__ = ("_alone", "_block", "_function", "_name")

    def __init__(self, block: torch.nn.Module, name: str, alone: bool) -> None:
        self._block = block  # a circle for as long as the route is there
        self._name = name
        self._function: Callable[..., Any] = getattr(type(block), name)
        self._alone = alone

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        session = _session.get()
        if session is None:
            return self._function(self._block, *args, **kwargs)
        if self._alone:
            return session.call_of(self._block, self._name, args, kwargs)
        before = _session.set(None)
        try:
            return session.call_of(self._block, self._name, args, kwargs)
        finally:
            _session.reset(before)


@contextlib.contextmanager
def answered_by(session: Session) -> Iterator[None]:
    """While this lasts, another session takes this thread's calls of the modules that are routed."""
    before = _session.set(session)
    try:
        yield
    finally:
        _session.reset(before)


class MethodSlot(NamedTuple):
    """Where a method of a block is looked up when it is called.

    Attributes:
        table: has it by its name; the block's own attributes, as a rule.
        usual: what stands there where nobody took it; None: nothing.
        name: of the method.
    """

    table: dict[str, Any]
    usual: Any = None
    name: str = "forward"

    @property
    def is_taken(self) -> bool:
        """Whether somebody else's function stands there, which is never routed."""
        function = self.table.get(self.name)
        return function is not None and function != self.usual and type(function) is not Route


def own_slot(module: torch.nn.Module, name: str = "forward") -> MethodSlot:
    """Where Python looks for a module's method before its class. Hooks that go may leave the class's own there."""
    function = vars(module).get(name)
    own: Any = getattr(type(module), name).__get__(module)
    return MethodSlot(vars(module), function if function == own else None, name)


@contextlib.contextmanager
def routed(slots: Iterable[tuple[torch.nn.Module, Sequence[MethodSlot]]], session: Session) -> Iterator[None]:
    """While this lasts, a session takes this thread's calls of these modules by these methods, but for modules of which
    somebody else has one."""
    taken: list[tuple[torch.nn.Module, MethodSlot]] = []
    with _lock:
        for module, methods in slots:
            if any(slot.is_taken for slot in methods):
                continue
            for slot in methods:
                if type(slot.table.get(slot.name)) is not Route:
                    slot.table[slot.name] = Route(module, slot.name, len(methods) == 1)
                _users[id(module), slot.name] += 1
                taken.append((module, slot))
    try:
        with answered_by(session):
            yield
    finally:
        with _lock:
            for module, slot in taken:
                user = id(module), slot.name
                _users[user] -= 1
                if not _users[user]:
                    del _users[user]
                    _put_back(slot)


def _put_back(slot: MethodSlot) -> None:
    if type(slot.table.get(slot.name)) is not Route:
        return
    if slot.usual is None:
        del slot.table[slot.name]
    else:
        slot.table[slot.name] = slot.usual
