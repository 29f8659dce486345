"""What the worker captures of ComfyUI's models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from headless import models

from onegraph.compiler import export
from onegraph.compiler.code import code_record
from onegraph.host.capture import compile_client
from onegraph.host.families import DECODER
from onegraph.host.families.unet import Unet
from onegraph.runtime.family import Ranged
from onegraph.runtime.graphs.faithfulness import relative_l2


@pytest.fixture
def sized_attention(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The host's attention as ComfyUI 0.33 has it on CUDA: small inputs go another way."""
    import comfy.ops

    def scaled_dot_product_attention(q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
        if q.nelement() < 1024 * 128:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, *args, **kwargs)
        result: Any = torch.nn.functional.scaled_dot_product_attention(q, k, v, *args, **kwargs)
        return result

    scaled_dot_product_attention.__module__ = "comfy.ops"
    monkeypatch.setattr(comfy.ops, "scaled_dot_product_attention", scaled_dot_product_attention)
    return scaled_dot_product_attention


def captured(call: torch.nn.Module, ranged: Ranged) -> Any:
    return export.capture(call, ranged.shapes, ranged.sizes, torch.device("cpu")).module()


@pytest.mark.full
def test_a_unet_is_captured_whatever_its_attention_asks(sized_attention: Callable[..., Any]) -> None:
    import comfy.ops

    unet = models.unet("tiny_sdxl")
    unet.load_state_dict({k: v.float() for k, v in models.seeded(unet.state_dict(), 1).items()})
    generator = torch.Generator().manual_seed(1)

    def inputs(side: int) -> list[torch.Tensor]:
        shapes = ((2, 4, side, side), (2,), (2, 77, 2048), (2, 2816))
        return [torch.randn(shape, generator=generator) for shape in shapes]

    large = inputs(128)
    names = ("x", "timesteps", "context", "y")
    ranged = Unet().ranged(unet, dict(zip(names, large, strict=True)), "any size")
    call = compile_client.wrap("unet", unet, names)
    seen: code_record.Ran = set()
    with code_record.watched(seen):
        graph = captured(call, ranged)
    assert comfy.ops.scaled_dot_product_attention is sized_attention
    assert sized_attention.__code__ in {code for _, code in seen}  # so that replacing it is noticed
    for given in (large, inputs(16)):
        assert relative_l2(graph(*given), call(*given)) < 1e-5


def test_a_vae_is_captured_whatever_its_attention_asks(sized_attention: Callable[..., Any]) -> None:
    from comfy.ldm.models.autoencoder import AutoencoderKL

    vae = AutoencoderKL(ddconfig={**models.VAE, "ch": 32, "attn_resolutions": []}, embed_dim=4).eval()
    vae.load_state_dict({k: v.float() for k, v in models.seeded(vae.state_dict(), 1).items()})
    call = compile_client.wrap("vae_decoder", vae, ["x"])
    large, small = torch.randn(1, 4, 40, 40), torch.randn(1, 4, 16, 16)
    graph = captured(call, DECODER.ranged(vae, {"x": large}, "any size"))
    for given in (large, small):
        assert relative_l2(graph(given), call(given)) < 1e-5
