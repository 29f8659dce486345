"""Calls that share containers, seen as calls of one block alone: what a model sees is what the block itself does."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from enum import Enum
from typing import Any

import pytest
import torch

from onegraph.compiler.blocks.repeated import repeated_blocks
from onegraph.signature import views
from onegraph.signature.parameters import called, parameters_of
from onegraph.signature.views import closed, opened


class Placed(torch.nn.Module):
    """Keeps its last frames in two places of a list, as Wan's residual blocks do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Conv3d(2, 2, (3, 1, 1)) for _ in range(2)])

    def forward(self, x: torch.Tensor, kept: list[Any] | None = None, at: list[int] | None = None) -> torch.Tensor:
        for layer in self.layers:
            before = None if kept is None or at is None else kept[at[0]]
            taken = x[:, :, -2:]
            missing = 2 - (0 if before is None else before.shape[2])
            zeros = x.new_zeros(*x.shape[:2], missing, *x.shape[3:])
            x = layer(torch.cat([zeros, *([] if before is None else [before]), x], 2))
            if kept is not None and at is not None:
                kept[at[0]] = taken
                at[0] += 1
        return x


class Carrying(torch.nn.Module):
    """Takes what it needs from the front of one list and adds to another, as HunyuanVideo's blocks do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(3, 3) for _ in range(2)])

    def forward(self, x: torch.Tensor, taken: list[Any] | None = None, left: list[Any] | None = None) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x) if taken is None else layer(x) + taken.pop(0)
            if left is not None:
                left.append(x.clone())
        return x


class Keeping(torch.nn.Module):
    """Has a dictionary by the thread's number, as LTX's convolutions do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
        self.kept: dict[int, Any] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before, times = self.kept.get(threading.get_ident(), (None, 0))
        self.kept[threading.get_ident()] = x, times + 1
        result: torch.Tensor = self.layer(x if before is None else x + before)
        return result


class State(Enum):
    FIRST = 1
    LATER = 2


class Keyed(torch.nn.Module):
    """Has what it keeps in a dictionary by its modules, as SeedVR2's convolutions do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(3, 3) for _ in range(2)])

    def forward(self, x: torch.Tensor, state: State, kept: dict[Any, Any] | None = None) -> torch.Tensor:
        kept = {} if kept is None else kept
        for layer in self.layers:
            before = kept.pop(layer, None)
            if x.shape[0] > 1:
                kept[layer] = x
            x = layer(x if before is None or state is State.FIRST else x + before)
        return x


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    before = dict(views._views)
    views.register(f"{__name__}:Placed", views.Places(2, 2, "kept", "at"))
    views.register(f"{__name__}:Carrying", views.Carried(2, "taken", "left"))
    views.register(f"{__name__}:Keeping", views.OfThread("kept"))
    views.register(f"{__name__}:Keyed", views.Keyed("kept", {"state": f"{__name__}:State"}))
    yield
    views._views.clear()
    views._views.update(before)
    views._of_class.cache_clear()


def through_the_view(block: torch.nn.Module, *args: Any) -> Any:
    """A call that is opened, made by the block alone, and closed."""
    cls: Any = type(block)
    named = parameters_of(cls).bind(args, {})
    return closed(block, named, called(block, opened(block, named)))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def test_places_of_a_list() -> None:
    """Chunk after chunk: none at first, one frame, then two; and places of other blocks stay as they are."""
    block = Placed()
    own: list[Any] = ["another's", None, None, "another's"]
    seen = [*own]
    for frames in (1, 2, 2, 1):
        x, mine, its = torch.randn(1, 2, frames, 4, 5), [1], [1]
        assert same(block(x, own, mine), through_the_view(block, x, seen, its))
        assert same(own, seen) and mine == its == [3]
    x = torch.randn(1, 2, 3, 4, 5)
    assert torch.equal(block(x), through_the_view(block, x))


def test_a_block_that_uses_another_number_of_places_is_refused() -> None:
    views.register(f"{__name__}:Placed", views.Places(1, 2, "kept", "at"))
    block, x = Placed(), torch.randn(1, 2, 2, 4, 5)
    with pytest.raises((TypeError, IndexError)):
        through_the_view(block, x, [None, None], [0])
    for kept, at in (([None], [1]), ([None], [-1]), ([None], [0, 1]), ((None,), [0])):
        with pytest.raises(TypeError):
            through_the_view(block, x, kept, at)


def test_lists_that_are_taken_from_and_added_to() -> None:
    block, x = Carrying(), torch.randn(2, 3)
    taken: list[Any] = [torch.randn(2, 3) for _ in range(3)]
    for given in (None, taken):
        mine, its = (None, None) if given is None else ([*given], [*given])
        left: list[Any] = []
        seen: list[Any] = []
        assert same(block(x, mine, left), through_the_view(block, x, its, seen))
        assert same(mine, its) if given else mine is its
        assert same(left, seen) and len(left) == 2
    assert torch.equal(block(x), through_the_view(block, x))


def test_what_modules_keep_by_thread() -> None:
    block = Keeping()
    other = copy.deepcopy(block)
    for _ in range(3):
        x = torch.randn(2, 3)
        assert torch.equal(block(x), through_the_view(other, x))
        assert same(block.kept[threading.get_ident()], other.kept[threading.get_ident()])
    elsewhere: list[Any] = []
    thread = threading.Thread(target=lambda: elsewhere.append(opened(other, {"x": x})["kept"]))
    thread.start()
    thread.join()
    assert elsewhere == [[None]]


def test_what_modules_keep_in_a_dictionary() -> None:
    """One after the other, and nothing where the block itself leaves nothing; what others keep stays."""
    block = Keyed()
    own: dict[Any, Any] = {"another's": None}
    seen = {**own}
    for state, rows in ((State.FIRST, 2), (State.LATER, 2), (State.LATER, 2), (State.FIRST, 1), (State.LATER, 2)):
        x = torch.randn(rows, 3)
        assert torch.equal(block(x, state, own), through_the_view(block, x, state, seen))
        assert own.keys() == seen.keys() and all(
            same(value, seen[one]) for one, value in own.items() if value is not None
        )
        assert all(one is not x for one in seen.values())
    assert torch.equal(block(x, State.LATER), through_the_view(block, x, State.LATER))
    assert [opened(block, {"x": x, "state": one, "kept": None})["state"] for one in State] == ["FIRST", "LATER"]
    for state, kept in (("FIRST", {}), (1, {}), (State.FIRST, [])):
        with pytest.raises(TypeError):
            through_the_view(block, x, state, kept)


def test_a_block_that_keeps_something_for_others_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = Keyed.forward
    monkeypatch.setattr(
        Keyed, "forward", lambda self, x, state, kept=None: (kept.update(other=x), forward(self, x, state, kept))[1]
    )
    with pytest.raises(TypeError):
        through_the_view(Keyed(), torch.randn(2, 3), State.FIRST, {})


def test_a_call_that_was_opened_stays_as_it_is() -> None:
    block, x, kept = Placed(), torch.randn(1, 2, 2, 4, 5), [torch.randn(1, 2, 2, 4, 5), torch.randn(1, 2, 2, 4, 5)]
    named = opened(block, parameters_of(Placed).bind((x, kept, [0]), {}))
    before = copy.deepcopy(named)
    called(block, named)
    assert all(same(named[name], before[name]) for name in named)


def test_they_are_blocks_in_a_sequence_too_but_not_what_holds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = torch.nn.Module()
    plain.inner = torch.nn.Sequential(Placed(), torch.nn.ReLU())
    model = torch.nn.Module()
    model.stages = torch.nn.ModuleList([plain, copy.deepcopy(plain)])
    model.held = torch.nn.ModuleList([torch.nn.Sequential(Carrying()), torch.nn.Sequential(Carrying())])
    assert [*repeated_blocks(model)] == ["stages.0.inner.0", "stages.1.inner.0", "held.0", "held.1"]
    monkeypatch.setattr(views, "_holders", {"torch.nn.modules.container:Sequential"})
    assert [*repeated_blocks(model)][2:] == ["held.0.0", "held.1.0"]
