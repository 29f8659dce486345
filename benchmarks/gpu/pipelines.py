"""Full-size SDXL as a diffusers pipeline on a GPU: `python -m benchmarks.gpu.pipelines`.

Eager, torch.compile and OneGraph, each in processes of its own: the first has empty caches and compiles, the second is
a restart with what the first left. Random weights of one seed in float16; the VAE decodes in float32, as diffusers
does where its configuration says `force_upcast`. Prints a table and writes `--out`.
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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SEED = 1
FIRST_STEPS, STEPS, DECODES = 4, 24, 5
WARM_UP = 4  # steps of a run that are not counted: OneGraph captures CUDA graphs in them
CONTEXT, POOLED = 2048, 1280

WAYS = ("eager", "torch.compile", "torch.compile dynamic", "onegraph")

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
    "cross_attention_dim": CONTEXT,
    "projection_class_embeddings_input_dim": POOLED + 6 * 256,
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


def make_pipe(device: str) -> Any:
    """SDXL's base with weights of one seed, made on the device."""
    import torch
    from diffusers import AutoencoderKL, EulerDiscreteScheduler, StableDiffusionXLPipeline, UNet2DConditionModel

    torch.manual_seed(SEED)
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    try:
        with torch.device(device):
            unet, vae = UNet2DConditionModel(**BASE).eval(), AutoencoderKL(**VAE).eval()
    finally:
        torch.set_default_dtype(dtype)
    scheduler = EulerDiscreteScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
    parts: dict[str, Any] = dict.fromkeys(("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2"))
    pipe = StableDiffusionXLPipeline(unet=unet, vae=vae, scheduler=scheduler, add_watermarker=False, **parts)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def image(pipe: Any, side: int, steps: int, seed: int, on_step: Callable[..., Any] | None = None) -> Any:
    """An image [side,side,3] in 0..1 from random embeddings of 77 tokens."""
    import torch

    device = next(pipe.unet.parameters()).device
    generator = torch.Generator().manual_seed(SEED)
    drawn = [torch.randn(*shape, generator=generator) for shape in ((1, 77, CONTEXT), (1, POOLED)) * 2]
    names = ("prompt_embeds", "pooled_prompt_embeds", "negative_prompt_embeds", "negative_pooled_prompt_embeds")
    given = {name: x.to(device, torch.float16) for name, x in zip(names, drawn, strict=True)}
    result = pipe(
        **given,
        height=side,
        width=side,
        num_inference_steps=steps,
        generator=torch.Generator().manual_seed(seed),
        output_type="np",
        callback_on_step_end=on_step,
    )
    return result.images[0]


def prepare(pipe: Any, way: str) -> Any:
    import torch

    if way.startswith("torch.compile"):
        dynamic = True if way.endswith("dynamic") else None
        pipe.unet = torch.compile(pipe.unet, fullgraph=True, dynamic=dynamic)
    elif way == "onegraph":
        from onegraph.pipelines import compile_pipe

        compile_pipe(pipe)
    return pipe


def child(way: str, side: int, device: str, images: Path) -> dict[str, Any]:
    """The figures of one process, times in seconds and milliseconds."""
    import numpy as np
    import torch

    pipe = make_pipe(device)
    found: dict[str, Any] = {"libraries_s": _load_libraries(device)}
    began = time.perf_counter()
    prepare(pipe, way)
    image(pipe, side, FIRST_STEPS, 1)
    torch.cuda.synchronize()
    found["first_image_s"] = round(time.perf_counter() - began, 2)
    print(json.dumps(found), flush=True)  # what follows may fail
    times: list[float] = []

    def on_step(pipe: Any, step: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        torch.cuda.synchronize()
        times.append(time.perf_counter())
        return tensors

    made = image(pipe, side, STEPS, 2, on_step)
    np.save(images, made)
    steps = [1e3 * (b - a) for a, b in zip(times[WARM_UP:], times[WARM_UP + 1 :], strict=False)]
    found["step_ms"] = round(statistics.median(steps), 2)
    print(json.dumps(found), flush=True)
    found["decode_ms"] = round(_decode_ms(pipe, side, device), 2)
    print(json.dumps(found), flush=True)
    other = time.perf_counter()
    image(pipe, side * 3 // 4, FIRST_STEPS, 3)
    found["another_size_s"] = round(time.perf_counter() - other, 2)
    found["memory_mib"] = torch.cuda.max_memory_allocated() >> 20
    if way == "onegraph":
        from onegraph.runtime.registry import registry

        counters = registry().counters
        found["counts"] = {n: getattr(counters, n) for n in ("compiles", "restores", "compiled_calls", "eager_calls")}
        found["report"] = str(pipe.onegraph.report())
    return found


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
    parser = argparse.ArgumentParser(description="SDXL as a diffusers pipeline on a GPU.")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--side", type=int, default=1024)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=3600, help="no process is started after that")
    parser.add_argument("--work", type=Path, default=Path("/tmp/onegraph-pipelines"))
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "benchmarks" / "gpu_pipelines.json")
    parser.add_argument("--child", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        images = options.work / f"{options.child.replace(' ', '-')}.npy"
        print(json.dumps(child(options.child, options.side, options.device, images)))
        return
    found: dict[str, Any] = {}
    began = time.monotonic()
    options.work.mkdir(parents=True, exist_ok=True)
    for way in options.ways:
        folder = options.work / way.replace(" ", "-")
        env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}
        env |= {"ONEGRAPH_HOME": f"{folder}/home", "HF_HUB_OFFLINE": "1"}
        for process in ("first",) if way == "eager" else ("first", "restart"):
            if time.monotonic() - began > options.seconds:
                break
            command = [sys.executable, "-m", "benchmarks.gpu.pipelines", "--child", way]
            command += ["--side", str(options.side), "--device", options.device, "--work", str(options.work)]
            done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, check=False)
            lines = done.stdout.splitlines()
            row = found[f"{way}, {process}"] = json.loads(lines[-1]) if lines else {}
            if done.returncode:
                row["error"] = done.stderr.decode(errors="replace")[-3000:]
            print(f"{time.monotonic() - began:.0f} s: {way}, {process}: {found[f'{way}, {process}']}", flush=True)
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(found, indent=1) + "\n")
    show(found, options.work)


def show(found: dict[str, Any], work: Path) -> None:
    """Print a line for each process, and how far the images are from eager's."""
    import numpy as np
    from rich.console import Console
    from rich.table import Table

    columns = ("first_image_s", "step_ms", "decode_ms", "another_size_s", "memory_mib")
    table = Table("process", *columns, "to eager, of 255")
    for name, row in found.items():
        file = work / f"{name.partition(',')[0].replace(' ', '-')}.npy"
        eager = work / "eager.npy"
        distance = f"{255 * abs(np.load(file) - np.load(eager)).max():.1f}" if file.exists() and eager.exists() else ""
        table.add_row(name, *(str(row.get(column, "")) for column in columns), distance)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
