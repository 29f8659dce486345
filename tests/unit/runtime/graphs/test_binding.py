from __future__ import annotations

import gc
import weakref

import pytest
import torch
from support.models import toy

from onegraph.common.reasons import WeightComputed
from onegraph.common.refused import Refused
from onegraph.common.tensor_meta import TensorMeta
from onegraph.runtime.graphs.binding import Binding, Held, bind, is_held, release_held


class Recorder:
    """Stands where a runner does and keeps what a runner keeps: addresses."""

    def __init__(self) -> None:
        self.addresses: dict[str, int] = {}

    def constant_names(self) -> list[str]:
        return list(self.addresses)

    def bind(self, tensors: dict[str, torch.Tensor]) -> None:
        self.addresses = {n: t.data_ptr() for n, t in tensors.items()}

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        return inputs[0]

    def close(self) -> None:
        pass


def bound(module: torch.nn.Module, constants: tuple[TensorMeta, ...] | None = None) -> Binding | Refused:
    found = bind(Recorder(), module, constants or toy.weight_table(toy.Call(toy.Toy())), toy.CPU, toy.PREFIX)  # type: ignore[arg-type]
    return found if isinstance(found, Refused) else found[0]


def test_every_parameter_is_bound_at_its_address() -> None:
    module, runner = toy.Toy(), Recorder()
    found = bind(runner, module, toy.weight_table(toy.Call(module)), toy.CPU, toy.PREFIX)  # type: ignore[arg-type]
    assert not isinstance(found, Refused)
    binding, _ = found
    assert runner.addresses == {toy.PREFIX + n: p.data_ptr() for n, p in module.named_parameters()}
    assert binding.holds(module)


def test_a_weight_that_is_computed_at_each_look_is_refused() -> None:
    """It would be the values of one moment, in memory that nobody keeps."""
    module = toy.Toy()
    torch.nn.utils.parametrizations.weight_norm(module.mix)
    assert bound(module) == Refused(WeightComputed("mix.weight"))


def replaced(module: toy.Toy) -> None:
    module.mix.weight = torch.nn.Parameter(module.mix.weight.clone(), requires_grad=False)


def moved(module: toy.Toy) -> None:
    module.mix.weight.data = module.mix.weight.data.clone()


def removed(module: toy.Toy) -> None:
    module.mix.bias = None  # type: ignore[assignment]


def turned(module: toy.Toy) -> None:
    module.mix.weight.data = module.mix.weight.data.t()


def spread(module: toy.Toy) -> None:
    module.mix.weight.data = module.mix.weight.data[:1].expand(8, 8)


def narrowed(module: toy.Toy) -> None:
    module.mix.weight.data = module.mix.weight.data[:4]


def exchanged(module: toy.Toy) -> None:
    table = module.mix._parameters
    table["weight"], table["bias"] = table["bias"], table["weight"]


def copied_into_another_table(module: toy.Toy) -> None:
    weights = module.mix._parameters.items()
    module.mix._parameters = {name: torch.nn.Parameter(one.clone()) for name, one in weights if one is not None}


@pytest.mark.parametrize(
    "change", [replaced, moved, removed, turned, spread, narrowed, exchanged, copied_into_another_table]
)
def test_a_weight_no_longer_where_it_was_is_noticed(change) -> None:
    module = toy.Toy()
    binding = bound(module)
    assert isinstance(binding, Binding)
    change(module)
    assert not binding.holds(module)


def test_changing_values_in_place_needs_no_rebinding() -> None:
    module = toy.Toy()
    binding = bound(module)
    assert isinstance(binding, Binding)
    module.mix.weight.mul_(2)
    assert binding.holds(module)


def test_another_module_is_not_taken_for_the_bound_one() -> None:
    binding = bound(toy.Toy())
    assert isinstance(binding, Binding)
    assert not binding.holds(toy.Toy())


@pytest.mark.parametrize("gone", ["weight replaced", "model deleted"])
def test_a_binding_keeps_no_weight_alive(gone: str) -> None:
    module = toy.Toy()
    binding = bound(module)
    weight = weakref.ref(module.mix.weight)
    if gone == "weight replaced":
        replaced(module)
    else:
        del module
    gc.collect()
    assert weight() is None
    assert isinstance(binding, Binding)


def transposed(module: toy.Toy) -> None:
    module.mix.weight = torch.nn.Parameter(module.mix.weight.t(), requires_grad=False)


def halved(module: toy.Toy) -> None:
    module.mix.half()


def reshaped(module: toy.Toy) -> None:
    module.out = torch.nn.Conv2d(8, 5, 1)


def negated(module: toy.Toy) -> None:
    module.mix.weight = torch.nn.Parameter(torch._neg_view(module.mix.weight.detach()), requires_grad=False)


def elsewhere(module: toy.Toy) -> None:
    module.mix.to("meta")


def subclassed(module: toy.Toy) -> None:
    class Quantized(torch.nn.Parameter):
        pass

    module.mix.weight = Quantized(module.mix.weight.detach().clone(), requires_grad=False)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (transposed, "strides [1, 8]"),
        (halved, "float16"),
        (reshaped, "[5, 8, 1, 1]"),
        (elsewhere, "part of the model is on meta"),
        (negated, "view of negated or conjugated values, not a plain tensor"),
        (subclassed, "Quantized, not a plain tensor"),
        (removed, "no weight mix.bias"),
    ],
)
def test_a_weight_not_compiled_for_is_refused(change, reason: str) -> None:
    module = toy.Toy()
    change(module)
    refused = bound(module)
    assert isinstance(refused, Refused)
    assert reason in refused.text


def gone(address: weakref.ref[torch.UntypedStorage]) -> bool:
    gc.collect()
    return address() is None


def test_what_is_held_outlives_the_weights_until_it_is_released() -> None:
    """Whoever replaces a weight frees its memory, which a graph may still read."""
    module = toy.Toy()
    found = bind(Recorder(), module, toy.weight_table(toy.Call(module)), toy.CPU, toy.PREFIX)  # type: ignore[arg-type]
    assert not isinstance(found, Refused)
    held = Held()
    held.put(1, *found)
    del found
    value, memory = float(module.mix.weight[0, 0]), weakref.ref(module.mix.weight.untyped_storage())
    storages = held._storages[1][1]
    replaced(module)
    assert not gone(memory)
    assert value in [float(torch.empty(0).set_(storage).flatten()[0]) for storage in storages]
    del storages
    assert is_held(toy.CPU)
    release_held(torch.device("cuda"))
    assert not gone(memory)
    release_held(toy.CPU)
    assert gone(memory) and not is_held(toy.CPU)


def test_a_weight_is_held_once_until_the_graph_is_bound_anew() -> None:
    module, held = toy.Toy(), Held()
    binding = bound(module)
    assert isinstance(binding, Binding)
    assert held.hold(1, binding)
    first = held._storages[1][1]
    assert held.hold(1, binding)
    assert held._storages[1][1] is first
    replaced(module)
    again = bound(module)
    assert isinstance(again, Binding)
    assert held.hold(1, again)
    assert held._storages[1][1] is not first


def test_what_is_held_is_what_the_graph_reads_and_not_what_the_module_has_now() -> None:
    module, held = toy.Toy(), Held()
    binding = bound(module)
    assert isinstance(binding, Binding)
    memory = weakref.ref(module.mix.weight.untyped_storage())
    assert held.hold(1, binding)
    module.mix.weight.data = module.mix.weight.data.clone()
    assert not gone(memory)
    release_held(toy.CPU)
    assert gone(memory)
    assert not held.hold(1, binding)
