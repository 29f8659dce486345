"""Deep copies that packs make of compiled models, before they change them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import torch
from headless import host
from support.comfyui import controlnet
from support.edits.judge import close
from support.edits.subjects import Subject
from support.scenes.nodes import compiled_net, compiled_vae, restored


def test_a_deep_copy_of_a_compiled_controlnet_steers_like_it(
    net: Subject, checkpoint: Callable[..., Path], net_file: Path
) -> None:
    """Packs copy a CONTROL_NET before they change it."""
    model, plain = host.load(checkpoint()), controlnet.load(net_file)
    fast = compiled_net(plain, when_missing="eager")
    reference = controlnet.sample(model, controlnet.steered(plain), height=64, width=64)
    for copied in (copy.deepcopy(fast), copy.copy(fast), fast.copy(), copy.deepcopy(fast.copy())):
        result = controlnet.sample(model, controlnet.steered(copied), height=64, width=64)
        assert close(result, reference)
    changed = copy.deepcopy(fast)
    with torch.no_grad():
        changed.control_model.input_blocks[0][0].weight.mul_(3.0)
    result = controlnet.sample(model, controlnet.steered(changed), height=64, width=64)
    assert not close(result, reference)
    again = controlnet.sample(model, controlnet.steered(fast), height=64, width=64)
    assert close(again, reference)


def test_copies_of_what_a_compiled_model_consists_of(unet: Subject, checkpoint: Callable[..., Path]) -> None:
    """The host's own MODEL has no deep copy; packs make one of its module, its options and its wrappers."""
    model = host.load(checkpoint())
    fast = restored(model)
    reference = host.sample(model, height=64, width=64)
    copied = fast.clone()
    for attribute in ("model_options", "wrappers", "callbacks", "object_patches", "attachments"):
        setattr(copied, attribute, copy.deepcopy(getattr(fast, attribute)))
    assert close(host.sample(copied, height=64, width=64), reference)
    other = copy.deepcopy(fast.model.diffusion_model)
    with torch.no_grad():
        other.input_blocks[0][0].weight.mul_(3.0)
    assert close(host.sample(fast, height=64, width=64), reference)
    fast.model.diffusion_model = other
    changed = host.sample(model, height=64, width=64)
    assert not close(changed, reference)
    assert close(host.sample(fast, height=64, width=64), changed)
    assert close(host.sample(copied, height=64, width=64), changed)


def test_a_deep_copy_of_a_compiled_vae_decodes_like_it(decoder: Subject, checkpoint: Callable[..., Path]) -> None:

    vae = host.load_vae(checkpoint(vae="both"))
    fast = compiled_vae(vae, backend="inductor", parts="decoder", when_missing="eager")
    latents = torch.randn(1, 4, 2, 2, generator=torch.Generator().manual_seed(1))
    reference = vae.decode(latents)
    copied = copy.deepcopy(fast)
    assert close(copied.decode(latents), reference)
    with torch.no_grad():
        copied.first_stage_model.decoder.conv_in.weight.mul_(3.0)
    assert not close(copied.decode(latents), reference)
    assert close(fast.decode(latents), reference)
