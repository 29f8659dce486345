"""What of a module's attributes is configuration, and tells two modules apart."""

from __future__ import annotations

import array
import copy
import enum
import functools
import threading
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType, SimpleNamespace
from typing import Any, ClassVar

import numpy
import pytest
import torch

from onegraph.common.config_text import describe, holds_object, may_change_in_place


class Mode(enum.Enum):
    WIDE = 1
    DEEP = 2


@dataclass
class Params:
    scale: float = 1.0
    sizes: list[int] = field(default_factory=lambda: [1, 2])


@dataclass(eq=False)
class Unequal:
    scale: float = 1.0


class Scaling:
    """An object that a module may hold, and call."""

    def __init__(self, by: float, within: Any = None) -> None:
        self.by, self.within = by, within

    def __call__(self, x: Any) -> Any:
        return x * self.by

    def scaled(self, x: Any) -> Any:
        return x * self.by


class Sharing:
    by: ClassVar = [1.0]


class Slotted:
    __slots__ = ("__within", "by")

    def __init__(self, by: float, within: float = 1.0) -> None:
        self.by, self.__within = by, within


def plain(x: Any) -> Any:
    return x


@functools.wraps(plain)
def wrapping(x: Any) -> Any:
    return x * 2


wrapping_plain, wrapping = wrapping, plain


def made(by: int) -> Any:
    return lambda x: x * by


_LOCK = threading.Lock()

PAIRS: list[tuple[Any, Any]] = [
    (Scaling(1.0), Scaling(2.0)),
    (Slotted(1.0), Slotted(2.0)),
    (Slotted(1.0), Slotted(1.0, 2.0)),
    (Scaling(1.0).scaled, Scaling(2.0).scaled),
    (functools.partial(Scaling(1.0), 1), functools.partial(Scaling(2.0), 1)),
    ([Scaling(1.0)], [Scaling(2.0)]),
    ({"a": Scaling(1.0)}, {"a": Scaling(2.0)}),
    (Scaling(1.0, Scaling(1.0)), Scaling(1.0, Scaling(2.0))),
    (plain, wrapping_plain),
    (made(1), made(2)),
    (lambda x: x + 1, lambda x: x + 2),
    (1, 2),
    (1, True),
    (1j, 2j),
    (b"a", b"b"),
    (range(2), range(3)),
    (torch.float16, torch.float32),
    (Mode.WIDE, Mode.DEEP),
    ([1, 2], [2, 1]),
    ([1, 2], (1, 2, 3)),
    ({"a": 1}, {"a": 2}),
    ({"a": 1}, {"b": 1}),
    ({"a": {"b": [1]}}, {"a": {"b": [2]}}),
    ({1, 2}, {1, 3}),
    (SimpleNamespace(a=1), SimpleNamespace(a=2)),
    (Params(), Params(scale=2.0)),
    (functools.partial(max, default=1), functools.partial(max, default=2)),
    (functools.partial(max), functools.partial(min)),
    (numpy.float32(0.5), numpy.float32(0.25)),
    (numpy.zeros(2), numpy.array([0.0, 1.0])),
    (numpy.zeros(2), numpy.zeros((2, 1))),
    (numpy.zeros(2), numpy.zeros(2, dtype=numpy.int64)),
    (array.array("d", [0.0]), array.array("d", [1.0])),
    (bytearray(b"a"), bytearray(b"b")),
    (Decimal("1"), Decimal("1.0")),
    (Fraction(1, 2), Fraction(1, 3)),
    (deque([1.0]), deque([2.0])),
    (deque([1.0]), deque([1.0], maxlen=1)),
    (OrderedDict(a=1), OrderedDict(a=2)),
    (OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)),
    (defaultdict(int, a=1), defaultdict(float, a=1)),
    (Counter("aab"), Counter("abb")),
    (ChainMap({"a": 1}), ChainMap({}, {"a": 1})),
    (ChainMap({"a": 1}), {"a": 1}),
]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_other_values_have_another_text(one: Any, other: Any) -> None:
    assert describe(one) is not None and describe(one) != describe(other)
    assert describe(one) == describe(copy.deepcopy(one))


@pytest.mark.parametrize("field", [_LOCK, torch.zeros(1), torch.nn.Linear(1, 1), {}, {"a": torch.zeros(1)}, [object()]])
def test_an_object_counts_with_what_else_it_holds(field: Any) -> None:
    """A cache in it that is filled, or a lock, is no configuration, and hides none."""
    assert describe(Scaling(1.0, field)) != describe(Scaling(2.0, field))
    assert describe(Scaling(1.0, {})) == describe(Scaling(1.0, {"a": torch.zeros(1)}))
    assert describe({"kept": Scaling(1.0, field)}) is None  # a dictionary of such is a cache


def test_objects_that_hold_each_other_have_an_end() -> None:
    first, second = Scaling(1.0), Scaling(2.0)
    first.within, second.within = second, first
    assert describe(first) is not None and describe(first) != describe(second)


def test_order_counts_where_it_may_be_read() -> None:
    assert describe({"a": 1, "b": 2}) != describe({"b": 2, "a": 1})
    assert describe({3, 1, 2}) == describe({1, 2, 3})


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(1), torch.nn.Linear(1, 1), object(), {"a": torch.zeros(1)}, {"a": object()}, [object()],
        SimpleNamespace(a=torch.zeros(1)), Params(scale=object()), functools.partial(max, torch.zeros(1)),  # type: ignore[arg-type]
        numpy.array([object()]), torch.device("cpu"),
    ],
)  # fmt: skip
def test_other_objects_are_no_configuration(value: Any) -> None:
    assert describe(value) is None


def test_a_value_that_contains_itself_is_no_configuration() -> None:
    cyclic: dict[str, Any] = {"a": 1}
    cyclic["itself"] = [cyclic]
    assert describe(cyclic) is None and not holds_object(cyclic)
    assert describe(Scaling(1.0, cyclic)) not in (None, describe(Scaling(2.0, cyclic)))


def test_an_empty_dictionary_may_be_a_cache() -> None:
    assert describe({}) is None and describe(set()) is None
    assert describe([]) == "[]" and describe({"a": {}}) is not None


def test_what_all_objects_of_a_class_share_counts() -> None:
    before, by = describe(Sharing()), Sharing.by[:]
    try:
        Sharing.by[0] = 2.0
        assert describe(Sharing()) != before
    finally:
        Sharing.by[:] = by
    assert describe(Sharing()) == before


@pytest.mark.parametrize(
    "value",
    [
        numpy.zeros(2), array.array("d", [0.0]), bytearray(1), deque([1]), OrderedDict(a=1), defaultdict(int, a=1),
        Counter("a"), ChainMap({"a": 1}), MappingProxyType({"a": 1}), [numpy.zeros(2)], (deque([1]),),
    ],
)  # fmt: skip
def test_what_is_not_compared_with_a_copy_is_described_at_each_look(value: Any) -> None:
    assert holds_object(value) and describe(value) is not None


def test_what_may_change_in_place() -> None:
    assert may_change_in_place(([1],)) and not may_change_in_place(((1,),))
    assert all(map(may_change_in_place, ([], {}, set(), SimpleNamespace(), Params())))
    assert not any(map(may_change_in_place, ((), 1, "a", Mode.WIDE, frozenset(), Params, Unequal(), torch.zeros(1))))
