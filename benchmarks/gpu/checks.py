"""What checking each call costs on this GPU: a step of ComfyUI's sampling, checked after each launch and before it.

`python -m benchmarks.gpu.checks --model z-image --format "fp8 scaled" --out FILE`, in an environment with ComfyUI
(`COMFYUI_PATH`); `--model sdxl` is SDXL's base. Seeded weights, both ways in one process in turns, medians. `waited`
are steps after each of which the device is waited for, `free` those of a sampling that nothing waits for: there a check
is hidden as long as the device has work. At small sizes it has none.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

from .dits import MODELS, ROOT, latent_of, load, text_of

SIDES = (1024, 512, 256)
STEPS, SHORT = 20, 4
WAYS = {"after the launch": ("cuda",), "before it": ()}


def measure(name: str, layers: str, rounds: int, work: Path) -> list[dict[str, Any]]:
    """Milliseconds of a step, by size and way."""
    from headless import host

    host.boot(cpu=False)
    host.import_pack()
    import comfy.sample
    import torch

    from onegraph.host.calls import model_hook
    from onegraph.runtime.obtain.registry import registry

    model, full = load(name, layers, work), MODELS[name]
    text, cfg = text_of(full, {}), full.get("cfg", 1.0)
    fast = model_hook.compile_model(model, model_hook.ModelNodeOptions(backend="inductor"), "7")[0]
    host.wait_for_preloads()
    times: list[float] = []

    def tick(*args: Any) -> None:
        torch.cuda.synchronize()
        times.append(time.perf_counter())

    def sample(used: Any, side: int, steps: int, waiting: bool = True) -> None:
        zeros = latent_of(name, side)
        times.clear()
        with torch.inference_mode():
            noise = comfy.sample.prepare_noise(zeros, 3)
            tick()
            comfy.sample.sample(
                used, noise, steps, cfg, "euler", "normal", text, text, zeros, seed=3,
                callback=tick if waiting else None, disable_pbar=True,
            )  # fmt: skip
            tick()

    def use(way: str) -> None:
        for graph in registry().graphs():
            graph._checks_behind = bool(WAYS[way])

    rows: list[dict[str, Any]] = []
    for side in SIDES:
        for _ in range(3):  # whatever first calls ask for
            sample(fast, side, 6)
        waited: dict[str, list[float]] = {way: [] for way in WAYS}
        free: dict[str, list[float]] = {way: [] for way in WAYS}
        for _, way in itertools.product(range(rounds), WAYS):
            use(way)
            sample(fast, side, STEPS)
            waited[way] += [1e3 * (b - a) for a, b in itertools.pairwise(times[:-1])][2:]
            sample(fast, side, SHORT, waiting=False)
            short = times[-1] - times[0]
            sample(fast, side, SHORT + STEPS, waiting=False)
            free[way].append(1e3 * (times[-1] - times[0] - short) / STEPS)
        sample(model, side, 6)
        eager = statistics.median([1e3 * (b - a) for a, b in itertools.pairwise(times[:-1])][1:])
        for way in WAYS:
            row = {"side": side, "checked": way, "waited_ms": statistics.median(waited[way])}
            row |= {"waited_least_ms": min(waited[way]), "free_ms": statistics.median(free[way]), "eager_ms": eager}
            rows.append({key: round(one, 2) if isinstance(one, float) else one for key, one in row.items()})
            print(json.dumps(rows[-1]), flush=True)
    counters = registry().counters
    assert counters.dropped_calls == 0, "something changes between calls"
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--model", choices=MODELS, default="z-image")
    parser.add_argument("--format", default="", help="of quantised layers, such as 'fp8 scaled'")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "benchmarks")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("ONEGRAPH_HOME", str(given.work / "graphs"))
    os.environ["ONEGRAPH_CHECK_EVERY"] = "0"
    import torch

    rows = measure(given.model, given.format, given.rounds, given.work)
    found = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cores": os.cpu_count()}
    found |= {"model": given.model, "format": given.format, "rows": rows}  # type: ignore[dict-item]
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
