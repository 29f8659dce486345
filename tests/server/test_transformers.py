"""Diffusion transformers from files, by the nodes that people load them with: Load Diffusion Model and its LoRA."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from headless import host, server, workflows
from support.comfyui.installation import environment_of
from support.models import dit_files
from support.models.ggml_models import PACKS

from .conftest import difference

SEED = 5


@dataclass(frozen=True)
class File:
    """A file as it is loaded.

    Attributes:
        blocks: how many repeated blocks the model has, and of how many kinds.
        layers: the format of the file's layers.
        dtype: what Load Diffusion Model is told to keep weights in.
    """

    family: str
    blocks: int
    kinds: int
    layers: str = ""
    dtype: str = "default"

    def __str__(self) -> str:
        return " ".join(part for part in (self.family, self.layers, self.dtype) if part and part != "default")


FILES = [
    File("flux", 5, 2),
    File("flux", 5, 2, "fp8 scaled"),
    File("flux", 5, 2, "int8 convrot"),
    File("flux", 5, 2, dtype="fp8_e4m3fn"),
    File("flux 2", 5, 2),
    File("wan 2.1 t2v", 3, 1),
    File("sd 3.5", 4, 3),
]


GGUF = File("flux", 5, 2, "Q4_0")  # by another pack's loader


def prompt_of(file: File, width: int = 128, height: int = 128, lora: float = 0.0) -> workflows.Prompt:
    """A workflow of the file, with a LoRA's strength."""
    sides = {"family": file.family, "width": width, "height": height}
    features = dit_files.SIZES[file.family].features

    def text(words: str) -> dict[str, Any]:
        return {"class_type": "OneGraphTestTransformerText", "inputs": {"text": words, "features": features, **sides}}

    name, model = f"{file}.safetensors", ["lora", 0] if lora else ["load", 0]
    sampling = {"seed": SEED, "steps": 3, "cfg": 1.0, "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0}
    wired = {"model": ["compile", 0], "positive": ["text", 0], "negative": ["no", 0], "latent_image": ["latent", 0]}
    latent = {"content": "empty", "batch_size": 1, **sides}
    prompt: workflows.Prompt = {
        "load": {"class_type": "UNETLoader", "inputs": {"unet_name": name, "weight_dtype": file.dtype}},
        "compile": {"class_type": "OneGraphCompileModel",
                    "inputs": {"model": model, "shapes": "any size", "when_missing": "wait", "backend": "inductor"}},
        "text": text("a lighthouse at night"),
        "no": text("blurry"),
        "latent": {"class_type": "OneGraphTestTransformerLatent", "inputs": latent},
        "sample": {"class_type": "KSampler", "inputs": {**wired, **sampling}},
        "decode": {"class_type": "OneGraphTestTransformerDecode", "inputs": {"samples": ["sample", 0]}},
        "save": {"class_type": "SaveImage", "inputs": {"images": ["decode", 0], "filename_prefix": "transformer"}},
    }  # fmt: skip
    if file is GGUF:
        prompt["load"] = {"class_type": "UnetLoaderGGUF", "inputs": {"unet_name": f"{file}.gguf"}}
    if lora:
        chosen = {"model": ["load", 0], "lora_name": name, "strength_model": lora}
        prompt["lora"] = {"class_type": "LoraLoaderModelOnly", "inputs": chosen}
    return prompt


def prepared(file: File, tmp_path: Path) -> tuple[Path, Path, dict[str, str]]:
    """A base directory with the file and its LoRA, the folder of the file, and a server's environment."""
    host.boot()
    base = server.prepare_base(tmp_path / "base")
    folder = base / "models" / "diffusion_models"
    folder.mkdir(parents=True)
    model = folder / (f"{file}.gguf" if file is GGUF else f"{file}.safetensors")
    dit_files.write(file.family, model, base / "models" / "loras" / f"{file}.safetensors", file.layers)
    return base, folder, environment_of(tmp_path / "home")


def same(running: server.Server, prompt: workflows.Prompt) -> server.Outcome:
    """Run a workflow with the node and without it; what it gave with it."""
    wanted, found = running.run(workflows.without_onegraph(prompt)), running.run(prompt)
    assert (wanted.status, found.status) == ("success", "success"), (wanted.error, found.error)
    assert difference(found, wanted) <= 1
    return found


def compiled_fully(outcome: server.Outcome, file: File) -> None:
    wanted = f"block graphs: {file.blocks} of {file.blocks} blocks compiled"
    assert outcome.text("compile").startswith(wanted), outcome.texts


def two_sizes(running: server.Server, file: File) -> server.Outcome:
    """Run two sizes, for which each kind of block is compiled once; what the first one gave."""
    plain = same(running, prompt_of(file))
    compiled_fully(same(running, prompt_of(file, 192, 128)), file)
    assert running.status()["compiles"] == file.kinds
    return plain


@pytest.mark.parametrize(
    "file", [FILES[0], *(pytest.param(file, marks=pytest.mark.full) for file in FILES[1:])], ids=str
)
def test_a_file_runs_compiled(file: File, tmp_path: Path) -> None:
    """Compiled once for all sizes and LoRAs, kept beside the file, and restored by the next process."""
    base, folder, environ = prepared(file, tmp_path)
    with server.running(base, host.comfyui_path(), env=environ) as running:
        plain = two_sizes(running, file)
        for strength in (1.0, 0.5):
            changed = same(running, prompt_of(file, lora=strength))
            compiled_fully(changed, file)
            assert difference(changed, plain) > 10
        assert running.status()["compiles"] == file.kinds
    assert len([*folder.rglob("manifest.json")]) == file.kinds
    with server.running(base, host.comfyui_path(), env=environ) as running:
        restored = same(running, prompt_of(file))
        compiled_fully(restored, file)
        status = running.status()
        assert (status["compiles"], status["restores"], status["eager_calls"]) == (0, file.kinds, 0)


@pytest.mark.skipif(not PACKS["ComfyUI-GGUF"].is_dir(), reason="COMFYUI_GGUF_PATH names no such pack")
def test_a_gguf_file_runs_compiled(tmp_path: Path) -> None:
    """By the pack's own loader.

    Weights with a LoRA are computed before each block: one more compile for each kind of block, and for each choice of
    layers that the LoRA is for.
    """
    base, folder, environ = prepared(GGUF, tmp_path)
    (base / "custom_nodes" / "ComfyUI-GGUF").symlink_to(PACKS["ComfyUI-GGUF"])
    with server.running(base, host.comfyui_path(), env=environ) as running:
        plain = two_sizes(running, GGUF)
        assert difference(same(running, prompt_of(GGUF, lora=1.0)), plain) > 10
        compiles = running.status()["compiles"]
        for strength in (0.5, 0.0, 0.7):
            changed = same(running, prompt_of(GGUF, lora=strength))
            compiled_fully(changed, GGUF)
        assert running.status()["compiles"] == compiles >= 2 * GGUF.kinds
    assert len([*folder.rglob("manifest.json")]) == compiles
    with server.running(base, host.comfyui_path(), env=environ) as running:
        for lora in (0.0, 1.0):
            restored = same(running, prompt_of(GGUF, lora=lora))
            compiled_fully(restored, GGUF)
        status = running.status()
        assert (status["compiles"], status["restores"], status["eager_calls"]) == (0, compiles, 0)
