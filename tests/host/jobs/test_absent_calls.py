"""What a model's blocks are asked for without a run is what a run asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.models import dits, quantised

from onegraph import backends
from onegraph.common.errors import CaptureError
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.host.calls.block_hook import Blocks, HostBlockClient
from onegraph.host.calls.component import NodeComponent
from onegraph.host.calls.model_hook import ModelNodeOptions, compile_model
from onegraph.host.calls.vae.hook import VaeNodeOptions, compile_vae
from onegraph.host.jobs import absent_bake, absent_calls

SOURCE = ModelSource(None, "0" * 12)
CPU = torch.device("cpu")


def asked_without_a_run(model: Any) -> list[dict[str, Any]]:
    module = model.model.diffusion_model
    options = ModelNodeOptions("inductor", "any size", "eager")
    client = HostBlockClient(NodeComponent(Blocks(), None, SOURCE), options, module, "diffusion_model.", CPU)
    requests = absent_calls.block_requests(model, client, backends.get("inductor"), CPU)
    return [request.key.fields() for request in requests]


def asked_by_a_run(model: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(HostBlockClient, "requested", lambda self, request: asked.append(request.key.fields()))
    compiled = compile_model(model, ModelNodeOptions("inductor", "any size", "eager"), "7")[0]
    with torch.inference_mode():  # as the host's executor does
        dits.sample(compiled, name)
    return asked


def by_name(key: dict[str, Any]) -> tuple[str, str]:
    return key["architecture"], repr(key["shapes"])


FAMILIES = ("flux", "flux schnell", "flux 2", "z-image", "qwen-image", "wan 2.1 t2v", "chroma", "sd 3.5", "krea 2")


@pytest.mark.parametrize(
    ("name", "layers"), [*((name, "") for name in FAMILIES), ("flux", "fp8 scaled"), ("z-image", "int8")]
)
def test_the_keys_are_those_of_a_run(name: str, layers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(absent_calls, "_SIDE", 16)
    with torch.inference_mode():
        model = quantised.load(name, layers) if layers else dits.load(name)
    module = model.model.diffusion_model
    without = asked_without_a_run(model)
    assert model.model.diffusion_model is module
    assert without
    assert sorted(without, key=by_name) == sorted(asked_by_a_run(model, name, monkeypatch), key=by_name)


def test_a_model_that_cannot_be_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    model = dits.load("flux")
    model.model.model_config.unet_config["context_in_dim"] = 7
    with pytest.raises(CaptureError, match="cannot be called without a run"):
        asked_without_a_run(model)
    assert all(not one._forward_pre_hooks for one in model.model.diffusion_model.modules())


def vae_file(name: str, folder: Path) -> Path:
    """A VAE of its usual size, as a file: TAESD, and those of SD and SDXL."""
    import comfy.taesd.taesd as taesd
    from comfy.ldm.models.autoencoder import AutoencoderKL

    of_images = {
        "double_z": True, "z_channels": 4, "resolution": 256, "in_channels": 3, "out_ch": 3, "ch": 128,
        "ch_mult": [1, 2, 4, 4], "num_res_blocks": 2, "attn_resolutions": [], "dropout": 0.0,
    }  # fmt: skip
    module = taesd.TAESD(latent_channels=4) if name == "taesd" else AutoencoderKL(ddconfig=of_images, embed_dim=4)
    save_file({name: one.contiguous() for name, one in module.state_dict().items()}, folder / f"{name}.safetensors")
    return folder / f"{name}.safetensors"


@pytest.mark.parametrize("name", ["taesd", "kl"])
def test_the_keys_of_a_vae_are_those_of_a_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import comfy.sd

    path = vae_file(name, tmp_path)
    with torch.inference_mode():
        vae = comfy.sd.VAE(sd=load_file(path))
        without = [request.key.fields() for request in absent_bake._requests(path, backends.get("inductor"), CPU)]
        asked: list[dict[str, Any]] = []
        usual = NodeComponent.request

        def request(self: NodeComponent, *args: Any) -> Any:
            made = usual(self, *args)
            asked.append(made.key.fields())
            return made

        monkeypatch.setattr(NodeComponent, "request", request)
        options = VaeNodeOptions("inductor", "both", "any size", "eager")
        compiled, _ = compile_vae(vae, options)
        image = compiled.decode(torch.zeros(1, 4, 8, 8))
        compiled.encode(image)
    assert [key["component"] for key in without] == ["vae_decoder", "vae_encoder"]
    assert without == asked
