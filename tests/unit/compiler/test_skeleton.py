from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from support.models import toy

from onegraph.common.errors import CaptureError
from onegraph.compiler import skeleton
from onegraph.compiler.code import fingerprint
from onegraph.compiler.composite_weights import Composites
from onegraph.runtime.calls.routing import own_slot, routed


def test_a_skeleton_travels_without_weights() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Linear(512, 512))
    assert len(skeleton.dump(module)) < 20_000


def test_metadata_arrives_and_weights_do_not() -> None:
    module = toy.Toy()
    module.mix.weight = torch.nn.Parameter(module.mix.weight.t(), requires_grad=False)
    module.out.half()
    module.register_buffer("steps", torch.arange(3))
    arrived = skeleton.load(skeleton.dump(module), toy.CPU)
    described = [(n, t.shape, t.stride(), t.dtype) for n, t in arrived.state_dict().items()]
    assert described == [(n, t.shape, t.stride(), t.dtype) for n, t in module.state_dict().items()]
    assert all(bool((t == 0).all()) for t in arrived.state_dict().values())


def test_a_rebuilt_module_computes_the_same() -> None:
    module = toy.Toy(seed=3)
    arrived = skeleton.load(skeleton.dump(module), toy.CPU)
    arrived.load_state_dict(module.state_dict())
    inputs = toy.inputs()
    assert torch.equal(arrived(*inputs), module(*inputs))


def test_a_layer_whose_weight_is_computed_arrives_with_one() -> None:
    """Torch refuses to hand it on as it is; which class it made for it, no other process knows."""
    module = torch.nn.Sequential(torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(2, 3, 5)), torch.nn.ReLU())
    arrived = skeleton.load(skeleton.dump(module), toy.CPU)
    assert type(arrived[0]) is torch.nn.Conv1d and {*arrived.state_dict()} == {"0.weight", "0.bias"}
    assert arrived(torch.zeros(1, 2, 9)).shape == module(torch.zeros(1, 2, 9)).shape
    assert torch.nn.utils.parametrize.is_parametrized(module[0])  # the live one stays as it is


def test_shared_weights_stay_shared() -> None:
    module = torch.nn.Module()
    module.a = torch.nn.Linear(4, 4)
    module.b = module.a
    module.c = torch.nn.Linear(4, 4)
    module.c.weight = module.a.weight
    arrived = skeleton.load(skeleton.dump(module), toy.CPU)
    assert arrived.c.weight is arrived.a.weight


def test_a_function_local_to_another_pack_is_refused() -> None:
    module = toy.Toy()
    module.forward = lambda *args: args  # type: ignore[method-assign]
    with pytest.raises(CaptureError, match="another custom node"):
        skeleton.dump(module)


class Scaled(torch.nn.Module):
    def __init__(self, factor: int | None = None) -> None:
        super().__init__()
        self.other = lambda x: x
        self.scale = (lambda x: 2 * x) if factor is None else (lambda x: factor * x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale(x) + self.other(x)


def test_a_local_function_of_the_models_own_code_is_blamed_on_nobody_else() -> None:
    with pytest.raises(CaptureError, match=r"own code.*<locals>") as raised:
        skeleton.dump(Scaled(3))
    assert "custom node" not in str(raised.value)


def test_a_local_function_without_values_of_its_own_is_found_again() -> None:
    """As the activation of ComfyUI's Gemma."""
    arrived = skeleton.load(skeleton.dump(Scaled()), toy.CPU)
    assert torch.equal(arrived(torch.ones(2)), 3 * torch.ones(2))


def test_what_the_pack_itself_puts_on_a_module_stays_here() -> None:
    """The compiling process knows the pack by another name."""
    module = toy.Toy()
    with routed([(module, [own_slot(module)])], mock.Mock()):
        assert "forward" in vars(module)
        assert "forward" not in vars(skeleton.load(skeleton.dump(module), toy.CPU))


def _inner() -> torch.nn.Module:
    class Inner(torch.nn.Linear):
        pass

    return Inner(2, 2)


def test_a_part_of_a_local_class_is_left_out() -> None:
    """Whoever calls it is not captured; a model of such a class is refused."""
    arrived = skeleton.load(skeleton.dump(torch.nn.Sequential(torch.nn.Linear(2, 2), _inner())), toy.CPU)
    arrived[0](torch.ones(2))
    with pytest.raises(NotImplementedError):
        arrived(torch.ones(2))
    with pytest.raises(CaptureError):
        skeleton.dump(_inner())


def test_a_weight_of_a_foreign_tensor_class_is_refused() -> None:
    class Quantized(torch.Tensor):
        pass

    module = toy.Toy()
    module.heads = torch.ones(3).as_subclass(Quantized)  # type: ignore[assignment]
    with pytest.raises(CaptureError, match="Quantized"):
        skeleton.dump(module)


class _Unpicklable:
    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("cannot pickle <module '/home/user/ComfyUI/custom_nodes/some pack'>")


def test_a_reason_names_no_absolute_path() -> None:
    module = toy.Toy()
    module.heads = _Unpicklable()  # type: ignore[assignment]
    with pytest.raises(CaptureError, match=r"cannot pickle <module 'some pack'>"):
        skeleton.dump(module)


def test_what_a_custom_node_left_behind_stays_here() -> None:
    module = toy.Toy()
    module.left_behind = lambda: 0  # type: ignore[assignment]
    module.inner.more = torch.ones(3)
    data = skeleton.dump(module)
    rebuilt = skeleton.load(data, torch.device("cpu"))
    assert not hasattr(rebuilt, "left_behind") and not hasattr(rebuilt.inner, "more")
    assert fingerprint.digest(rebuilt) == fingerprint.digest(toy.Toy())
    assert b"onegraph" not in data  # the compiling process knows the pack by another name


class Sampler:
    """Cannot travel."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def free(self) -> int:
        return 7


class Sampled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sampler, self.copies = Sampler(), [(torch.zeros(2), torch.Event("cpu"))]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.sampler.free() + self.copies[0][0]


def test_a_client_gives_a_model_something_in_place_of_what_cannot_travel() -> None:
    def stand_in(value: object) -> object:
        return SimpleNamespace(free=int) if isinstance(value, Sampler) else None

    with pytest.raises(CaptureError):
        skeleton.dump(Sampled())
    made: Any = skeleton.load(skeleton.dump(Sampled(), Composites(stand_in=stand_in)), torch.device("cpu"))
    assert made.sampler.free() == 0
    assert made.copies[0][1] is None
