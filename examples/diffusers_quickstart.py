"""Compile a diffusers pipeline once, and restore it in every later process.

    python examples/diffusers_quickstart.py MODEL [GRAPHS] [PROMPT]

MODEL is a folder as `save_pretrained` writes it. The first process compiles and saves the graphs in GRAPHS; each later
one loads them. Nothing is fetched from the network.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from diffusers import DiffusionPipeline

from onegraph.pipelines import compile_pipe, load_pipe, save_pipe


def main(model: Path, graphs: Path, prompt: str = "a lighthouse at dawn") -> None:
    on_gpu = torch.cuda.is_available()
    dtype = torch.float16 if on_gpu else torch.float32
    pipe = DiffusionPipeline.from_pretrained(model, torch_dtype=dtype, local_files_only=True)
    pipe.to("cuda" if on_gpu else "cpu")

    saved = graphs.is_dir()
    pipe = load_pipe(pipe, graphs) if saved else compile_pipe(pipe)
    started = time.perf_counter()
    image = pipe(prompt, num_inference_steps=4, generator=torch.Generator().manual_seed(0)).images[0]
    print(f"first image after {time.perf_counter() - started:.1f} s")
    print(pipe.onegraph.report())
    if not saved:
        save_pipe(pipe, graphs)
    image.save(graphs / "image.png")


if __name__ == "__main__":
    given = sys.argv[1:]
    if not given:
        raise SystemExit(__doc__)
    main(Path(given[0]), Path(given[1] if len(given) > 1 else "graphs"), *given[2:3])
