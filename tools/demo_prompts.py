"""Prompts of the demo, from the workflows of the tests."""

from __future__ import annotations

from pathlib import Path

from demo_checkpoints import has_text_encoder
from headless import workflows

BASE_STEPS = 4  # the refiner takes what the base leaves


def with_when_missing(prompt: workflows.Prompt, when_missing: str) -> workflows.Prompt:
    for class_type in ("OneGraphCompileModel", "OneGraphCompileVAE"):
        prompt = workflows.with_inputs(prompt, class_type, when_missing=when_missing)
    return prompt


def prepared(prompt: workflows.Prompt, checkpoints: dict[str, Path], backend: str, steps: int) -> workflows.Prompt:
    """The workflow on these checkpoints, with the steps and the backend of the demo."""
    base, refiner = checkpoints["base"], checkpoints.get("refiner")
    prompt = workflows.with_checkpoints(prompt, base.name, refiner.name if refiner else "", has_text_encoder(base))
    prompt = workflows.with_steps(prompt, steps, BASE_STEPS)
    for class_type in ("OneGraphCompileModel", "OneGraphCompileVAE"):
        prompt = workflows.with_inputs(prompt, class_type, backend=backend)
    if backend == "oneflow":  # exact sizes only: without this, a size is compiled when it comes up again
        prompt = workflows.with_inputs(prompt, "OneGraphCompileVAE", dynamic_resolution="each size")
    return prompt


def decoding(prompt: workflows.Prompt, number: int) -> workflows.Prompt:
    """A prompt that decodes an empty latent by the workflow's VAE, as large as its images. ComfyUI knows none before.

    Args:
        number: tells prompts apart, and gives their latents different values.
    """
    (latent,) = workflows.nodes(prompt, "EmptyLatentImage")
    vae = workflows.nodes(prompt, "OneGraphCompileVAE")[0]
    loader = prompt[vae]["inputs"]["vae"][0]
    changed = {"class_type": "LatentMultiply", "inputs": {"samples": [latent, 0], "multiplier": float(number)}}
    decoded = {"class_type": "VAEDecode", "inputs": {"samples": ["changed", 0], "vae": [vae, 0]}}
    saved = {"class_type": "SaveImage", "inputs": {"images": ["decoded", 0], "filename_prefix": "onegraph_decoded"}}
    kept = {node: prompt[node] for node in (latent, vae, loader)}
    return {**kept, "changed": changed, "decoded": decoded, "saved": saved}
