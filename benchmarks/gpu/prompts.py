"""Whole prompts of video models, without and with the nodes: seconds of the text, of sampling and of the decode.

`python -m benchmarks.gpu.prompts --model "wan 2.1" --out FILE`, on a GPU in an environment with ComfyUI
(`COMFYUI_PATH`). Weights are seeded random numbers in bfloat16, so what sampling is given is of the text's shape, but
not made from it. Each way is a process of its own, that makes one prompt and then others, of other seeds: uncompiled,
with the three Compile nodes and an empty store, and with what that process stored. One table and one JSON file.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu import dits, texts, videos
from benchmarks.gpu.ways import Benchmark, Row, about_graphs, result_of

WAYS = ("eager", "ours", "ours, restored")
_T5XXL = {
    "num_layers": 24, "d_model": 4096, "d_kv": 64, "num_heads": 64, "d_ff": 10240, "vocab_size": 256384,
    "dense_act_fn": "gelu_pytorch_tanh", "is_gated_act": True, "model_type": "umt5",
}  # fmt: skip


@dataclass(frozen=True)
class Workflow:
    """What a prompt consists of.

    Attributes:
        text: class and configuration of its text model.
        written: tokens that its text model writes before, as LTX's templates enhance a prompt; 0: none.
        dit, vae: names in `dits.FULL` and `videos.LATENTS`.
        steps: of sampling.
        cfg: above 1, each step calls the model with a negative prompt, too.
    """

    text: tuple[str, dict[str, Any]]
    written: int
    dit: str
    vae: str
    steps: int
    cfg: float


WORKFLOWS: dict[str, Any] = {
    "wan 2.1": Workflow(("comfy.text_encoders.t5:T5", _T5XXL), 0, "wan 2.1 t2v", "wan 2.1", 10, 6.0),
    "ltx 2": Workflow(texts.SIZES["gemma 3 12b"], 256, "ltx 2", "ltx", 8, 1.0),
}


def measure(name: str, way: str, repeats: int) -> Row:
    """Make prompts in this process: seconds of each part of the first and of later ones, peak bytes, what ran."""
    from headless import host

    host.boot(cpu=False)
    host.import_pack()
    import comfy.sample
    import torch
    from support.comfyui import texts as small_texts
    from support.models import dits as small_dits

    workflow: Workflow = WORKFLOWS[name]
    full, small = dits.FULL[workflow.dit], dits.small_of(workflow.dit)
    with torch.inference_mode():
        model = small_dits.load(workflow.dit, dtype=torch.bfloat16, device=torch.device("cuda"), **full["unet"])
        vae = videos.loaded(workflow.vae)
        clip = small_texts.loaded(small_texts.SmallText(*workflow.text), torch.bfloat16)
    if way.startswith("ours"):
        clip, model, vae = _compiled(clip, model, vae)
    zeros = dits.latent_of(workflow.dit, 0)

    def text(number: int) -> None:
        if workflow.written:
            asked = small_texts.tokens(200, number)
            clip.generate(asked, max_length=workflow.written, do_sample=True, top_k=64, seed=number)
        for seed in range(2 if workflow.cfg > 1 else 1):
            clip.encode_from_tokens_scheduled(small_texts.tokens(512, 2 * number + seed))

    def sampled(number: int) -> Any:
        given = dits.text_of(full, {})
        noise = comfy.sample.prepare_noise(zeros, number)
        return comfy.sample.sample(
            model, noise, workflow.steps, workflow.cfg, "euler", "simple", given, given, zeros, seed=number,
            disable_pbar=True,
        )  # fmt: skip

    prompts: list[dict[str, float]] = []
    for number in range(1, repeats + 2):
        if number == 2:
            torch.cuda.reset_peak_memory_stats()
        parts: dict[str, float] = {}
        with torch.inference_mode():
            _timed(parts, "text", text, number)
            latent = _timed(parts, "sampling", sampled, number)
            video = latent.unbind()[0] if small.audio else latent
            frames = _timed(parts, "decode", vae.decode, video)
        prompts.append(parts)
    torch.save({"latent": video.cpu(), "frames": frames.cpu()}, result_of(name, way))
    row: Row = {"way": way, "frames": [*frames.shape[-4:-1]], "first": prompts[0] | {"all": _all(prompts[0])}}
    row["later"] = {part: round(statistics.median(one[part] for one in prompts[1:]), 2) for part in prompts[0]}
    row["later"]["all"] = round(statistics.median(map(_all, prompts[1:])), 2)
    row["peak_mib"] = round(torch.cuda.max_memory_allocated() / 2**20)
    if way.startswith("ours"):
        row |= {part: about_graphs(node) for part, node in _NODES.items()}
    return row


_NODES = {"text_graphs": "5:encoding", "sampling_graphs": "6", "decode_graphs": "7:decoder"}


def _compiled(clip: Any, model: Any, vae: Any) -> tuple[Any, Any, Any]:
    """As the three nodes make them."""
    from onegraph.host.calls.clip_hook import ClipNodeOptions, compile_clip
    from onegraph.host.calls.model_hook import ModelNodeOptions, compile_model
    from onegraph.host.calls.vae.hook import VaeNodeOptions, compile_vae

    return (
        compile_clip(clip, ClipNodeOptions(backend="inductor", parts="both"), "5")[0],
        compile_model(model, ModelNodeOptions(backend="inductor"), "6")[0],
        compile_vae(vae, VaeNodeOptions(backend="inductor", parts="decoder"), "7")[0],
    )


def _timed(parts: dict[str, float], part: str, made: Callable[[Any], Any], of: Any) -> Any:
    import torch

    torch.cuda.synchronize()
    began = time.perf_counter()
    found = made(of)
    torch.cuda.synchronize()
    parts[part] = round(time.perf_counter() - began, 2)
    return found


def _all(parts: dict[str, float]) -> float:
    return round(sum(parts.values()), 2)


def compared(found: Any, eager: Any) -> Row:
    """How far the last prompt's latents are from eager's, and its frames in steps of 8 bits.

    Frames differ by what their latents differ; a decode alone is compared by `benchmarks.gpu.videos`.
    """
    a, b = (one["latent"].double() for one in (found, eager))
    frames = 255 * (found["frames"].float() - eager["frames"].float()).abs()
    return {"latents": float((a - b).norm() / b.norm()), "frames_mean_of_255": round(float(frames.mean()), 3)}


if __name__ == "__main__":
    Benchmark("benchmarks.gpu.prompts", dict.fromkeys(WORKFLOWS), measure, compared).main(str(__doc__), WAYS)
