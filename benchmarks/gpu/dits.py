"""Diffusion models at full size: a step eager, by the pack's graphs and by torch.compile, on this GPU.

`python -m benchmarks.gpu.dits --models sdxl z-image flux qwen-image --out FILE`, in an environment with ComfyUI
(`COMFYUI_PATH`). Weights are seeded random numbers, made on the device, quantised where `--format` names a format. Each
way is a process of its own. Graphs and torch.compile run twice, with empty caches and then with what the first one
stored: torch.compile on the whole model, as core's node does it, and on each block. A step is timed in ComfyUI's own
sampling, waited for after each (`step_ms`, and of it until all is launched: `processor_ms`) and back to back; where a
step is one CUDA graph, its bare replay, too. Then a LoRA is added and changed and, where the model takes one, a
reference image. One line for each way, and one JSON file.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from .own_part import captured_calls, in_turns

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]

# What differs from the small models of the tests; latents [channels, frames], sides in their units, tokens.
FULL: dict[str, dict[str, Any]] = {
    "z-image": {
        "unet": {"dim": 3840, "n_layers": 30, "n_heads": 30, "n_kv_heads": 30, "cap_feat_dim": 2560,
                 "axes_dims": [32, 48, 48], "axes_lens": [1536, 512, 512]},
        "width": 2560, "tokens": 96,
    },
    "flux": {
        "unet": {"hidden_size": 3072, "num_heads": 24, "depth": 19, "depth_single_blocks": 38, "context_in_dim": 4096,
                 "vec_in_dim": 768, "axes_dim": [16, 56, 56]},
        "width": 4096, "tokens": 256, "pooled": 768, "reference": (16,),
    },
    "qwen-image": {
        "unet": {"num_layers": 60, "attention_head_dim": 128, "num_attention_heads": 24, "joint_attention_dim": 3584,
                 "axes_dims_rope": (16, 56, 56)},
        "width": 3584, "tokens": 96, "reference": (16, 1),
    },
    "wan 2.1 t2v": {
        "unet": {"dim": 5120, "ffn_dim": 13824, "freq_dim": 256, "text_dim": 4096, "num_heads": 40, "num_layers": 40},
        "width": 4096, "tokens": 512, "frames": 13, "height": 60, "width_units": 104,
    },
    "krea 2": {
        "unet": {"features": 6144, "tdim": 256, "txtdim": 2560, "heads": 48, "kvheads": 12, "multiplier": 4,
                 "layers": 28, "txtlayers": 12, "txtheads": 20, "txtkvheads": 20},
        "width": 12 * 2560, "tokens": 96,
    },
    "qwen-image 2.1": {  # of ComfyUI 0.37 and later
        "dit": {"config": "QwenImage21", "unet": {"image_model": "qwen_image21", "in_channels": 64,
                "out_channels": 64, "num_layers": 32, "attention_head_dim": 128, "num_attention_heads": 32,
                "context_in_dim": 4096, "axes_dims_rope": (16, 56, 56)}, "latent": (64,)},
        "unet": {}, "width": 4096, "tokens": 96, "pixels": 16,
    },
    "minimax h3": {
        "unet": {"hidden_size": 5376, "num_layers": 50, "num_attention_heads": 56, "ffn_hidden_size": 14336,
                 "text_dim": 5120, "timestep_input_dim": 256, "time_embed_hidden_size": 5376, "time_embed_dim": 2688},
        "width": 5120, "tokens": 256, "frames": 13, "height": 44, "width_units": 80,
    },
    "ltx 2": {
        "unet": {"cross_attention_dim": 4096, "audio_cross_attention_dim": 2048, "attention_head_dim": 128,
                 "audio_attention_head_dim": 64, "num_attention_heads": 32, "audio_num_attention_heads": 32,
                 "caption_channels": 3840, "num_layers": 48, "connector_num_layers": 2,
                 "connector_num_attention_heads": 30, "connector_attention_head_dim": 128},
        "width": 7680, "tokens": 256, "frames": 13, "height": 22, "width_units": 40,
    },
}  # fmt: skip
SHORT = 4  # steps, whose time is taken off a longer sampling's
WAYS = (
    "eager", "ours", "ours, restored", "torch.compile", "torch.compile, again", "torch.compile by block",
    "torch.compile by block, again",
)  # fmt: skip


# SDXL's base is loaded from a file that is written once; it is called with batches of two.
SDXL: dict[str, Any] = {"unet": {}, "width": 2048, "tokens": 77, "pooled": 1280, "cfg": 7.0}
MODELS = {"sdxl": SDXL, **FULL}


def load(name: str, layers: str, work: Path) -> Any:
    """The MODEL with seeded weights on the device, its layers in a format where one is named."""
    import comfy.model_management
    import torch
    from headless import host, models
    from support.models import dits, quantised

    if name == "sdxl":
        path = models.write_checkpoint("sdxl_base", work / "sdxl.safetensors", vae="none", device="cuda")
        model = host.load(path)
        comfy.model_management.load_models_gpu([model], force_full_load=True)
        return model
    full, device = FULL[name], torch.device("cuda")
    small_of(name)
    with torch.inference_mode():
        if layers.startswith("gguf "):
            from support.models import ggml_models  # which needs gguf

            kind = ggml_models.KINDS[layers[5:]]
            return ggml_models.load("ComfyUI-GGUF", name, kind, 0, torch.bfloat16, device, **full["unet"])
        if layers:
            return quantised.load(name, layers, device=device, **full["unet"])
        return dits.load(name, dtype=torch.bfloat16, device=device, **full["unet"])


def text_of(full: dict[str, Any], extra: dict[str, Any]) -> list[Any]:
    import torch

    generator = torch.Generator().manual_seed(1)
    if "pooled" in full:
        extra = {"pooled_output": torch.randn(1, full["pooled"], generator=generator), "guidance": 3.5, **extra}
    return [[torch.randn(1, full["tokens"], full["width"], generator=generator), extra]]


def small_of(name: str) -> Any:
    """The family's small model, which is none of the tests' where their ComfyUI does not have it."""
    from support.models import dits

    if "dit" in FULL[name]:
        dits.DITS[name] = dits.Dit(**FULL[name]["dit"])
    return dits.DITS[name]


def latent_of(name: str, side: int) -> Any:
    """Zeros of a model's latent, its side in pixels; of two where it makes sound, too."""
    import comfy.nested_tensor
    import torch

    if name == "sdxl":
        return torch.zeros(1, 4, side // 8, side // 8)
    full, small = FULL[name], small_of(name)
    frames = [full.get("frames", small.latent[1])] if len(small.latent) > 1 else []
    units = side // full.get("pixels", 8)
    sizes = (full["height"], full["width_units"]) if "height" in full else (units, units)
    latent = torch.zeros(1, small.latent[0], *frames, *sizes)
    return comfy.nested_tensor.NestedTensor([latent, torch.zeros(1, *small.audio)]) if small.audio else latent


def compiled_by(way: str, model: Any) -> Any:
    """The MODEL as the node of a way makes it."""
    if way.startswith("ours"):
        from onegraph.host.calls.model_hook import ModelNodeOptions, compile_model

        return compile_model(model, ModelNodeOptions(backend="inductor"), "7")[0]
    if way == "eager":
        return model
    from comfy_api.torch_helpers import set_torch_compile_wrapper

    from onegraph.compiler.blocks.repeated import repeated_blocks

    names = [f"diffusion_model.{name}" for name in repeated_blocks(model.model.diffusion_model)]
    chosen = model.clone()
    set_torch_compile_wrapper(chosen, backend="inductor", keys=names if "by block" in way else ["diffusion_model"])
    return chosen


def measure(
    name: str,
    way: str,
    side: int,
    steps: int,
    layers: str,
    prompt_s: float = 0.0,
    loras: bool = True,
    of_file: bool = False,
) -> dict[str, Any]:
    """Sample in this process; the first three steps' seconds, a step's and its launching's milliseconds, peak bytes.

    Args:
        prompt_s: seconds between the node and sampling, in which a workflow encodes its prompt and reads weights.
        loras: whether two LoRAs are measured, of whose weights the system's memory then has copies.
        of_file: whether the host loads the model as it loads one from a file, by its own choice of operations.
    """
    from headless import host

    host.boot(cpu=False)
    host.import_pack()
    import comfy.sample
    import comfy.sd
    import torch
    from support.dit_matrix.weights import lora_of

    full = MODELS[name]
    began = time.perf_counter()
    model = load(name, layers, Path(os.environ["BENCH_RESULTS"]))
    if of_file:
        with torch.inference_mode():
            model = comfy.sd.load_diffusion_model_state_dict(model.model.diffusion_model.state_dict())
    torch.cuda.synchronize()
    made_s = time.perf_counter() - began
    weights_mib = torch.cuda.memory_allocated() / 2**20
    chosen = compiled_by(way, model)
    time.sleep(prompt_s)
    zeros = latent_of(name, side)
    times: list[float] = []
    launched: list[float] = []

    def ticked(*args: Any) -> None:
        launched.append(time.perf_counter())
        torch.cuda.synchronize()
        times.append(time.perf_counter())

    def sample(used: Any, count: int, waiting: bool = True, **extra: Any) -> Any:
        times.clear()
        launched.clear()
        with torch.inference_mode():
            noise = comfy.sample.prepare_noise(zeros, 3)
            text = text_of(full, extra)
            ticked()
            result = comfy.sample.sample(
                used, noise, count, full.get("cfg", 1.0), "euler", "simple", text, text, zeros, seed=3,
                callback=ticked if waiting else None, disable_pbar=True,
            )  # fmt: skip
            ticked()
            return result

    def back_to_back() -> float:
        """Milliseconds of a step of a sampling that nothing waits for."""
        seconds = []
        for count in (SHORT, SHORT + steps):
            sample(chosen, count, waiting=False)
            seconds.append(times[-1] - times[0])
        return 1e3 * (seconds[1] - seconds[0]) / steps

    def gaps() -> list[float]:
        return [1e3 * (b - a) for a, b in itertools.pairwise(times[:-1])]

    def processor() -> list[float]:
        """Milliseconds from a step's begin, for which the device was waited for, until all of it was launched."""
        return [1e3 * (after - before) for before, after in zip(times[:-2], launched[1:-1], strict=True)]

    def peak_mib() -> int:
        return round((torch.cuda.max_memory_allocated() - held) / 2**20)

    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    first = sample(chosen, 3)
    first_peak_mib = peak_mib()  # with what is compared at a first use
    row: dict[str, Any] = {"way": way, "weights_s": round(made_s, 1), "weights_mib": round(weights_mib)}
    row |= {f"{which}_s": round(gap / 1e3, 2) for which, gap in zip(("first", "second", "third"), gaps(), strict=True)}
    parts = first.unbind() if first.is_nested else [first]
    torch.save(
        torch.cat([part.flatten().cpu() for part in parts]),
        Path(os.environ["BENCH_RESULTS"]) / f"{name}-{layers}-{way}.pt",
    )
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    sample(chosen, steps)
    row |= {"step_ms": round(statistics.median(gaps()), 2), "least_ms": round(min(gaps()), 2)}
    row["processor_ms"] = round(statistics.median(processor()), 2)
    row["back_to_back_ms"] = round(back_to_back(), 2)
    row |= {"first_peak_mib": first_peak_mib, "peak_mib": peak_mib()}
    if way.startswith("ours"):
        from onegraph.runtime.obtain.registry import registry

        captured = [one for graph in registry().graphs() for one in captured_calls(graph)]
        if captured:
            row["bare_replay_ms"] = in_turns({"replay": captured[-1].graph.replay}, 2 * steps)["replay"]["ms"]
    for strength in (1.0, 0.5) if loras else ():
        lora = comfy.sd.load_lora_for_models(model, None, lora_of(model), strength, 0)[0]
        sample(compiled_by(way, lora), 4)
        row[f"lora_{strength}_ms"] = [round(gap, 1) for gap in gaps()]
    if "reference" in full:
        reference = torch.randn(1, *full["reference"], *zeros.shape[-2:], generator=torch.Generator().manual_seed(4))
        sample(chosen, 4, reference_latents=[reference])
        row["reference_ms"] = [round(gap, 1) for gap in gaps()]
    if way.startswith("ours"):
        from onegraph.host.show import status

        report = status.last_runs["7"].to_json()
        row |= {"text": report["text"], "compiles": registry().counters.compiles}
        row |= {graph.entry.manifest.label: [round(graph.entry.manifest.compile_seconds, 1),
                                             graph.first_use.result.eager_ms, graph.first_use.result.compiled_ms]
                for graph in registry().graphs()}  # fmt: skip
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--models", choices=MODELS, nargs="+", default=["z-image"])
    parser.add_argument("--side", type=int, default=1024, help="pixels")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--format", default="", help="of quantised layers: 'fp8 scaled', 'gguf Q4_0'; none of SDXL's")
    parser.add_argument("--ways", default=";".join(WAYS), help="separated by semicolons")
    parser.add_argument("--prompt-seconds", type=float, default=0, help="between the node and sampling, as to encode")
    parser.add_argument("--without-loras", action="store_true")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "benchmarks")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    os.environ["BENCH_RESULTS"] = str(given.work)
    os.environ.setdefault("ONEGRAPH_HOME", str(given.work / "graphs"))
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(given.work / "torch-compile"))  # empty, and of nobody else
    given.work.mkdir(parents=True, exist_ok=True)
    if given.one:
        loras = not given.without_loras
        row = measure(given.models[0], given.one, given.side, given.steps, given.format, given.prompt_seconds, loras)
        print(json.dumps(row))
        return
    import torch

    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
    }
    found |= {"side": given.side, "models": {}}
    if given.out and given.out.is_file():  # a further run adds to it
        found["models"] = json.loads(given.out.read_text())["models"]
    for name, way in itertools.product(given.models, given.ways.split(";")):
        command = [sys.executable, "-m", "benchmarks.gpu.dits", "--models", name, "--one", way]
        command += ["--side", str(given.side), "--steps", str(given.steps), "--work", str(given.work)]
        command += ["--format", given.format, "--prompt-seconds", str(given.prompt_seconds)]
        command += ["--without-loras"] if given.without_loras else []
        began = time.perf_counter()
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            print(f"{name}, {way}: {ended.stderr[-1500:]}", flush=True)
            continue
        row = json.loads(ended.stdout.strip().splitlines()[-1])
        row["process_s"] = round(time.perf_counter() - began, 1)
        row["distance"] = _distance(given.work, f"{name}-{given.format}", way)
        key = name + (f", {given.format}" if given.format else "")
        found["models"].setdefault(key, {"rows": []})["rows"].append(row)
        print(f"{key}: {json.dumps(row)}", flush=True)
        if given.out:
            given.out.write_text(json.dumps(found, indent=1))


def _distance(work: Path, name: str, way: str) -> float | None:
    """Relative L2 of three steps' latents from eager's."""
    import torch

    eager, other = work / f"{name}-eager.pt", work / f"{name}-{way}.pt"
    if way == "eager" or not eager.exists():
        return None
    a, b = torch.load(eager).double(), torch.load(other).double()
    return float((a - b).norm() / a.norm())


if __name__ == "__main__":
    main()
