"""Calls of blocks are routed to this thread's session, if it has one, by a forward on the block itself.

It stands there only while a call of a model lasts that has a session: a copy of a model would call the blocks of the
one that it was copied from. A thread without a session calls the class's own forward.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

import torch


class Session(Protocol):
    """What takes the calls of blocks."""

    def call_of(self, block: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call of a routed module."""


_session: ContextVar[Session | None] = ContextVar("onegraph_block_session", default=None)
_lock = threading.Lock()
_users: Counter[int] = Counter()  # sessions that a block's calls are routed for, by its id


class Route:
    """The forward of one block while its calls are routed."""

    __slots__ = ("_block", "_forward")

    def __init__(self, block: torch.nn.Module) -> None:
        self._block = block  # a circle for as long as the route is there
        self._forward: Callable[..., Any] = type(block).forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        session = _session.get()
        if session is None:
            return self._forward(self._block, *args, **kwargs)
        return session.call_of(self._block, args, kwargs)


class ForwardSlot(NamedTuple):
    """Where the forward of a block is looked up when it is called.

    Attributes:
        table: has it as `forward`; the block's own attributes, as a rule.
        usual: what stands there where nobody took it; None: nothing.
    """

    table: dict[str, Any]
    usual: Any = None

    @property
    def is_taken(self) -> bool:
        """Whether somebody else's forward stands there, which is never routed."""
        forward = self.table.get("forward")
        return forward is not None and forward != self.usual and type(forward) is not Route


def own_slot(module: torch.nn.Module) -> ForwardSlot:
    """Where Python looks for a module's forward before its class. Hooks that go may leave the class's own there."""
    forward = vars(module).get("forward")
    return ForwardSlot(vars(module), forward if forward == type(module).forward.__get__(module) else None)


@contextlib.contextmanager
def routed(slots: Iterable[tuple[torch.nn.Module, ForwardSlot]], session: Session) -> Iterator[None]:
    """While this lasts, a session takes this thread's calls of these modules; those with another forward excepted."""
    taken: list[tuple[torch.nn.Module, ForwardSlot]] = []
    with _lock:
        for module, slot in slots:
            if slot.is_taken:
                continue
            if type(slot.table.get("forward")) is not Route:
                slot.table["forward"] = Route(module)
            _users[id(module)] += 1
            taken.append((module, slot))
    before = _session.set(session)
    try:
        yield
    finally:
        _session.reset(before)
        with _lock:
            for module, slot in taken:
                _users[id(module)] -= 1
                if not _users[id(module)]:
                    del _users[id(module)]
                    _put_back(slot)


def _put_back(slot: ForwardSlot) -> None:
    if type(slot.table.get("forward")) is not Route:
        return
    if slot.usual is None:
        del slot.table["forward"]
    else:
        slot.table["forward"] = slot.usual
