from __future__ import annotations

import pytest
import torch
from support.models import toy

from onegraph.compiler.code.fingerprint import Rules, digest


def test_weights_and_mode_do_not_matter() -> None:
    assert digest(toy.Toy(seed=1)) == digest(toy.Toy(seed=2).eval())


def test_a_head_count_that_no_weight_shows_matters() -> None:
    assert digest(toy.Toy(heads=2)) != digest(toy.Toy(heads=4))


@pytest.mark.parametrize("change", ["dtype", "stride", "class", "extra buffer"])
def test_what_compiled_code_relies_on_matters(change: str) -> None:
    module = toy.Toy()
    if change == "dtype":
        module.half()
    elif change == "stride":
        module.mix.weight = torch.nn.Parameter(module.mix.weight.t(), requires_grad=False)
    elif change == "class":
        module = toy.Fixed()
    else:
        module.register_buffer("more", torch.zeros(1))
    assert digest(module) != digest(toy.Toy())


def test_rules_leave_out_placement_attributes() -> None:
    module = toy.Toy()
    module.heads = 7
    assert digest(module) != digest(toy.Toy())
    rules = Rules(placement=lambda name: name == "heads")
    assert digest(module, rules) == digest(toy.Toy(), rules)


def test_unreferenced_attributes_do_not_matter() -> None:
    module = toy.Toy()
    module.inner.paddingX = (1, 2)  # type: ignore[assignment]
    module.original_forward = lambda x: x
    assert digest(module) == digest(toy.Toy())
    module.inner.padding_mode = "circular"
    assert digest(module) != digest(toy.Toy())


def test_the_classs_own_bound_method_does_not_matter() -> None:
    module = toy.Toy()
    module.forward = module.forward  # type: ignore[method-assign]
    assert digest(module) == digest(toy.Toy())


def test_whose_method_a_module_holds_matters() -> None:
    one, other, elsewhere = toy.Toy(), toy.Toy(), toy.Toy()
    assert type(one.inner) is type(one.out)
    methods = one.inner.forward, other.out.forward, toy.Toy().inner.forward
    for module, method in zip((one, other, elsewhere), methods, strict=True):
        module.heads = method  # type: ignore[assignment]
    assert len({digest(one), digest(other), digest(elsewhere)}) == 3


def test_a_host_setting_that_changes_code_matters() -> None:
    assert digest(toy.Toy(), Rules(options=("upcast=True",))) != digest(toy.Toy(), Rules(options=("upcast=False",)))


class Numbered(torch.nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number_of_layer = number
        self.layer = torch.nn.Linear(2, 2)


class Reading(Numbered):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.read_number

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.read_number = number


def test_a_number_that_no_code_reads_is_no_architecture() -> None:
    one, two = Numbered(1), Numbered(2)
    names = {name for name, value in vars(Reading(1)).items() if value == 1 and type(value) is int}
    rules = Rules(numbers=frozenset(names))  # not by their names, which would be one more place that has them
    assert len(names) == 2
    assert digest(one) != digest(two)
    assert digest(one, rules) == digest(two, rules)
    assert digest(Reading(1), rules) != digest(Reading(2), rules)


class Comparing(Numbered):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.compared_number == 0 else self.layer(x)

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.compared_number = number


class Counting(Numbered):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.counted_number += 1
        return x if self.counted_number == 0 else self.layer(x)

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.counted_number = number


def test_of_a_number_that_code_only_compares_what_it_equals_is_architecture() -> None:
    rules = Rules(numbers=frozenset(vars(Comparing(1)).keys() - vars(torch.nn.Module()).keys()))
    first, second, third = (digest(Comparing(number), rules) for number in range(3))
    assert second == third != first
    assert len({digest(Comparing(number)) for number in range(3)}) == 3
    rules = Rules(numbers=frozenset(vars(Counting(1)).keys() - vars(torch.nn.Module()).keys()))
    assert digest(Counting(1), rules) != digest(Counting(2), rules)
