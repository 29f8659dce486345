"""The real ComfyUI, in this process."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def comfyui_path() -> Path:
    """The host to test against: `COMFYUI_PATH`, else the one `make setup` fetched."""
    return Path(os.environ.get("COMFYUI_PATH") or ROOT / "build" / "host" / "ComfyUI")


def import_pack() -> None:
    """Make this checkout importable as `onegraph` where it is not installed."""
    if importlib.util.find_spec("onegraph") is not None:
        return
    spec = importlib.util.spec_from_file_location(
        "onegraph", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["onegraph"] = module
    spec.loader.exec_module(module)


def boot(**options: Any) -> None:
    """Import ComfyUI as `main.py --cpu` would set it up, without a server. Once per process.

    `options` are further command-line options of ComfyUI, e.g. use_pytorch_cross_attention=True; with cpu=False it
    takes the GPU, without DynamicVRAM, which only main.py turns on.
    """
    if "comfy.cli_args" in sys.modules:
        return
    sys.path.insert(0, str(comfyui_path()))
    import comfy.options

    comfy.options.enable_args_parsing(False)
    from comfy.cli_args import args

    args.cpu = True
    for name, value in options.items():
        setattr(args, name, value)
    import comfy.model_management
    import torch

    from . import models

    torch.set_grad_enabled(False)
    models.register()


def load(path: Path, **options: Any) -> Any:
    """The MODEL of a checkpoint, by ComfyUI's own loader; `options` are the loader's, e.g. dtype=torch.bfloat16."""
    import comfy.sd

    return comfy.sd.load_checkpoint_guess_config(str(path), output_vae=False, output_clip=False, model_options=options)[
        0
    ]


def load_vae(path: Path) -> Any:
    """The VAE of a checkpoint, by ComfyUI's own loader."""
    import comfy.sd

    return comfy.sd.load_checkpoint_guess_config(str(path), output_model=False, output_clip=False)[2]


def with_lora(model: Any, path: Path, strength: float) -> Any:
    """A clone of the MODEL with the LoRA of a file, by ComfyUI's own loader."""
    import comfy.sd
    import comfy.utils

    return comfy.sd.load_lora_for_models(model, None, comfy.utils.load_torch_file(str(path)), strength, 0)[0]


def conditioning(tokens: int, width: int, seed: int) -> list[Any]:
    """What a text encoder returns: [[context [1, tokens, width], {"pooled_output": [1, 1280]}]]."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    context = torch.randn(1, tokens, width, generator=generator)
    return [[context, {"pooled_output": torch.randn(1, 1280, generator=generator)}]]


def sample(
    model: Any,
    *,
    seed: int = 1,
    height: int = 128,
    width: int = 128,
    steps: int = 2,
    cfg: float = 7.0,
    tokens: int = 77,
    batch: int = 1,
    context_width: int = 2048,
    positive: Any = None,
    negative: Any = None,
) -> Any:
    """Latents [batch, 4, height/8, width/8] from ComfyUI's own sampling, sizes in pixels."""
    import comfy.sample
    import torch

    with torch.inference_mode():
        latent = torch.zeros(batch, 4, height // 8, width // 8)
        noise = comfy.sample.prepare_noise(latent, seed)
        return comfy.sample.sample(
            model,
            noise,
            steps,
            cfg,
            "euler",
            "normal",
            positive or conditioning(tokens, context_width, 11),
            negative or conditioning(77, context_width, 12),
            latent,
            seed=seed,
            disable_pbar=True,
        )


def wait_for_preloads() -> None:
    """Wait until no thread preloads a graph."""
    import threading

    for thread in threading.enumerate():
        if thread.name.startswith("onegraph-preload"):
            thread.join()
