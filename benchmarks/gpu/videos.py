"""Video VAEs at full size: a decode eager, by block graphs and by torch.compile of each block, on this GPU.

`python -m benchmarks.gpu.videos --model "wan 2.1" --out FILE`, in an environment with ComfyUI (`COMFYUI_PATH`). Weights
are seeded random numbers, in bfloat16. Each way is a process of its own; block graphs run twice, with an empty store
and with what the first process stored. One table and one JSON file.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
import time
from typing import Any

from benchmarks.gpu.ways import ROOT, Benchmark, Row, about_graphs, result_of

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]

LATENTS = {  # by VAE: channels, frames, height and width of latents, of 480p or as its model's templates have it
    "wan 2.1": (16, 21, 60, 104),
    "wan 2.2": (48, 13, 44, 80),
    "hunyuan video": (16, 9, 60, 104),
    "hunyuan video 1.5": (32, 9, 30, 52),
    "ltx": (128, 13, 22, 40),
    "minimax h3": (24, 13, 22, 40),
}
PIXELS = {"wan 2.2": 16, "hunyuan video 1.5": 16, "ltx": 32, "minimax h3": 16}  # per unit of latents, if not 8


def module_of(name: str) -> Any:
    """A VAE's module as its file makes it."""
    import comfy.ldm.minimax.vae
    from comfy.ldm.lightricks.vae.causal_video_autoencoder import VideoVAE
    from comfy.ldm.wan import vae, vae2_2
    from support.comfyui import vaes

    more = {"dim_mult": [1, 2, 4, 4], "num_res_blocks": 2, "attn_scales": [], "dropout": 0.0}
    if name == "wan 2.1":
        return vae.WanVAE(dim=96, z_dim=16, temperal_downsample=[False, True, True], **more)
    if name == "wan 2.2":
        return vae2_2.WanVAE(dim=160, z_dim=48, dec_dim=256, temperal_downsample=[False, True, True], **more)
    if name == "hunyuan video":
        return vaes.kl(ch=128, ch_mult=[1, 2, 4, 4], num_res_blocks=2, conv3d=True, time_compress=4)
    if name == "hunyuan video 1.5":
        sizes = {"block_out_channels": [128, 256, 512, 1024, 1024], "num_res_blocks": 2}
        return vaes.hunyuan("vae_refiner", z_channels=32, ffactor_spatial=16, ffactor_temporal=4, **sizes)
    return VideoVAE(version=2) if name == "ltx" else comfy.ldm.minimax.vae.MiniMaxH3VideoVAE()


def loaded(name: str) -> Any:
    """ComfyUI's VAE object with random weights."""
    import torch
    from support.comfyui import vaes

    torch.manual_seed(0)
    with torch.device("cuda"):
        module = module_of(name).to(torch.bfloat16)
        for one in module.parameters():
            if one.ndim > 1:
                torch.nn.init.normal_(one, std=(one[0].numel()) ** -0.5)
            else:
                torch.nn.init.ones_(one)
    small = vaes.VAES[name]
    full = dataclasses.replace(small, channels=LATENTS[name][0], pixels=PIXELS.get(name, 8))
    return vaes.held(module, full, module.state_dict(), torch.bfloat16)


def measure(name: str, way: str, repeats: int) -> Row:
    """Decode in this process: seconds of the first and of later decodes, peak bytes, what ran."""
    from headless import host

    host.boot(cpu=False)
    host.import_pack()
    import torch

    with torch.inference_mode():
        vae = loaded(name)
    chosen = vae
    if way.startswith("ours"):
        from onegraph.host.calls.vae.hook import VaeNodeOptions, compile_vae

        chosen = compile_vae(vae, VaeNodeOptions(backend="inductor", parts="decoder"), "7")[0]
    elif way != "eager":
        from onegraph.compiler.blocks.repeated import repeated_blocks

        for block in repeated_blocks(vae.first_stage_model).values():
            block.compile()
    channels, frames, height, width = LATENTS[name]
    z = torch.randn(1, channels, frames, height, width, generator=torch.Generator().manual_seed(1))
    row: Row = {"way": way}
    times: list[float] = []
    for number in range(repeats + 2):
        if number == 2:
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
        torch.manual_seed(7)  # of noise that some put into latents
        torch.cuda.synchronize()
        began = time.perf_counter()
        with torch.inference_mode():
            images = chosen.decode(z)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    torch.save(images.cpu(), result_of(name, way))
    row |= {"first_s": round(times[0], 2), "second_s": round(times[1], 2)}
    row |= {"decode_s": round(statistics.median(times[2:]), 3), "least_s": round(min(times[2:]), 3)}
    row["peak_mib"] = round((torch.cuda.max_memory_allocated() - held) / 2**20)
    return row | (about_graphs("7:decoder") if way.startswith("ours") else {})


def compared(found: Any, eager: Any) -> Row:
    """The largest and the mean difference of frames from eager's, in steps of 8 bits."""
    differences = 255 * (found.float() - eager.float()).abs()
    return {"most_of_255": round(float(differences.max()), 2), "mean_of_255": round(float(differences.mean()), 4)}


if __name__ == "__main__":
    Benchmark("benchmarks.gpu.videos", {**LATENTS}, measure, compared).main(str(__doc__))
