"""Weights that consist of several tensors, bound to a graph part by part and watched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from support.models import toy
from support.models.toy_composite import COMPOSITES, Layer, Params, Scaled

from onegraph.common.reasons import NoSuchWeight, NotPlainWeight, WeightDiffers
from onegraph.common.refused import Refused
from onegraph.common.tensor_meta import TensorMeta
from onegraph.compiler.code.fingerprint import Rules
from onegraph.runtime.graphs.binding import Binding, bind
from onegraph.runtime.guards.module_guard import ModuleGuard

CONSTANTS = (
    TensorMeta("module.layer.weight._qdata", (6, 4), (4, 1), "int8"),
    TensorMeta("module.layer.weight._params.scale", (), (), "float32"),
    TensorMeta("module.layer.bias", (6,), (1,), "float32"),
)


class Recorder:
    def __init__(self) -> None:
        self.addresses: dict[str, int] = {}

    def bind(self, tensors: dict[str, torch.Tensor]) -> None:
        self.addresses = {name: tensor.data_ptr() for name, tensor in tensors.items()}
        assert all(tensor.shape == meta.shape for tensor, meta in zip(tensors.values(), CONSTANTS, strict=True))


def model() -> Any:
    made = torch.nn.Module()
    made.layer = Layer()
    return made


def bound(module: Any, *constants: TensorMeta) -> tuple[Binding, dict[str, int]] | Refused:
    runner = Recorder()
    found = bind(runner, module, constants or CONSTANTS, toy.CPU, "module.")  # type: ignore[arg-type]
    return found if isinstance(found, Refused) else (found[0], runner.addresses)


def other_values(layer: Any) -> None:
    layer.weight._qdata = layer.weight._qdata.clone()


def other_memory(layer: Any) -> None:
    layer.weight._qdata.data = layer.weight._qdata.clone()


def other_scale(layer: Any) -> None:
    layer.weight._params = replace(layer.weight._params, scale=layer.weight._params.scale * 2)


def other_fact(layer: Any) -> None:
    layer.weight._params = replace(layer.weight._params, group=2)


def other_weight(layer: Any) -> None:
    weight = layer.weight
    scaled = Scaled(weight._qdata.clone(), Params(weight._params.scale * 2))
    layer.weight = torch.nn.Parameter(scaled, requires_grad=False)


def plain(layer: Any) -> None:
    layer.weight = torch.nn.Parameter(torch.zeros(6, 4), requires_grad=False)


def gone(layer: Any) -> None:
    layer.weight = None


def test_parts_that_do_not_fit_are_refused() -> None:
    module = model()
    wrong = replace(CONSTANTS[0], dtype="uint8")
    assert isinstance(bound(module, wrong).reason, WeightDiffers)  # type: ignore[union-attr]
    missing = replace(CONSTANTS[0], name="module.layer.weight._params.zero")
    assert bound(module, missing) == Refused(NoSuchWeight("layer.weight._params.zero"))
    whole = replace(CONSTANTS[0], name="module.layer.weight")
    assert bound(module, whole) == Refused(NotPlainWeight("Scaled"))
    module.layer.weight._params = replace(module.layer.weight._params, scale=torch.rand(6))
    assert isinstance(bound(module, CONSTANTS[1]).reason, WeightDiffers)  # type: ignore[union-attr]


def test_the_guard_sees_facts_and_metadata_and_no_values() -> None:
    layer: Any = Layer()
    guard = ModuleGuard(layer, Rules(composites=COMPOSITES))
    known = guard.version
    assert guard.composite
    other_weight(layer)
    assert guard.refresh(layer) == known
    layer.weight._params = replace(layer.weight._params, group=2)
    assert guard.refresh(layer) != known
    layer.weight._params = replace(layer.weight._params, group=4)
    assert guard.refresh(layer) == known
    layer.weight._params = replace(layer.weight._params, scale=torch.rand(6))
    assert guard.refresh(layer) != known
    plain(layer)
    assert guard.refresh(layer) != known and not guard.composite


class Bytes(torch.nn.Parameter):
    """A weight whose memory is its values, packed. What is made of it is of its class, too."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = super().__torch_function__(func, types, args, kwargs or {})
        return torch.Tensor._make_subclass(cls, found, False) if type(found) is torch.Tensor else found

    def detach(self) -> Bytes:
        return self


def packed(rows: int = 2) -> Any:
    memory = torch.arange(rows * 34, dtype=torch.uint8).reshape(rows, 34)
    return torch.Tensor._make_subclass(Bytes, memory, False)


OF_BYTES = TensorMeta("module.layer.weight._memory", (2, 34), (34, 1), "uint8")


class MemoryRecorder:
    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}

    def bind(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors
