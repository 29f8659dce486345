"""Time a call's checks, from its arrival to its launch: `.venv/bin/python benchmarks/cpu/guard.py --model tiny_sdxl`.

Samples through ComfyUI with the node and takes the time from the node's wrapper to the graph's first kernel (every
check of the model, the functions, the weights and the inputs lies in between), and that of the look at the start of a
run. Medians over the steps after the first run, milliseconds. `--device cuda --model sdxl_base` is SDXL at full size.
Prints a line of JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from headless import host, models  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description="Time from a call's arrival to its launch.")
    parser.add_argument("--model", default="tiny_sdxl")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--side", type=int, default=128, help="pixels")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "benchmarks")
    options = parser.parse_args()
    host.import_pack()
    host.boot(cpu=options.device == "cpu")
    import torch

    from onegraph.backends.inductor import InductorRunner
    from onegraph.host.calls import model_hook as hook
    from onegraph.host.show import status
    from onegraph.runtime.obtain.registry import registry
    from onegraph.runtime.policy import ANY_SPEED

    arrivals: list[float] = []
    launches: list[float] = []
    starts: list[float] = []
    wrapper, launch, start_run = hook.ModelHook.wrapper, InductorRunner.__call__, hook.start_run

    def arriving(self: Any, *args: Any, **kwargs: Any) -> Any:
        arrivals.append(time.perf_counter())
        return wrapper(self, *args, **kwargs)

    def launching(self: Any, *inputs: torch.Tensor) -> torch.Tensor:
        if len(launches) < len(arrivals):  # a first-use check launches several times for one call
            launches.append(time.perf_counter())
        return launch(self, *inputs)

    def starting(*args: Any) -> Any:
        began = time.perf_counter()
        run = start_run(*args)
        starts.append(time.perf_counter() - began)
        return run

    checks: list[float] = []
    with contextlib.suppress(ImportError):  # older versions check nothing after the first use
        from onegraph.runtime.graphs.spot_check import Schedule

        checked = Schedule.checked

        def checking(self: Any, seconds: float) -> None:
            checks.append(seconds)
            checked(self, seconds)

        Schedule.checked = checking  # type: ignore[method-assign]
    hook.ModelHook.wrapper, InductorRunner.__call__, hook.start_run = arriving, launching, starting  # type: ignore[method-assign, assignment]
    registry().policy = ANY_SPEED
    path = models.write_checkpoint(options.model, options.work / f"{options.model}.safetensors", device=options.device)
    model = host.load(path)
    fast, _ = hook.compile_model(model, hook.ModelNodeOptions(), "guard")
    size = {"height": options.side, "width": options.side}
    host.sample(fast, steps=2, **size)
    seconds = []
    for _ in range(options.runs):
        began = time.perf_counter()
        host.sample(fast, steps=options.steps, **size)
        seconds.append(time.perf_counter() - began)
    later = slice(2, None)
    guard = [1e3 * (launched - came) for came, launched in zip(arrivals, launches, strict=True)][later]
    print(
        json.dumps(
            {
                "model": options.model,
                "device": torch.cuda.get_device_name() if options.device == "cuda" else platform.processor(),
                "torch": torch.__version__,
                "arrival_to_launch_ms": round(statistics.median(guard), 3),
                "arrival_to_launch_first_of_a_run_ms": round(statistics.median(guard[:: options.steps]), 3),
                "start_of_run_ms": round(1e3 * statistics.median(starts[1:]), 3),
                "step_ms": round(1e3 * statistics.median(seconds) / options.steps, 3),
                "calls": len(guard),
                "checks": len(checks),
                "checks_share": round(sum(checks) / sum(seconds), 5),
                "text": status.last_runs["guard"].text(),
            }
        )
    )


if __name__ == "__main__":
    main()
