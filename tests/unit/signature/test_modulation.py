"""Modules of a block that see one argument alone: found by watching a call, and given their results in another one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from onegraph.signature.call_tree import UnknownArgumentError, flatten, from_json, to_json
from onegraph.signature.modulation import GIVEN, Given, given_in, given_in_json, watching
from onegraph.signature.parameters import as_call, called, parameters_of

_PACKAGES = (__name__.partition(".")[0],)


@dataclass
class Shifts:
    shift: torch.Tensor
    scale: torch.Tensor


class Modulation(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(width, 2 * width)

    def forward(self, vec: torch.Tensor) -> tuple[Shifts, None]:
        return Shifts(*self.lin(torch.nn.functional.silu(vec)).chunk(2, dim=-1)), None


class Block(torch.nn.Module):
    """Sees a timestep's embedding by a module, and an image by another one."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.mod, self.mlp = Modulation(width), torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor, vec: torch.Tensor) -> torch.Tensor:
        shifts, _ = self.mod(vec)
        result: torch.Tensor = self.mlp(x) * (1 + shifts.scale) + shifts.shift
        return result


class Twice(Block):
    def forward(self, x: torch.Tensor, vec: torch.Tensor) -> torch.Tensor:
        self.mod(vec)
        return super().forward(x, vec)


class Other(Block):
    def forward(self, x: torch.Tensor, vec: torch.Tensor) -> torch.Tensor:
        return super().forward(x, vec + 1)


class Small(Block):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = torch.nn.Linear(128, 128 * 64)

    def forward(self, x: torch.Tensor, vec: torch.Tensor) -> torch.Tensor:
        self.mod(vec)
        result: torch.Tensor = self.mlp(x)
        return result


class Wide(Block):
    """Its module returns nearly as much as it has weights."""

    def forward(self, x: torch.Tensor, vec: torch.Tensor) -> torch.Tensor:
        self.mod(vec.expand(300, -1))
        result: torch.Tensor = self.mod(vec)[0].shift
        return result


def call(batch: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(batch, 5, 128), torch.randn(1, 128)


def watched(block: torch.nn.Module, *args: torch.Tensor) -> dict[Given, Any]:
    cls: Any = type(block)
    named = parameters_of(cls).bind(args, {})
    with torch.no_grad(), watching(block, named, _PACKAGES) as found:
        block(*args)
    assert all("forward" not in vars(one) for one in block.modules())
    return found.results


def test_a_module_that_sees_one_argument_alone_is_found() -> None:
    results = watched(Block(), *call())
    assert [*map(str, results)] == ["mod(vec)"]  # and not its layer, whose input is no argument
    assert [Given.of(str(one)) for one in results] == [Given("mod", "vec")]


@pytest.mark.parametrize("make", [Twice, Other, Small, Wide])
def test_a_module_that_is_called_otherwise_is_none(make: Callable[[], torch.nn.Module]) -> None:
    assert watched(make(), *call()) == {}


def test_a_module_that_is_given_more_than_it_has_weights_is_none() -> None:
    block = Block()
    assert watched(block, torch.randn(1, 5, 128), torch.randn(5, 128)) == {}  # more than one in 64
    assert watched(block, torch.randn(1, 5, 128), torch.randn(1, 128)) != {}


def test_a_call_with_results_does_without_the_weights() -> None:
    block = Block()
    x, vec = call(2)
    with torch.no_grad():
        wanted = block(x, vec)
        (one, result), *_ = watched(block, x, vec).items()
        named = {"x": x, "vec": vec, GIVEN: {str(one): result}}
        for weight in block.mod.parameters():
            weight.fill_(float("nan"))
        assert torch.equal(called(block, named), wanted)
        assert as_call(named) == ((), {"x": x, "vec": vec})
        with pytest.raises(UnknownArgumentError, match="mod sees something else than vec"):
            called(Other(), {**named})
    assert "forward" not in vars(block.mod)


def test_forms_tell_which_results_are_given() -> None:
    x, vec = call()
    results = watched(Block(), x, vec)
    form, leaves = flatten({"x": x, "vec": vec, GIVEN: {str(one): it for one, it in results.items()}}, _PACKAGES)
    assert len(leaves) == 4
    assert given_in(form) == given_in_json(to_json(form)) == (Given("mod", "vec"),)
    assert from_json(to_json(form), _PACKAGES) == form
    plain, _ = flatten({"x": x, "vec": vec})
    assert given_in(plain) == given_in_json(to_json(plain)) == ()
