"""One more family is one file: a toy runs through ComfyUI's wrapper."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from headless import host

from onegraph.common.refused import Refused
from onegraph.host import families
from onegraph.runtime.counters import Counters

from .conftest import compiled, node_text


@pytest.fixture
def toy(checkpoint: Callable[..., Path]) -> Iterator[Any]:
    """A ComfyUI model whose diffusion model is the toy; the family is known while the test lasts."""
    known = [*families.MODELS]
    from support.models import toy_family

    families.MODELS[:] = [*known, toy_family.HostToy()]
    model = host.load(checkpoint())
    model.model.diffusion_model = toy_family.HostNet()
    yield model
    families.MODELS[:] = known


def test_a_toy_family_runs_compiled(toy: Any, counters: Counters) -> None:
    expected = host.sample(toy, steps=3)
    fast = compiled(toy)
    found = host.sample(fast, steps=3)
    assert (counters.compiles, counters.eager_calls) == (1, 0), node_text()
    assert counters.compiled_calls > 0
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    assert "any size 32-512" in node_text()
    other = host.sample(fast, steps=2, height=96, width=160, batch=3, tokens=154)
    expected = host.sample(toy, steps=2, height=96, width=160, batch=3, tokens=154)
    torch.testing.assert_close(other, expected, rtol=1e-3, atol=1e-3)
    assert (counters.compiles, counters.eager_calls) == (1, 0), node_text()


def test_what_a_toy_does_not_take_runs_eager(toy: Any, counters: Counters) -> None:
    family = families.family_of(toy.model.diffusion_model, families.MODELS)
    assert family is not None
    call = family.example(toy.model.diffusion_model, toy)
    refused = family.read(toy.model.diffusion_model, call.args, {"guidance": torch.ones(2)})
    assert isinstance(refused, Refused) and refused.reason.code == "unknown_argument"
    flat = (call.args[0][0], *call.args[1:])
    refused = family.read(toy.model.diffusion_model, flat, {})
    assert isinstance(refused, Refused) and refused.reason.code == "unusual_inputs"
