"""Compile times of full-size SDXL on a GPU, before a change and after: `python -m benchmarks.gpu.workers --before DIR`.

The pack is asked once for what it would compile (base, refiner, the VAE's halves, any size). Then the compiling process
of each checkout does that, in turns, with empty caches (`cold`) or with those that its last compile left (`warm`), and
graphs of both are called in turns with the same random weights. Memory is what all compiling processes take together
(proportional set size). `COMFYUI_PATH` names ComfyUI. Prints each row as it comes and writes `--out`. The
other checkout must read jobs as this one writes them (`compiler/process/job.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from .common import ROOT, Bench, boot, median_ms, never_replayed, write_checkpoints
from .compile import Compile


class _Copied(BaseException):
    """Ends a compile whose job was copied; like a user's interrupt it passes the registry."""


def write_jobs(bench: Bench, folder: Path) -> None:
    """What compiling processes read, a folder for each component. In a process of its own, for it keeps the GPU."""
    from onegraph.compiler.process.job import JOB_FILE, SKELETON_FILE
    from onegraph.graph_cache.layout import STAGING_FOLDER

    from .graphs import components

    boot(bench.device, bench.work)
    write_checkpoints(bench)
    for component in components(bench, ["unet", "refiner", "vae"]):
        compile_ = component.compiles["any_size"]

        def keep(progress: Any, compile_: Compile = compile_, target: Path = folder / component.key) -> None:
            """Copy what the compiling process was given, and end that process."""
            for found in (compile_.engine.store.private.folder / STAGING_FOLDER).glob(f"*/{JOB_FILE}"):
                target.mkdir(parents=True, exist_ok=True)
                for name in (JOB_FILE, SKELETON_FILE):
                    shutil.copy(found.with_name(name), target)
            raise _Copied

        with contextlib.suppress(_Copied):
            compile_.engine.obtain(compile_.request, "wait", keep)


class _Memory(threading.Thread):
    """The most that a process and all below it took together."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.most, self._pid, self._over = 0, pid, threading.Event()
        self.start()

    def run(self) -> None:
        import psutil

        with contextlib.suppress(psutil.Error):
            root = psutil.Process(self._pid)
            while not self._over.wait(0.5):
                total = 0
                for process in (root, *root.children(recursive=True)):
                    with contextlib.suppress(psutil.Error):
                        total += process.memory_full_info().pss
                self.most = max(self.most, total)

    def stop(self) -> int:
        self._over.set()
        self.join()
        return self.most


def compile_once(package: Path, job: Path, folder: Path, caches: Path, workers: int | None) -> dict[str, Any]:
    """Run a checkout's compiling process on a job: seconds to each stage and to the end."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(job, folder)
    description = json.loads((folder / "job.json").read_text())
    if workers is not None:
        (folder / "job.json").write_text(json.dumps({**description, "workers": workers}))
    (caches / "tmp").mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(caches), "TMPDIR": str(caches / "tmp")}
    began = time.perf_counter()
    worker = subprocess.Popen(
        [sys.executable, str(package / "compiler" / "process" / "worker.py"), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=env,
        start_new_session=True,
    )
    memory = _Memory(worker.pid)
    row: dict[str, Any] = {}
    assert worker.stdout is not None
    try:
        for line in worker.stdout:
            message = json.loads(line)
            seconds = round(time.perf_counter() - began, 1)
            if message["event"] == "stage":
                row[message["stage"]] = seconds
            elif message["event"] in ("done", "failed"):
                row[message["event"]] = seconds
                row.update({name: message[name] for name in ("reason",) if name in message})
        row["memory_mib"] = memory.stop() >> 20
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
    return row


def calls(job: Path, folders: dict[str, Path], rounds: int) -> dict[str, Any]:
    """Compiled calls of several checkouts' graphs with the same random weights, in turns, at two sizes."""
    from headless import host

    host.import_pack()
    from onegraph.compiler.process.job import read_job

    description, import_path = read_job(job)
    sys.path += [path for path in import_path if path not in sys.path]
    client = importlib.import_module(description.client.module, "onegraph")
    client.prepare(description.client.state)
    import torch

    from onegraph import backends
    from onegraph.compiler import skeleton
    from onegraph.runtime.graphs import faithfulness

    device = torch.device(description.device)
    module = skeleton.load(description.skeleton, device)
    wrapped = client.wrap(description.component, module, [spec.name for spec in description.export_shapes.inputs])
    generator = torch.Generator(device).manual_seed(0)
    named = [*wrapped.named_parameters(remove_duplicate=False), *wrapped.named_buffers(remove_duplicate=False)]
    weights = {n: torch.empty_strided(w.shape, w.stride(), dtype=w.dtype, device=device) for n, w in named}
    for weight in weights.values():
        weight.normal_(0.0 if weight.dim() > 1 else 0.5, 0.02, generator=generator)
    found: dict[str, Any] = {}
    runners = {}
    for name, folder in folders.items():
        runner = backends.get("inductor").load(folder, device)
        runner.bind({constant: weights[constant] for constant in runner.constant_names()})
        runners[name] = runner
    main_sizes = description.example_sizes
    with torch.inference_mode(), never_replayed():
        for label, sizes in (("main", main_sizes), ("small", {**main_sizes, "batch": 1, "height": 64, "width": 64})):
            inputs = [
                torch.randn(
                    [dim if isinstance(dim, int) else sizes[dim] for dim in given.dims],
                    device=device,
                    generator=generator,
                ).to(getattr(torch, given.dtype))
                for given in description.shapes.inputs
            ]
            made = {name: (lambda r=runner, i=tuple(inputs): r(*i)) for name, runner in runners.items()}
            results = {name: call() for name, call in made.items()}
            first = next(iter(results.values()))
            eager = torch.func.functional_call(wrapped, weights, tuple(inputs))
            found[label] = {
                "shape": list(inputs[0].shape),
                "ms": median_ms(made, rounds),
                "rel_l2_to_first": {name: faithfulness.relative_l2(result, first) for name, result in results.items()},
                "rel_l2_to_eager": {name: faithfulness.relative_l2(result, eager) for name, result in results.items()},
            }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Compile times on a GPU, before and after.")
    parser.add_argument("--before", type=Path, help="another checkout to compare with")
    parser.add_argument("--components", nargs="+", default=["base"], help="words in the names of the jobs to do")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm", action="store_true", help="one more compile each with the caches of the last one")
    parser.add_argument("--workers", type=int, help="processes besides the first; by default as many as the pack takes")
    parser.add_argument("--workers-before", type=int, help="the same for the checkout before")
    parser.add_argument("--model", default="sdxl_base")
    parser.add_argument("--side", type=int, default=1024)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--work", type=Path, default=Path("/tmp/onegraph-workers"))
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "benchmarks" / "gpu_workers.json")
    parser.add_argument("--child", choices=("jobs", "calls"), help=argparse.SUPPRESS)
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    jobs = options.work / "jobs"
    packages = {**({"before": options.before.resolve()} if options.before else {}), "after": ROOT}
    if options.child == "jobs":
        write_jobs(
            Bench(options.work, options.out, options.device, options.model, options.side, 3, time.monotonic() + 1e4),
            jobs,
        )
        return
    if options.child == "calls":
        folders = {which: options.work / f"{which}-{options.job.name}" for which in packages}
        print(json.dumps(calls(options.job, folders, 30)))
        return
    again = ["-m", "benchmarks.gpu.workers", *sys.argv[1:], "--child"]
    if not jobs.exists():
        subprocess.run([sys.executable, *again, "jobs"], check=True, stdout=subprocess.DEVNULL)
    found: dict[str, Any] = {}
    for job in sorted(path for path in jobs.iterdir() if any(word in path.name for word in options.components)):
        rows: list[dict[str, Any]] = []
        for number in range(options.rounds + options.warm):
            warm = number == options.rounds
            for which, package in packages.items():
                caches = options.work / f"caches-{which}"
                if not warm:
                    shutil.rmtree(caches, ignore_errors=True)
                folder = options.work / f"{which}-{job.name}"
                workers = options.workers if which == "after" else options.workers_before
                row = compile_once(package, job, folder, caches, workers)
                rows.append({"checkout": which, "caches": "warm" if warm else "cold", **row})
                print(f"{job.name}: {json.dumps(rows[-1])}", flush=True)
        medians = {
            which: statistics.median(r["done"] for r in rows if (r["checkout"], r["caches"]) == (which, "cold"))
            for which in packages
        }
        done = subprocess.run([sys.executable, *again, "calls", "--job", str(job)], check=True, stdout=subprocess.PIPE)
        found[job.name] = {"cold_s": medians, "calls": json.loads(done.stdout.splitlines()[-1]), "rows": rows}
        print(f"{job.name}: {json.dumps({k: v for k, v in found[job.name].items() if k != 'rows'})}", flush=True)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
