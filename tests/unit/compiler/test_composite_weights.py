"""Weights that consist of several tensors: in the digest of an architecture, and as they travel to a compile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.models import toy
from support.models.toy_composite import COMPOSITES, Layer, Scaled

from onegraph.common.errors import CaptureError
from onegraph.compiler import skeleton
from onegraph.compiler.code.fingerprint import Rules, digest

RULES = Rules(composites=COMPOSITES)


def test_facts_and_metadata_are_architecture_and_values_are_not() -> None:
    layer: Any = Layer()
    known = digest(layer, RULES)
    assert digest(Layer(seed=2), RULES) == known
    assert digest(Layer(group=2), RULES) != known
    layer.weight._params = replace(layer.weight._params, scale=layer.weight._params.scale.reshape(()))
    assert digest(layer, RULES) == known, "of a single value the dimensions do not matter"
    layer.weight._params = replace(layer.weight._params, scale=layer.weight._params.scale.double())
    assert digest(layer, RULES) != known


def test_a_client_that_knows_no_such_weights_has_the_digest_of_ever() -> None:
    plain = Layer()
    plain.weight = torch.nn.Parameter(torch.zeros(6, 4), requires_grad=False)
    assert digest(plain, RULES) == digest(plain) == digest(Layer())


def test_a_weight_travels_as_its_parts_without_their_values() -> None:
    layer: Any = Layer(group=2)
    arrived: Any = skeleton.load(skeleton.dump(layer, COMPOSITES), toy.CPU)
    assert type(arrived.weight) is Scaled and isinstance(arrived.weight, torch.nn.Parameter)
    assert arrived.weight._params.group == 2
    for found, sent in (
        (arrived.weight._qdata, layer.weight._qdata),
        (arrived.weight._params.scale, layer.weight._params.scale),
    ):
        assert (found.shape, found.dtype) == (sent.shape, sent.dtype) and not found.any()
    assert digest(arrived, RULES) == digest(layer, RULES)


def test_an_unknown_weight_does_not_travel() -> None:
    with pytest.raises(CaptureError, match="Scaled"):
        skeleton.dump(Layer())


def local() -> type[torch.nn.Module]:
    class Local(torch.nn.Linear):
        pass

    return Local


def test_classes_inside_of_functions_are_made_again() -> None:
    cls = local()
    name = f"{cls.__module__}:{cls.__qualname__}"
    data = skeleton.dump(cls(2, 3), replace(COMPOSITES, classes=frozenset({name})))
    asked: list[str] = []

    def class_of(wanted: str) -> type:
        asked.append(wanted)
        return torch.nn.Linear

    arrived = skeleton.load(data, toy.CPU, class_of)
    assert type(arrived) is torch.nn.Linear and arrived.weight.shape == (3, 2)
    assert set(asked) == {name}
    with pytest.raises(CaptureError, match="class"):
        skeleton.load(data, toy.CPU)
    with pytest.raises(CaptureError):
        skeleton.dump(cls(2, 3), COMPOSITES)
