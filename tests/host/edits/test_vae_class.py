"""A method of a VAE's class that another pack replaced is the one that runs, whichever part is compiled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from headless import host
from support.edits.edit import halved
from support.edits.subjects import Subject
from support.scenes.nodes import NODE, compiled_vae

from onegraph.host.show import status
from onegraph.runtime.graphs.faithfulness import relative_l2


@pytest.fixture(scope="module")
def vae(decoder: Subject, encoder: Subject, checkpoint: Callable[..., Path]) -> Any:
    return host.load_vae(checkpoint(vae="both"))


def use(vae: Any, method: str) -> torch.Tensor:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(2)
    if method == "decode":
        result: torch.Tensor = vae.decode(torch.randn(1, 4, 2, 2, generator=generator))
    else:
        result = vae.encode(torch.rand(1, 16, 16, 3, generator=generator))
    return result


def owners(module: Any, method: str) -> list[Any]:
    return [cls for cls in type(module).__mro__ if method in vars(cls)]


@pytest.mark.parametrize("when", ["before the node", "after a run"])
@pytest.mark.parametrize("parts", ["decoder", "encoder", "both"])
@pytest.mark.parametrize("method", ["decode", "encode"])
def test_a_replaced_method_of_the_class_is_called(method: str, parts: str, when: str, vae: Any) -> None:
    part = f"{method}r"
    options = {"backend": "inductor", "parts": parts, "when_missing": "eager"}
    fast = compiled_vae(vae, **options)
    plain = use(fast, method)
    assert relative_l2(plain, use(vae, method)) < 1e-4
    owner, calls = owners(vae.first_stage_model, method)[0], []

    def replacement(self: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return original(self, x, *args, **kwargs) * 0.5

    original = getattr(owner, method)
    with patch.object(owner, method, replacement):
        reference = use(vae, method)
        calls.clear()
        if when == "before the node":
            fast = compiled_vae(vae, **options)
        result = use(fast, method)
        assert relative_l2(reference, plain) > 0.01
        assert relative_l2(result, reference) < 1e-4
        assert calls == [1]
        if parts in (part, "both"):
            assert status.last_runs[f"{NODE}:{part}"].text().startswith("uncompiled: ")
    assert relative_l2(use(fast, method), plain) < 1e-4


@pytest.mark.parametrize("parts", ["decoder", "encoder", "both"])
def test_a_replaced_method_of_the_regularization_is_called(parts: str, vae: Any) -> None:
    """It is the last step of an encode."""
    fast = compiled_vae(vae, backend="inductor", parts=parts, when_missing="eager")
    plain = use(fast, "encode")
    regularization = vae.first_stage_model.regularization
    original: Any = type(regularization).forward

    def replacement(self: Any, z: torch.Tensor) -> Any:
        found, log = original(self, z)
        return found * 0.5, log

    with patch.object(type(regularization), "forward", replacement):
        reference = use(vae, "encode")
        assert relative_l2(reference, plain) > 0.01
        assert relative_l2(use(fast, "encode"), reference) < 1e-4
    assert relative_l2(use(fast, "encode"), plain) < 1e-4


@pytest.mark.parametrize("method", ["decode", "encode"])
def test_a_replaced_method_of_the_hosts_vae_is_called(method: str, vae: Any) -> None:
    import comfy.sd

    fast = compiled_vae(vae, backend="inductor", parts="both", when_missing="eager")
    with patch.object(comfy.sd.VAE, method, halved(getattr(comfy.sd.VAE, method))):
        assert relative_l2(use(fast, method), use(vae, method)) < 1e-4
