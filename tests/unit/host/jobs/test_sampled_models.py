"""Which models a prompt samples, with what on the way."""

from __future__ import annotations

from typing import Any

import pytest
from support.comfyui.prompts import node

from onegraph.host.jobs.sampled_models import SampledModel, sampled_models

TYPES = {
    "CheckpointLoaderSimple": {"output": ["MODEL", "CLIP", "VAE"]},
    "UNETLoader": {"output": ["MODEL"]},
    "Other loader": {"output": ["MODEL"]},
    "LoraLoader": {"output": ["MODEL", "CLIP"]},
    "Power Lora": {"output": ["MODEL"]},
    "ModelMerge": {"output": ["MODEL"]},
    "OneGraphCompileModel": {"output": ["MODEL"]},
    "BasicScheduler": {"output": ["SIGMAS"]},
    "ComfySwitchNode": {"output": ["COMFY_MATCHTYPE_V3"]},
    "ModelSamplingSD3": {"output": ["MODEL"], "input": {"required": {"model": ["MODEL"]}}},
    "ModelSave": {"output": []},
    "KSampler": {"output": ["LATENT"]},
}


def test_each_model_once_with_its_loras_in_order() -> None:
    prompt = {
        "1": node("CheckpointLoaderSimple", ckpt_name="a.safetensors"),
        "2": node("OneGraphCompileModel", model=["1", 0], backend="inductor", shapes="exact"),
        "3": node("LoraLoader", model=["2", 0], clip=["1", 1], lora_name="first.safetensors"),
        "4": node(
            "Power Lora",
            model=["3", 0],
            lora_1={"on": True, "lora": "second.safetensors"},
            lora_2={"on": False, "lora": "off.safetensors"},
            lora_3={"on": True, "lora": "None"},
        ),
        "5": node("KSampler", model=["4", 0]),
        "6": node("KSampler", model=["4", 0]),
        "7": node("BasicScheduler", model=["1", 0]),
        "8": node("ModelSave", model=["1", 0]),
    }
    assert sampled_models(prompt, TYPES) == [
        SampledModel(
            "1", "CheckpointLoaderSimple", "a.safetensors", "checkpoints", ("first.safetensors", "second.safetensors"),
            backend="inductor", any_size=False,
        )
    ]  # fmt: skip


def test_two_models_and_loaders_that_change_what_a_file_holds() -> None:
    prompt = {
        "1": node("UNETLoader", unet_name="high.safetensors", weight_dtype="default"),
        "2": node("UNETLoader", unet_name="low.safetensors", weight_dtype="fp8_e4m3fn"),
        "3": node("Other loader", size=5),
        "4": node("ModelMerge", model1=["1", 0], model2=["2", 0]),
        "5": node("KSampler", model=["4", 0]),
        "6": node("KSampler", model=["3", 0]),
    }
    found = sampled_models(prompt, TYPES)
    assert [(one.node, one.file, one.folder, one.as_in_file, one.backend) for one in found] == [
        ("1", "high.safetensors", "diffusion_models", True, ""),
        ("2", "low.safetensors", "diffusion_models", False, ""),
        ("3", "", "", False, ""),
    ]


def test_models_in_a_circle_end() -> None:
    prompt = {
        "1": node("ModelMerge", model1=["2", 0]),
        "2": node("ModelMerge", model1=["1", 0]),
        "3": node("KSampler", model=["1", 0]),
    }
    assert sampled_models(prompt, TYPES) == []


@pytest.mark.parametrize(
    ("switch", "loras"),
    [(True, [("fast.safetensors",)]), (False, [()]), (["9", 0], [(), ("fast.safetensors",)])],
)
def test_switches_pass_models_on(switch: Any, loras: list[tuple[str, ...]]) -> None:
    prompt = {
        "1": node("UNETLoader", unet_name="a.safetensors"),
        "2": node("LoraLoader", model=["1", 0], lora_name="fast.safetensors"),
        "3": node("ComfySwitchNode", on_false=["1", 0], on_true=["2", 0], switch=switch),
        "4": node("ComfySwitchNode", on_true=["3", 0], on_false=["3", 0], switch=True),
        "5": node("ModelSamplingSD3", model=["4", 0]),
        "6": node("KSampler", model=["5", 0]),
    }
    assert [(one.file, one.loras) for one in sampled_models(prompt, TYPES)] == [("a.safetensors", one) for one in loras]
