"""What the parts of `benchmarks/gpu.py` share: the host on this device, seeded checkpoints, clocks, the time budget."""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

# ComfyUI's own SDXL base (comfy/model_detection.py lists the same values for diffusers' files).
SDXL_BASE: dict[str, Any] = {
    "model_channels": 320,
    "num_res_blocks": [2, 2, 2],
    "channel_mult": [1, 2, 4],
    "transformer_depth": [0, 0, 2, 2, 10, 10],
    "transformer_depth_middle": 10,
    "transformer_depth_output": [0, 0, 0, 2, 2, 2, 10, 10, 10],
    "use_linear_in_transformer": True,
    "num_head_channels": 64,
    "num_classes": "sequential",
    "context_dim": 2048,
    "adm_in_channels": 2816,
}
VAE_CONFIG: dict[str, Any] = {
    "double_z": True,
    "z_channels": 4,
    "resolution": 256,
    "in_channels": 3,
    "out_ch": 3,
    "ch": 128,
    "ch_mult": [1, 2, 4, 4],
    "num_res_blocks": 2,
    "attn_resolutions": [],
    "dropout": 0.0,
}
CONTEXT_WIDTH = 2048
LABEL_WIDTH = 2816


def import_pack() -> None:
    """Make this checkout importable as `onegraph` where it is not installed."""
    if importlib.util.find_spec("onegraph") is not None:
        return
    spec = importlib.util.spec_from_file_location(
        "onegraph", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["onegraph"] = module
    spec.loader.exec_module(module)


class OutOfTime(Exception):
    """The time budget is used up."""


@dataclass
class Bench:
    """One run of the benchmark: where, on what, for how long, and what came out so far."""

    work: Path
    out: Path
    device: str
    model: str
    side: int
    rounds: int
    deadline: float
    result: dict[str, Any] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    @property
    def checkpoint(self) -> Path:
        return self.work / "base" / "models" / "checkpoints" / f"bench_{self.model}.safetensors"

    @property
    def unet_key(self) -> str:
        return f"{self.model}_{self.side}_b2"

    @property
    def vae_key(self) -> str:
        return f"vae_decode_{self.side}"

    def left(self) -> float:
        return self.deadline - time.monotonic()

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.started:6.1f} s] {text}", flush=True)

    def put(self, section: str, **values: Any) -> None:
        """Keep figures: in the result, in the file and on the screen at once, so that a cut-off run loses nothing."""
        self.result.setdefault(section, {}).update(values)
        self.save()
        shown = {k: v for k, v in values.items() if not isinstance(v, list | dict)}
        if shown:
            self.say(f"{section}: " + ", ".join(f"{k} {v}" for k, v in shown.items()))

    def save(self) -> None:
        self.out.parent.mkdir(parents=True, exist_ok=True)
        partial = self.out.with_suffix(".partial")
        partial.write_text(json.dumps(self.result, indent=1) + "\n")
        partial.replace(self.out)

    def child(self, name: str, *extra: str, env: dict[str, str] | None = None, seconds: float) -> dict[str, Any]:
        """Run `gpu.py --child NAME` in a fresh process; its last line of output is JSON."""
        command = [
            sys.executable, str(Path(__file__).with_name("gpu.py")), "--child", name, "--work", str(self.work),
            "--model", self.model, "--side", str(self.side), "--rounds", str(self.rounds), "--device", self.device,
            *extra,
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                env={**os.environ, **(env or {})},
                timeout=max(1.0, min(seconds, self.left())),
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"failed": f"{name}: not done within its time"}
        lines = done.stdout.decode(errors="replace").strip().splitlines()
        try:
            answer: dict[str, Any] = json.loads(lines[-1])
        except (IndexError, json.JSONDecodeError):
            return {"failed": f"{name}: exit code {done.returncode}, last line {lines[-1:]}"}
        return answer


def boot(device: str, work: Path) -> None:
    """ComfyUI in this process as its server would set it up (without DynamicVRAM, which only main.py turns on)."""
    import types

    import_pack()
    os.environ.setdefault("ONEGRAPH_HOME", str(work / "home"))
    # The pack says things through ComfyUI's server module when there is one: keep it from being imported for that.
    sys.modules.setdefault("server", types.ModuleType("server"))
    from support import host

    host.boot(cpu=device == "cpu")


def unet_config(model: str) -> dict[str, Any]:
    from support import models

    return SDXL_BASE if model == "sdxl_base" else models.UNETS[model]


def _seeded(shape: Any, name: str, generator: Any, device: str) -> Any:
    """As tests/support/models.seeded, on the device: 0.7/sqrt(fan-in) matrices, norms near one, biases near zero."""
    import torch

    value = torch.randn(shape, generator=generator, device=device)
    if len(shape) <= 1:
        return (0.02 * value + float(name.endswith("weight"))).half()
    return (value * (0.7 / value[0].numel() ** 0.5)).half().contiguous()


def write_checkpoint(bench: Bench) -> Path:
    """A checkpoint with the UNet and a full-size VAE, seeded; kept when it is there. Call after `boot`."""
    path = bench.checkpoint
    if path.is_file():
        return path
    import comfy.ops
    import torch
    from comfy.ldm.models.autoencoder import AutoencoderKL
    from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel
    from safetensors.torch import save_file
    from support import models

    started = time.perf_counter()
    unet = UNetModel(
        **{**models._COMMON, **unet_config(bench.model)},
        dtype=torch.float16, device="meta", operations=comfy.ops.disable_weight_init,
    )  # fmt: skip
    with torch.device("meta"):
        vae = AutoencoderKL(ddconfig=VAE_CONFIG, embed_dim=4)
    shapes = {"model.diffusion_model." + k: v.shape for k, v in unet.state_dict().items()}
    shapes |= {"first_stage_model." + k: v.shape for k, v in vae.state_dict().items()}
    device = "cuda" if bench.device == "cuda" else "cpu"
    generator = torch.Generator(device).manual_seed(1)
    state = {name: _seeded(shapes[name], name, generator, device).cpu() for name in sorted(shapes)}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(state, path.with_suffix(".partial"), metadata={"format": "pt"})
    path.with_suffix(".partial").replace(path)
    bench.say(f"wrote {path.name}, {path.stat().st_size / 1e9:.2f} GB, in {time.perf_counter() - started:.1f} s")
    return path


def synchronize() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def once_ms(call: Callable[[], Any]) -> float:
    """One call, from an idle device to an idle device."""
    import torch

    if not torch.cuda.is_available():
        started = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - started)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end))


def median_ms(calls: dict[str, Callable[[], Any]], rounds: int, warm: int = 3) -> dict[str, float]:
    """Medians of several calls, taken in turns, after `warm` rounds that do not count."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(warm + rounds):
        for name, call in calls.items():
            spent = once_ms(call)
            if turn >= warm:
                times[name].append(spent)
    return {name: round(statistics.median(values), 3) for name, values in times.items()}


def graph_replay(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call captured as one CUDA graph: its replay. The result is the first element of what is returned by it."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = call()

    def replay() -> Any:
        graph.replay()
        return output

    return replay


def peak_bytes(call: Callable[[], Any]) -> tuple[int, int]:
    """(highest allocation during the call, of that what was there before it)."""
    import torch

    if not torch.cuda.is_available():
        return 0, 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated(), before


def kernels(call: Callable[[], Any], most: int = 14) -> list[dict[str, Any]]:
    """The GPU kernels of one call that take longest: milliseconds and how often they run."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    call()
    synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    events = sorted(seen.key_averages(), key=lambda event: -event.device_time_total)
    total = sum(event.device_time_total for event in events)
    rows = [
        {"kernel": event.key[:110], "ms": round(event.device_time_total / 1e3, 3), "calls": event.count}
        for event in events[:most]
    ]
    count = sum(event.count for event in events)
    return [{"kernel": "all", "ms": round(total / 1e3, 3), "calls": count}, *rows]
