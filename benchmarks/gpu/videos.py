"""Video VAEs: a decode eager, by block graphs and by torch.compile of each block.

`python -m benchmarks.gpu.videos --model "wan 2.1" --out FILE`, in an environment with ComfyUI (`COMFYUI_PATH`). Weights
are seeded random numbers, on a GPU at full size in bfloat16, on a CPU those of the tests' small models. Each way is a
process of its own; block graphs run twice, with an empty store and with what the first process stored, and decode in
turns with the same VAE's eager decodes. One table and one JSON file.
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
    "seedvr 2": (16, 9, 64, 64),  # a tile
}
SMALL = (9, 24, 24)  # frames, height and width of latents on a CPU
PIXELS = {"wan 2.2": 16, "hunyuan video 1.5": 16, "ltx": 32, "minimax h3": 16}  # per unit of latents, if not 8


def module_of(name: str) -> Any:
    """A VAE's module as its file makes it."""
    import comfy.ldm.minimax.vae
    from comfy.ldm.lightricks.vae.causal_video_autoencoder import VideoVAE
    from comfy.ldm.seedvr.vae import VideoAutoencoderKLWrapper
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
    if name == "seedvr 2":
        return VideoAutoencoderKLWrapper()
    return VideoVAE(version=2) if name == "ltx" else comfy.ldm.minimax.vae.MiniMaxH3VideoVAE()


def loaded(name: str) -> Any:
    """ComfyUI's VAE object with random weights."""
    import torch
    from support.comfyui import vaes

    if not torch.cuda.is_available():
        return vaes.load(name)
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
    import torch
    from headless import host

    cuda = torch.cuda.is_available()
    host.boot(cpu=not cuda)
    host.import_pack()
    with torch.inference_mode():
        vae = loaded(name)
    from onegraph.host.calls.vae.hook import VaeNodeOptions, compile_vae

    chosen = vae
    if way.startswith("ours"):
        chosen = compile_vae(vae, VaeNodeOptions(backend="inductor", parts="decoder"), "7")[0]
    elif way != "eager":
        from onegraph.compiler.blocks.repeated import repeated_blocks

        torch._dynamo.config.recompile_limit = 64  # of one `forward`: a VAE has more kinds of blocks than 8
        blocks = repeated_blocks(vae.first_stage_model)
        assert blocks
        for block in blocks.values():
            block.compile()
    channels, *sizes = LATENTS[name]
    z = torch.randn(1, channels, *(sizes if cuda else SMALL), generator=torch.Generator().manual_seed(1))
    images: list[Any] = []

    def seconds(which: Any) -> float:
        torch.manual_seed(7)  # of noise that some put into latents
        if cuda:
            torch.cuda.synchronize()
        began = time.perf_counter()
        with torch.inference_mode():
            images[:] = [which.decode(z)]
        if cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - began

    row: Row = {"way": way, "first_s": round(seconds(chosen), 2), "second_s": round(seconds(chosen), 2)}
    if cuda:
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
    times = [seconds(chosen) for _ in range(repeats)]
    torch.save(images[0].cpu(), result_of(name, way))
    if cuda:
        row["peak_mib"] = round((torch.cuda.max_memory_allocated() - held) / 2**20)
    row |= {"decode_s": round(statistics.median(times), 3), "least_s": round(min(times), 3)}
    if chosen is not vae:
        pairs = [(seconds(chosen), seconds(vae)) for _ in range(repeats)]
        row["of_eager_in_turns"] = round(statistics.median(eager / own for own, eager in pairs), 2)
    return row | (about_graphs("7:decoder") if way.startswith("ours") else {})


def compared(found: Any, eager: Any) -> Row:
    """The largest and the mean difference of frames from eager's, in steps of 8 bits."""
    differences = 255 * (found.float() - eager.float()).abs()
    return {"most_of_255": round(float(differences.max()), 2), "mean_of_255": round(float(differences.mean()), 4)}


if __name__ == "__main__":
    Benchmark("benchmarks.gpu.videos", {**LATENTS}, measure, compared).main(str(__doc__))
