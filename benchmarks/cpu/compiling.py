"""Compile times on a CPU, before a change and after it: `.venv/bin/python benchmarks/cpu/compiling.py --before ../old`.

Each measurement is a process that samples (or decodes, or encodes) through ComfyUI with the node, with empty caches
(`cold`), again with the compiler's caches that this left (`warm`), and with those that the first model left (`second`).
Checkouts take turns within a round, for machines are noisy; medians count. Memory is what the compiling processes take
together (proportional set size, so that pages they share count once). Prints a table and writes
build/benchmarks/compiling.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

OUT = ROOT / "build" / "benchmarks"
PARTS = ("tiny_sdxl", "tiny_refiner", "tiny_sd15", "small_sdxl", "decoder", "encoder")
CASES = ("cold", "warm", "second")
STEPS, ROUNDS_OF_STEPS, SIDE = 6, 3, 256
VAE_OF = "tiny_sdxl"


class PeakMemory:
    """The most that all descendants of this process took together."""

    def __init__(self) -> None:
        import psutil

        self.most, self.processes = 0, 0
        self._me, self._over = psutil.Process(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        import psutil

        while not self._over.wait(0.25):
            total = 0
            children = self._me.children(recursive=True)
            for child in children:
                try:
                    total += child.memory_full_info().pss
                except psutil.Error:
                    continue
            self.most, self.processes = max(self.most, total), max(self.processes, len(children))

    def stop(self) -> int:
        self._over.set()
        self._thread.join()
        return self.most


def followed() -> dict[str, list[float]]:
    """When each stage of the compiles from now on was first and last heard of."""
    from onegraph.host.show import progress

    stages: dict[str, list[float]] = {}
    watch = progress.CompileProgress.__call__

    def heard(self: Any, said: Any) -> None:
        stages.setdefault(said.stage, [time.perf_counter()] * 2)[1] = time.perf_counter()
        watch(self, said)

    progress.CompileProgress.__call__ = heard  # type: ignore[method-assign]
    return stages


def measure(part: str, work: Path) -> dict[str, Any]:
    """One compile in this process' ComfyUI, then eager and compiled in turns."""
    from headless import host, models

    host.boot()
    import torch

    from onegraph.host.calls import model_hook
    from onegraph.host.calls.vae import hook as vae_hook
    from onegraph.host.show import status
    from onegraph.runtime.obtain.registry import registry

    is_unet = part in models.UNETS
    name = part if is_unet else VAE_OF
    path = models.write_checkpoint(name, work / f"{name}.safetensors", vae="none" if is_unet else "both")
    generator = torch.Generator().manual_seed(5)
    run: Callable[[Any], Any]
    if is_unet:
        plain: Any = host.load(path)
        fast = model_hook.compile_model(plain, model_hook.ModelNodeOptions(), "node")[0]
        settings = {"height": SIDE, "width": SIDE, "steps": STEPS, "context_width": models.UNETS[part]["context_dim"]}
        key = "node"

        def run(model: Any) -> Any:
            return host.sample(model, **settings)
    else:
        plain = host.load_vae(path)
        fast = vae_hook.compile_vae(
            plain, vae_hook.VaeNodeOptions(parts="both", dynamic_resolution="any size"), "node"
        )[0]
        key = f"node:{part}"
        latents = torch.randn(1, 4, SIDE // 8, SIDE // 8, generator=generator)
        pixels = torch.rand(1, SIDE, SIDE, 3, generator=generator)

        def run(model: Any) -> Any:
            return model.decode(latents) if part == "decoder" else model.encode(pixels)

    run(plain)
    stages = followed()
    memory = PeakMemory()
    began = time.perf_counter()
    run(fast)
    first_s = time.perf_counter() - began
    peak = memory.stop()
    report = status.last_runs[key]
    if report.compile_s is None:
        raise SystemExit(f"{part}: nothing was compiled ({report.text()})")
    times: dict[str, list[float]] = {"eager": [], "compiled": []}
    for _ in range(ROUNDS_OF_STEPS):
        for which, model in (("eager", plain), ("compiled", fast)):
            began = time.perf_counter()
            run(model)
            times[which].append(1e3 * (time.perf_counter() - began) / (STEPS if is_unet else 1))
    (graph,) = registry().graphs()
    return {
        "compile_s": report.compile_s,
        "first_s": first_s,
        "stages": {stage: round(stages[stage][1] - stages[stage][0], 2) for stage in stages},
        "memory_mib": peak >> 20,
        "processes": memory.processes,
        "eager_ms": statistics.median(times["eager"]),
        "compiled_ms": statistics.median(times["compiled"]),
        "rel_l2": max(graph.first_use.result.checked.values()),
        "bytes": sum(file.stat().st_size for file in graph.entry.folder.iterdir() if file.is_file()),
        "text": report.text(),
    }


def beside(part: str, work: Path) -> dict[str, Any]:
    """Eager steps alone, and while a graph of the same model compiles in the background."""
    from headless import host, models

    host.boot()
    from onegraph.host.calls import model_hook
    from onegraph.runtime.obtain.registry import registry

    path = models.write_checkpoint(part, work / f"{part}.safetensors", vae="none")
    plain = host.load(path)
    hooked = model_hook.compile_model(plain, model_hook.ModelNodeOptions(when_missing="background"), "node")[0]
    settings = {"height": SIDE, "width": SIDE, "steps": STEPS, "context_width": models.UNETS[part]["context_dim"]}

    def step_ms() -> float:
        began = time.perf_counter()
        host.sample(plain, **settings)
        return 1e3 * (time.perf_counter() - began) / STEPS

    step_ms()
    alone = [step_ms() for _ in range(8)]
    host.sample(hooked, **settings)
    until, together = time.monotonic() + 60, []
    while registry().compiles.in_background() and time.monotonic() < until:
        together.append(step_ms())
    began = time.monotonic()
    while registry().compiles.in_background() and time.monotonic() < began + 600:
        time.sleep(0.5)
    later = [step_ms() for _ in range(8)]
    usual, busy = statistics.median([*alone, *later]), statistics.median(together)
    return {
        "step_ms": usual,
        "step_ms_beside": busy,
        "slower": busy / usual,
        "runs_beside": len(together),
        "idle_s_to_finish": time.monotonic() - began,
        "compiles": registry().counters.compiles,
    }


def spawn(package: Path, part: str, caches: Path, what: str = "--one") -> dict[str, Any]:
    """`measure` in a process of its own that imports the pack from `package`."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "path").mkdir()
        (folder / "path" / "onegraph").symlink_to(package.resolve())
        env = dict(os.environ)
        env |= {"PYTHONPATH": str(folder / "path"), "ONEGRAPH_HOME": str(folder / "home")}
        # Some of what torch shares between compiles is with what the system keeps as temporary.
        (caches / "tmp").mkdir(parents=True, exist_ok=True)
        env |= {
            "TORCHINDUCTOR_CACHE_DIR": str(caches),
            "TMPDIR": str(caches / "tmp"),
            "ONEGRAPH_TESTING_TRUST_SLOW_GRAPHS": "1",
        }
        command = [sys.executable, __file__, what, part, "--work", str(folder)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{part} with {package}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description="Compile times on a CPU, before and after.")
    parser.add_argument("--before", type=Path, help="another checkout to compare with")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--cases", nargs="+", choices=CASES, default=["cold"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--background", choices=PARTS[:4], help="only: a run beside a background compile of this model")
    parser.add_argument("--beside", choices=PARTS[:4], help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.beside:
        print(json.dumps(beside(options.beside, options.work)))
        return
    if options.one:
        print(json.dumps(measure(options.one, options.work)))
        return
    packages = {**({"before": options.before} if options.before else {}), "after": ROOT}
    if options.background:
        for number in range(options.rounds):
            for which, package in packages.items():
                row = spawn(package, options.background, OUT / f"caches-{which}", "--beside")
                print(f"{number} {which}: {json.dumps(row)}", flush=True)
        return
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for number in range(options.rounds):
        for part in options.parts:
            for which, package in list(packages.items())[:: 1 if number % 2 else -1]:
                caches = OUT / f"caches-{which}"
                if part == options.parts[0] or "second" not in options.cases:
                    shutil.rmtree(caches, ignore_errors=True)
                fresh = part == options.parts[0] or "second" not in options.cases
                for case in [c for c in options.cases if (c != "cold" or fresh) and (c != "second" or not fresh)]:
                    row = spawn(package, part, caches)
                    found.setdefault((part, case, which), []).append(row)
                    print(f"{number} {part} {case} {which}: {json.dumps(row)}", file=sys.stderr, flush=True)
    write(found)


def write(found: dict[tuple[str, str, str], list[dict[str, Any]]]) -> None:
    import torch
    from rich.console import Console
    from rich.table import Table

    names = ("compile_s", "memory_mib", "eager_ms", "compiled_ms", "rel_l2")
    rows = []
    table = Table("part", "caches", "checkout", "compile s", "memory MiB", "eager ms", "compiled ms", "relative L2")
    for (part, case, which), several in found.items():
        medians = {name: statistics.median(row[name] for row in several) for name in names}
        rows.append({"part": part, "caches": case, "checkout": which, **medians, "rounds": several})
        figures = [f"{medians[name]:.1f}" for name in names[:-1]]
        table.add_row(part, case, which, *figures, f"{medians['rel_l2']:.1e}")
    report = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "rows": rows,
    }
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "compiling.json").write_text(json.dumps(report, indent=1) + "\n")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
