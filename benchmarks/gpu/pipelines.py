"""Full-size SDXL as diffusers pipelines on a GPU: `python -m benchmarks.gpu.pipelines`.

Base (text to image) and refiner (image to image), eager, by torch.compile and by OneGraph, each in processes of its
own: the first has empty caches and compiles, the second is a restart with what the first left. `comfyui` samples the
same UNet in ComfyUI with OneGraph's node. Random weights of one seed in float16; the VAE decodes in float32, as
diffusers does where its configuration says `force_upcast`. Prints a table and writes `--out`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SEED = 1
DECODES = 5
POOLED = 1280
FIRST_STEPS = 4  # of the first image, and of the one of another size
SHORT, LONG = 6, 30  # steps of two runs; their difference is free of what a run costs by itself

WAYS = ("eager", "torch.compile", "torch.compile dynamic", "onegraph", "comfyui")

_UNET = {
    "sample_size": 128,
    "in_channels": 4,
    "out_channels": 4,
    "layers_per_block": 2,
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
}
# From the configuration files that Stability AI publishes with the checkpoints.
BASE = {
    **_UNET,
    "block_out_channels": (320, 640, 1280),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "transformer_layers_per_block": (1, 2, 10),
    "attention_head_dim": (5, 10, 20),
    "cross_attention_dim": 2048,
    "projection_class_embeddings_input_dim": POOLED + 6 * 256,
}
REFINER = {
    **_UNET,
    "block_out_channels": (384, 768, 1536, 1536),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "transformer_layers_per_block": 4,
    "attention_head_dim": (6, 12, 24, 24),
    "cross_attention_dim": 1280,
    "projection_class_embeddings_input_dim": POOLED + 5 * 256,
}
VAE = {
    "sample_size": 1024,
    "in_channels": 3,
    "out_channels": 3,
    "latent_channels": 4,
    "layers_per_block": 2,
    "block_out_channels": (128, 256, 512, 512),
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "scaling_factor": 0.13025,
    "force_upcast": True,
}


@dataclass(frozen=True)
class Model:
    """One of the two pipelines, and what ComfyUI's tests call the same UNet."""

    unet: dict[str, Any]
    pipeline: str
    options: dict[str, Any]
    in_comfyui: str


MODELS = {
    "base": Model(BASE, "StableDiffusionXLPipeline", {}, "sdxl_base"),
    "refiner": Model(REFINER, "StableDiffusionXLImg2ImgPipeline", {"requires_aesthetics_score": True}, "sdxl_refiner"),
}


def make_pipe(model: str, device: str) -> Any:
    """SDXL's base or refiner with weights of one seed, made on the device."""
    import diffusers
    import torch
    from diffusers import AutoencoderKL, EulerDiscreteScheduler, UNet2DConditionModel

    chosen = MODELS[model]
    torch.manual_seed(SEED)
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    try:
        with torch.device(device):
            unet, vae = UNet2DConditionModel(**chosen.unet).eval(), AutoencoderKL(**VAE).eval()
    finally:
        torch.set_default_dtype(dtype)
    scheduler = EulerDiscreteScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
    absent: dict[str, Any] = dict.fromkeys(("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2"))
    make = getattr(diffusers, chosen.pipeline)
    pipe = make(unet=unet, vae=vae, scheduler=scheduler, add_watermarker=False, **absent, **chosen.options)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def run(pipe: Any, side: int, steps: int, seed: int, output_type: str = "np") -> Any:
    """An image [side,side,3] in 0..1, or its latents, from random embeddings of 77 tokens."""
    import torch

    device = next(pipe.unet.parameters()).device
    width = pipe.unet.config.cross_attention_dim
    generator = torch.Generator().manual_seed(SEED)
    drawn = [torch.randn(*shape, generator=generator) for shape in ((1, 77, width), (1, POOLED)) * 2]
    names = ("prompt_embeds", "pooled_prompt_embeds", "negative_prompt_embeds", "negative_pooled_prompt_embeds")
    given: dict[str, Any] = {name: x.to(device, torch.float16) for name, x in zip(names, drawn, strict=True)}
    if "Img2Img" in type(pipe).__name__:
        latents = torch.randn(1, 4, side // 8, side // 8, generator=generator)
        given |= {"image": latents.to(device, torch.float16), "strength": 1.0}
    else:
        given |= {"height": side, "width": side}
    noise = torch.Generator().manual_seed(seed)
    return pipe(**given, num_inference_steps=steps, generator=noise, output_type=output_type).images[0]


def prepare(pipe: Any, way: str) -> Any:
    import torch

    if way.startswith("torch.compile"):
        dynamic = True if way.endswith("dynamic") else None
        pipe.unet = torch.compile(pipe.unet, fullgraph=True, dynamic=dynamic)
    elif way == "onegraph":
        from onegraph.pipelines import compile_pipe

        compile_pipe(pipe)
    return pipe


def child(model: str, way: str, options: argparse.Namespace, images: Path) -> dict[str, Any]:
    """The figures of one process, times in seconds and milliseconds; printed as they come, as what follows may fail."""
    import numpy as np
    import torch

    side, device = options.side, options.device
    pipe = make_pipe(model, device)
    found: dict[str, Any] = {"libraries_s": _load_libraries(device)}
    began = time.perf_counter()
    prepare(pipe, way)
    run(pipe, side, FIRST_STEPS, 1)
    torch.cuda.synchronize()
    found["first_image_s"] = round(time.perf_counter() - began, 2)
    print(json.dumps(found), flush=True)
    found["step_ms"] = _step_ms(lambda steps: run(pipe, side, steps, 2, "latent"))
    print(json.dumps(found), flush=True)
    np.save(images, run(pipe, side, LONG, 2))
    found["decode_ms"] = round(_decode_ms(pipe, side, device), 2)
    print(json.dumps(found), flush=True)
    found["memory_mib"] = torch.cuda.max_memory_allocated() >> 20
    if way not in options.one_size:
        other = time.perf_counter()
        run(pipe, side * 3 // 4, FIRST_STEPS, 3)
        found["another_size_s"] = round(time.perf_counter() - other, 2)
    if way == "onegraph":
        found |= _counts()
        found["report"] = str(pipe.onegraph.report())
    return found


def comfyui_child(model: str, side: int, device: str, work: Path) -> dict[str, Any]:
    """The same UNet with OneGraphCompileModel's patch in ComfyUI's own sampling."""
    from .common import boot

    boot(device, work)
    from headless import host, models

    from onegraph.host.calls import model_hook as hook

    name = MODELS[model].in_comfyui
    file = models.write_checkpoint(name, work / f"{name}.safetensors", vae="none", device=device)
    patcher = host.load(file)
    _load_libraries(device)
    size = {"height": side, "width": side, "context_width": models.config(name)["context_dim"]}
    found: dict[str, Any] = {
        "eager_step_ms": _step_ms(lambda steps: host.sample(patcher, steps=steps, **size)),
    }
    print(json.dumps(found), flush=True)
    compiled = hook.compile_model(patcher, hook.ModelNodeOptions(), "bench")[0]
    began = time.perf_counter()
    host.sample(compiled, steps=FIRST_STEPS, **size)
    found["first_image_s"] = round(time.perf_counter() - began, 2)
    found["step_ms"] = _step_ms(lambda steps: host.sample(compiled, steps=steps, **size))
    return found | _counts()


def _step_ms(sample: Callable[[int], Any]) -> float:
    """Median milliseconds of a further step, from three short and long runs after one that is not counted."""
    import torch

    sample(SHORT)  # OneGraph captures CUDA graphs in it
    found = []
    for _ in range(3):
        seconds = []
        for steps in (SHORT, LONG):
            torch.cuda.synchronize()
            began = time.perf_counter()
            sample(steps)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
        found.append(1e3 * (seconds[1] - seconds[0]) / (LONG - SHORT))
    return round(statistics.median(found), 2)


def _counts() -> dict[str, Any]:
    from onegraph.runtime.obtain.registry import registry

    counters = registry().counters
    names = ("compiles", "restores", "compiled_calls", "eager_calls")
    return {"counts": {name: getattr(counters, name) for name in names}}


def _load_libraries(device: str) -> float:
    """Seconds of a process's first convolution and product, which are no part of restoring a graph."""
    import torch

    torch.cuda.synchronize()
    began = time.perf_counter()
    x = torch.ones(1, 8, 64, 64, device=device, dtype=torch.float16)
    torch.nn.functional.conv2d(x, torch.ones(8, 8, 3, 3, device=device, dtype=torch.float16))
    torch.mm(x[0, 0], x[0, 0])
    torch.cuda.synchronize()
    return round(time.perf_counter() - began, 2)


def _decode_ms(pipe: Any, side: int, device: str) -> float:
    """Median time of a decode as the pipeline does it: in float32, after which the VAE is float16 again."""
    import torch

    times = []
    dtype = pipe.vae.dtype
    with torch.no_grad():
        pipe.upcast_vae()
        dtype_in = next(iter(pipe.vae.post_quant_conv.parameters())).dtype  # as the pipeline asks
        latents = torch.randn(1, 4, side // 8, side // 8, device=device, dtype=dtype_in)
        for _ in range(DECODES + 1):
            torch.cuda.synchronize()
            start = time.perf_counter()
            pipe.vae.decode(latents, return_dict=False)
            torch.cuda.synchronize()
            times.append(1e3 * (time.perf_counter() - start))
        pipe.vae.to(dtype=dtype)
    return statistics.median(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description="SDXL as diffusers pipelines on a GPU.")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["base", "refiner"])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    one_size = "leave out the image of another size, for which torch.compile takes six minutes"
    parser.add_argument("--one-size", nargs="*", choices=WAYS, default=(), help=one_size)
    parser.add_argument("--side", type=int, default=1024)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=3600, help="no process is started after that")
    parser.add_argument("--work", type=Path, default=Path("/tmp/onegraph-pipelines"))
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "benchmarks" / "gpu_pipelines.json")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        (model,), (way,) = options.models, options.ways
        work = options.work / f"{model} {way}".replace(" ", "-")
        if way == "comfyui":
            print(json.dumps(comfyui_child(model, options.side, options.device, work)))
        else:
            print(json.dumps(child(model, way, options, work / "image.npy")))
        return
    found: dict[str, Any] = {}
    began = time.monotonic()
    for model in options.models:
        for way in options.ways:
            for process in ("first",) if way in ("eager", "comfyui") else ("first", "restart"):
                if time.monotonic() - began > options.seconds:
                    break
                name = f"{model}, {way}, {process}"
                found[name] = _in_a_process(model, way, options)
                print(f"{time.monotonic() - began:.0f} s: {name}: {found[name]}", flush=True)
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps(found, indent=1) + "\n")
    show(found, options.work)


def _in_a_process(model: str, way: str, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of a fresh process, as far as it got, with the end of what it wrote when it failed."""
    folder = options.work / f"{model} {way}".replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}
    env |= {"ONEGRAPH_HOME": f"{folder}/home", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "benchmarks.gpu.pipelines", "--child", "--models", model, "--ways", way]
    command += ["--side", str(options.side), "--device", options.device, "--work", str(options.work)]
    command += ["--one-size", *options.one_size]
    output = folder / "output.txt"  # a file, to be read also when the benchmark is ended before its time
    with output.open("wb") as out:
        done = subprocess.run(command, env=env, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, check=False)
    text = output.read_text(errors="replace")
    lines = [line for line in text.splitlines() if line.startswith("{")]
    row: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    if done.returncode:
        row["error"] = text[-3000:]
    return row


def show(found: dict[str, Any], work: Path) -> None:
    """Print a line for each process, and how far the images are from eager's."""
    import numpy as np
    from rich.console import Console
    from rich.table import Table

    columns = ("first_image_s", "step_ms", "decode_ms", "another_size_s", "memory_mib")
    table = Table("process", *columns, "to eager, of 255")
    for name, row in found.items():
        model, way, _ = name.split(", ")
        file, eager = (work / f"{model} {one}".replace(" ", "-") / "image.npy" for one in (way, "eager"))
        distance = f"{255 * abs(np.load(file) - np.load(eager)).max():.1f}" if file.exists() and eager.exists() else ""
        table.add_row(name, *(str(row.get(column, "")) for column in columns), distance)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
