"""What the modules of `benchmarks/gpu` share: the run itself, the host on this device, clocks and memory."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]

REFINERS = {"sdxl_base": "sdxl_refiner", "tiny_sdxl": "tiny_refiner", "small_sdxl": "tiny_refiner"}
SDXL_TFLOP = 13.5  # of one call of SDXL's base, 1024x1024, batch 2
_MATRIX = 8192


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
    def refiner(self) -> str:
        return REFINERS[self.model]

    def checkpoint(self, model: str) -> Path:
        return self.work / "base" / "models" / "checkpoints" / f"bench_{model}.safetensors"

    def unet_key(self, model: str) -> str:
        return f"{model}_{self.side}_b2"

    def vae_key(self, part: str) -> str:
        return f"vae_{part}_{self.side}"

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

    def put_call(self, row: dict[str, Any]) -> None:
        """Keep a row of the grid of calls, in place of an earlier one for the same call."""
        rows = self.result.setdefault("calls", [])
        same = ("part", "width", "height", "batch", "tokens")
        rows[:] = [known for known in rows if any(known.get(name) != row.get(name) for name in same)]
        rows.append(row)
        self.save()
        self.say(", ".join(f"{k} {v}" for k, v in row.items()))

    def save(self) -> None:
        self.out.parent.mkdir(parents=True, exist_ok=True)
        partial = self.out.with_suffix(".partial")
        partial.write_text(json.dumps(self.result, indent=1) + "\n")
        partial.replace(self.out)

    def child(self, name: str, env: dict[str, str] | None = None, *, seconds: float) -> dict[str, Any]:
        """Run `python -m benchmarks.gpu --child NAME` in a fresh process; its last line of output is JSON."""
        command = [
            sys.executable, "-m", "benchmarks.gpu", "--child", name, "--work", str(self.work),
            "--model", self.model, "--side", str(self.side), "--rounds", str(self.rounds), "--device", self.device,
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                cwd=ROOT,
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

    os.environ.setdefault("ONEGRAPH_HOME", str(work / "home"))
    # The pack says things through ComfyUI's server module when there is one: keep it from being imported for that.
    sys.modules.setdefault("server", types.ModuleType("server"))
    from headless import host

    host.import_pack()
    host.boot(cpu=device == "cpu")

    from onegraph.runtime.obtain.registry import registry
    from onegraph.runtime.policy import ANY_SPEED

    # A graph slower than eager is measured like any other; the table shows that it is. Nothing is preloaded beside what
    # is measured, and preloads are measured by themselves.
    registry().policy = replace(ANY_SPEED, preload_on=())


def write_checkpoints(bench: Bench) -> None:
    """Seeded checkpoints: the base with a whole VAE, the refiner without one. Call after `boot`."""
    from headless import models

    device = "cuda" if bench.device == "cuda" else "cpu"
    for model, vae in ((bench.model, "both"), (bench.refiner, "none")):
        started = time.perf_counter()
        path = models.write_checkpoint(model, bench.checkpoint(model), vae=vae, device=device)
        seconds = time.perf_counter() - started
        bench.say(f"{path.name}, {path.stat().st_size / 1e9:.2f} GB, written or found in {seconds:.1f} s")
    give_back()


def never_replayed() -> contextlib.AbstractContextManager[None]:
    """While this lasts, graphs launch each of their kernels themselves."""
    from onegraph.backends import cuda_graphs
    from onegraph.common.replaced import replaced

    return replaced(cuda_graphs, "policy", cuda_graphs.CapturePolicy(after=0))


def always_replayed() -> contextlib.AbstractContextManager[None]:
    """While this lasts, calls that come often are replayed whether that pays or not."""
    from onegraph.backends import cuda_graphs
    from onegraph.common.replaced import replaced

    return replaced(cuda_graphs, "policy", cuda_graphs.CapturePolicy(launching=-1.0, largest_share=1.0))


def replayed_ms(call: Callable[[], Any], rounds: int) -> float | None:
    """Median of a call that comes often enough to be replayed, or None when it is not replayed after all."""
    from onegraph.backends import cuda_graphs

    counters = cuda_graphs.counters
    before = counters.replayed_calls
    found = median_ms({"call": call}, rounds, cuda_graphs.policy.after + 3)["call"]
    return found if counters.replayed_calls - before >= rounds else None


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


def give_back() -> None:
    """Let the driver have what this process's allocator only keeps, e.g. of a float32 copy of the model."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def matmul_tflops(bench: Bench) -> dict[str, float]:
    """What this device's matrix products reach, TFLOP/s by dtype."""
    import torch

    side = _MATRIX if bench.device == "cuda" else 512
    found: dict[str, float] = {}
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        a, b = (torch.randn(side, side, device=bench.device, dtype=dtype) for _ in range(2))

        def ten(a: Any = a, b: Any = b) -> None:  # one alone is too short to time
            for _ in range(10):
                torch.mm(a, b)

        found[f"matmul_{name}_tflops"] = round(10 * 2 * side**3 / median_ms({"mm": ten}, 5)["mm"] / 1e9, 1)
    return found


def tflop(call: Callable[[], Any]) -> float:
    """Multiplications and additions of one call in its convolutions, matrix products and attention, in 1e12."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        call()
    return round(counter.get_total_flops() / 1e12, 3)


def kernels(call: Callable[[], Any], most: int = 14) -> list[dict[str, Any]]:
    """The GPU kernels of one call that take longest: milliseconds and how often they run."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    call()
    synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    # Launches are recorded, too, as events that take no time on the device.
    events = [event for event in seen.key_averages() if event.device_time_total > 0]
    events.sort(key=lambda event: -event.device_time_total)
    total = sum(event.device_time_total for event in events)
    rows = [
        {"kernel": event.key[:110], "ms": round(event.device_time_total / 1e3, 3), "calls": event.count}
        for event in events[:most]
    ]
    count = sum(event.count for event in events)
    return [{"kernel": "all", "ms": round(total / 1e3, 3), "calls": count}, *rows]
