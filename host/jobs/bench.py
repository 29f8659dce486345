"""One model under one backend, measured in a process of its own: `python -m onegraph.host.jobs.bench TASK`.

TASK is JSON with the fields of `BenchTask`; the last line printed is JSON with the fields of `Figures`. `cli/bench.py`
starts it twice for each backend, on an empty store and again, and puts the figures side by side.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...common.tensor_meta import dtype_name

STEPS = 5  # the first is apart, the others are averaged
TOKENS = 77
# How the configurations of diffusion transformers name the width of a prompt's tokens.
_WIDTHS = ("context_in_dim", "cap_feat_dim", "joint_attention_dim", "text_dim", "caption_channels")


@dataclass(frozen=True)
class BenchTask:
    """What to measure.

    Attributes:
        comfyui: ComfyUI's folder.
        checkpoint: a link to the checkpoint in a folder of its own, beside which the graphs go.
        backend: `eager` or the name of a backend.
        width, height: of the image, pixels.
        cpu: run on the CPU although there is a GPU.
        custom_node: a custom node pack to import first, for model families that ComfyUI does not know by itself.
    """

    comfyui: str
    checkpoint: str
    backend: str
    width: int
    height: int
    cpu: bool
    custom_node: str = ""


@dataclass(frozen=True)
class Figures:
    """What one process saw.

    Attributes:
        model, dtype: ComfyUI's class of the model, and of its weights.
        said: what the node would show; the name in the file that `onegraph bench` writes.
        first_s: the first step, with compiling or restoring, seconds.
        compile_s, restore_s: of that, when it was done, seconds.
        step_ms: mean of the later steps, milliseconds.
        memory_bytes: what sampling added at its peak: of the process on a CPU, allocated on a GPU.
    """

    model: str
    dtype: str
    said: str
    first_s: float
    compile_s: float | None
    restore_s: float | None
    step_ms: float
    memory_bytes: int


def boot(comfyui: Path, cpu: bool, custom_node: str = "") -> None:
    """Import ComfyUI without its server."""
    sys.path.insert(0, str(comfyui))
    import comfy.options

    comfy.options.enable_args_parsing(False)
    from comfy.cli_args import args

    args.cpu = cpu
    import comfy.model_management  # reads the options when it is imported

    if custom_node:
        file = Path(custom_node) / "__init__.py" if Path(custom_node).is_dir() else Path(custom_node)
        spec = importlib.util.spec_from_file_location("onegraph_bench_custom_node", file)
        assert spec is not None and spec.loader is not None
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # where its own imports look for it
        spec.loader.exec_module(module)


def conditioning(width: int, pooled: int, seed: int) -> list[Any]:
    """Random text conditioning of a width."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    context = torch.randn(1, TOKENS, width, generator=generator)
    return [[context, {"pooled_output": torch.randn(1, pooled, generator=generator)}]]


def _load(path: str) -> Any:
    """The MODEL of a checkpoint, or of a file that has a diffusion model alone."""
    import comfy.sd
    import safetensors

    with safetensors.safe_open(path, "pt") as file:
        whole = any(name.startswith("model.diffusion_model.") for name in file.keys())  # noqa: SIM118
    if whole:
        return comfy.sd.load_checkpoint_guess_config(path, output_vae=False, output_clip=False)[0]
    return comfy.sd.load_diffusion_model(path)


def measure(task: BenchTask) -> Figures:
    """Sample a few steps: a UNet with CFG, which is batch 2, a transformer without. ComfyUI must be booted.

    Raises:
        SystemExit: no prompt can be made up for the model; says so.
    """
    import time

    import comfy.sample
    import folder_paths
    import torch

    from ...common import reasons
    from ...runtime.calls.run_report import RunReport
    from ...runtime.obtain import registry
    from ...runtime.policy import ANY_SPEED
    from ..calls.model_hook import ModelNodeOptions, compile_model
    from ..families import MODELS, family_of
    from ..show.status import last_runs

    registry.use(registry.Registry(policy=ANY_SPEED))  # a slow graph is what the user wants to see here
    kinds = folder_paths.folder_names_and_paths["checkpoints"][1]
    folder_paths.folder_names_and_paths["checkpoints"] = ([str(Path(task.checkpoint).parent)], kinds)
    model = _load(task.checkpoint)
    module, config = model.model.diffusion_model, model.model.model_config.unet_config
    family = family_of(module, MODELS)
    if not isinstance(family, reasons.Reason):
        width, pooled, cfg = family.example(module, model).kwargs["context"].shape[-1], 1280, 7.0
    else:
        width, pooled, cfg = next((config[name] for name in _WIDTHS if config.get(name)), 0), 0, 1.0
        pooled = config.get("vec_in_dim") or config.get("adm_in_channels") or 1280
        if not width:
            raise SystemExit(f"{family.text}, and what its prompts are like is not known.")
    latents = model.get_model_object("latent_format")
    frames = (1,) * (latents.latent_dimensions - 2)
    side = getattr(latents, "spacial_downscale_ratio", 8)
    backend = "off" if task.backend == "eager" else task.backend
    compiled, _ = compile_model(model, ModelNodeOptions(backend, "any size", "wait"), "bench")
    positive, negative = conditioning(width, pooled, 1), conditioning(width, pooled, 2)
    stamps: list[float] = []

    def sample(steps: int) -> None:
        latent = torch.zeros(1, latents.latent_channels, *frames, task.height // side, task.width // side)
        noise = comfy.sample.prepare_noise(latent, 1)
        with torch.inference_mode():
            comfy.sample.sample(
                compiled, noise, steps, cfg, "euler", "normal", positive, negative, latent, seed=1, disable_pbar=True,
                callback=lambda *_: stamps.append(time.perf_counter()),
            )  # fmt: skip

    before = _peak(reset=True)
    started = time.perf_counter()
    sample(STEPS)
    first = RunReport(eager=Counter({reasons.NothingCompiled(): 1})) if backend == "off" else last_runs["bench"]
    stamps.insert(0, started)
    return Figures(
        model=type(model.model.model_config).__name__,
        dtype=dtype_name(model.model.get_dtype()),
        said=first.text(),
        first_s=stamps[1] - stamps[0],
        compile_s=first.compile_s if first.compile_s is not None else first.blocks.compile_s,
        restore_s=first.restore_s if first.restore_s is not None else first.blocks.restore_s,
        step_ms=1e3 * (stamps[-1] - stamps[1]) / (len(stamps) - 2),
        memory_bytes=_peak() - before,
    )


def _peak(reset: bool = False) -> int:
    """Peak memory so far in bytes; with `reset` what is in use now, from which on the peak counts."""
    import torch

    if torch.cuda.is_available() and not _on_cpu():
        if reset:
            torch.cuda.reset_peak_memory_stats()
            return torch.cuda.memory_allocated()
        return torch.cuda.max_memory_allocated()
    import psutil

    if reset or sys.platform != "linux":
        return int(psutil.Process().memory_info().rss)
    import resource

    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _on_cpu() -> bool:
    from comfy.cli_args import args

    return bool(args.cpu)


def main() -> None:
    task = BenchTask(**json.loads(sys.argv[1]))
    boot(Path(task.comfyui), task.cpu, task.custom_node)
    sys.stdout.write(json.dumps(asdict(measure(task))) + "\n")


if __name__ == "__main__":
    main()
