"""The name of a model's folder, whatever its weights are made of."""

from __future__ import annotations

from typing import Any

import torch

from onegraph.runtime.weights_digest import weights_digest


class Pair(torch.Tensor):
    """A tensor that consists of others, as torch's protocol has it, and knows no operation at all."""

    values: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def __new__(cls, values: torch.Tensor, scale: torch.Tensor) -> Pair:
        made = torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=torch.float32)
        made.values, made.scale = values, scale
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["values", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return args[0]
        raise NotImplementedError(func)


class Unreadable(Pair):
    """One that does not tell what it consists of."""

    @property
    def __tensor_flatten__(self) -> Any:  # type: ignore[override]
        raise AttributeError


def model(weight: torch.Tensor) -> torch.nn.Module:
    made = torch.nn.Module()
    made.register_buffer("weight", weight)
    return made


def digest_of(cls: type[Pair], value: float) -> str:
    return weights_digest(model(cls(torch.full((4,), value), torch.ones(1))))


def test_the_values_within_a_weight_count() -> None:
    assert digest_of(Pair, 1) == digest_of(Pair, 1) != digest_of(Pair, 2)


def test_a_weight_that_cannot_be_read_is_known_by_its_metadata() -> None:
    assert digest_of(Unreadable, 1) == digest_of(Unreadable, 2)
    meta = weights_digest(model(torch.zeros(4, device="meta")))
    assert len(meta) == 12 and meta == digest_of(Unreadable, 1) != weights_digest(model(torch.zeros(5, device="meta")))


def test_plain_values_count() -> None:
    assert weights_digest(model(torch.zeros(4))) != weights_digest(model(torch.ones(4)))


def test_the_memory_of_weights_may_be_freed_afterwards() -> None:
    weight = torch.ones(4)
    weights_digest(model(weight))
    weight.untyped_storage().resize_(0)
    assert not weight.untyped_storage().nbytes()
