"""A script as it was written for OneDiffX, with only its import lines changed.

python examples/from_onediffx.py MODEL
"""

from __future__ import annotations

import sys

import torch
from diffusers import DiffusionPipeline

from onegraph.pipelines.onediff import compile_pipe, load_pipe, save_pipe  # was: from onediffx import ...

pipe = DiffusionPipeline.from_pretrained(sys.argv[1], local_files_only=True)
if torch.cuda.is_available():
    pipe.to("cuda")

pipe = compile_pipe(pipe, ignores=["text_encoder"])
load_pipe(pipe, dir="cached_pipe")
image = pipe("a lighthouse at dawn", num_inference_steps=4).images[0]
image.save("image.png")
save_pipe(pipe, dir="cached_pipe")
