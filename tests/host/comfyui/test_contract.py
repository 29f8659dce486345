"""This ComfyUI has what host/comfyui/contract.py lists; what it lacks turns a feature off, and the node says why."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from headless import host
from support.comfyui import controlnet

from onegraph.common import reasons
from onegraph.common.refused import Refused
from onegraph.host import families
from onegraph.host.calls import controlnet_hook as family
from onegraph.host.calls import model_hook
from onegraph.host.calls.vae import hook as vae_hook
from onegraph.host.comfyui import contract
from onegraph.host.weights import paged_weights


@pytest.fixture(autouse=True)
def checked_anew() -> Iterator[None]:
    contract.missing.cache_clear()
    yield
    contract.missing.cache_clear()


@pytest.mark.parametrize("feature", contract.USES)
def test_this_comfyui_has_all_that_is_used(feature: contract.Feature) -> None:
    import server  # noqa: F401

    import nodes  # noqa: F401 they are inspected where they are loaded

    assert contract.missing(contract.USES[feature]) == ()


@pytest.mark.parametrize("family", families.registered(), ids=lambda family: family.component)
def test_this_comfyui_has_what_each_family_uses(family: families.HostFamily) -> None:
    assert family.uses
    assert contract.missing(family.uses) == ()


def test_a_model_passes_through_a_host_without_hooks(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import comfy.patcher_extension

    monkeypatch.delattr(comfy.patcher_extension.WrappersMP, "DIFFUSION_MODEL")
    passed, text = model_hook.compile_model(model, model_hook.ModelNodeOptions(), "7")
    assert text == (
        "uncompiled: no model runs compiled, because this ComfyUI does not have "
        "comfy.patcher_extension.WrappersMP.DIFFUSION_MODEL as OneGraph knows it; update OneGraph"
    )
    assert passed is model


def test_other_parameters_are_another_function(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel

    own = UNetModel._forward
    found = [*inspect.signature(own).parameters.values()]

    def changed(*args: Any, **kwargs: Any) -> Any:
        return own(*args, **kwargs)

    changed.__signature__ = inspect.Signature([found[0], found[1].replace(name="latent"), *found[2:]])  # type: ignore[attr-defined]
    monkeypatch.setattr(UNetModel, "_forward", changed)
    text = model_hook.compile_model(model, model_hook.ModelNodeOptions(), "7")[1]
    assert text.startswith("uncompiled: no model runs compiled, because this ComfyUI does not have comfy.ldm.modules.")
    assert "UNetModel._forward as OneGraph knows it" in text


def test_a_family_whose_class_is_gone_leaves_the_others(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(families.HostFamily):
        component = supported = "another"
        uses = contract.uses("comfy.ldm.modules.diffusionmodules.openaimodel", "NoSuchModel")

    module = model.model.diffusion_model
    assert families.family_of(module, [Gone(), *families.MODELS]) is families.MODELS[0]
    refused = families.family_of(module, [Gone()])
    assert isinstance(refused, reasons.HostLacks)
    assert refused.names == ("comfy.ldm.modules.diffusionmodules.openaimodel.NoSuchModel",)


def test_a_vae_passes_through_a_host_without_tiles(
    checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    import comfy.sd

    vae = host.load_vae(checkpoint())
    monkeypatch.delattr(comfy.sd.VAE, "decode_tiled_")
    passed, text = vae_hook.compile_vae(vae, vae_hook.VaeNodeOptions(), "7")
    assert passed is vae
    assert text.startswith(
        "uncompiled: no VAE runs compiled, because this ComfyUI does not have comfy.sd.VAE.decode_tiled_"
    )


def test_a_controlnet_passes_through_a_host_that_has_changed_it(
    models_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import comfy.cldm.cldm
    import comfy.controlnet

    path = controlnet.write_controlnet("tiny_sdxl", models_folder / "contract.safetensors")
    loaded = comfy.controlnet.load_controlnet(str(path))
    monkeypatch.setattr(comfy.cldm.cldm.ControlNet, "forward", lambda self, noise, hint: {})
    passed, text = family.compile_controlnet(loaded, family.ModelNodeOptions(), "7")
    assert passed is loaded
    assert text.startswith(
        "uncompiled: no ControlNet runs compiled, because this ComfyUI does not have comfy.cldm.cldm"
    )


def test_paged_weights_are_refused_without_casts(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import comfy.ops

    monkeypatch.delattr(comfy.ops, "cast_bias_weight")
    found = paged_weights.paged(model, model.model.diffusion_model, 0)
    assert isinstance(found, Refused)
    assert found.reason.code == "host_lacks"
    assert "comfy.ops.cast_bias_weight" in found.reason.text


def test_the_log_names_what_is_missing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    import comfy.utils

    monkeypatch.delattr(comfy.utils.ProgressBar, "update_absolute")
    contract.check((family.feature, family.uses) for family in families.registered())
    assert [record.getMessage() for record in caplog.records] == [
        "OneGraph: nodes may show nothing, because this ComfyUI does not have "
        "comfy.utils.ProgressBar.update_absolute as OneGraph knows it; update OneGraph"
    ]
