"""Is the pack right and fast on this GPU? `python benchmarks/gpu.py --out FILE`, in an environment with ComfyUI.

Full-size SDXL with seeded random weights, through ComfyUI's own loader, sampling and server. Sections, in this order,
each on its own by `--only`:

unet    one CFG step at 1024x1024: eager, compiled, CUDA graphs, distance from float32, memory, other sizes, sampling
vae     the decoder at 1024x1024
restore taking up the kept graphs in a fresh process
server  ComfyUI itself, as it starts by default (DynamicVRAM) and without DynamicVRAM
torch   torch.compile, which users have today: empty caches, then the caches of the first process

`COMFYUI_PATH` names ComfyUI. Figures are printed and written as they come, and after `--seconds` it ends with what it
has; a further run with the same `--out` and `--work` adds to it and takes up the graphs that are there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import gpu_common
from gpu_common import ROOT, Bench

SECTIONS = ("unet", "vae", "restore", "server", "torch")
RESERVE = {"unet": 50.0, "vae": 15.0}  # seconds kept free for what follows the compiles


def versions(bench: Bench) -> None:
    import torch

    name = torch.cuda.get_device_name() if bench.device == "cuda" else platform.processor() or platform.machine()
    bench.result |= {"device": name, "torch": torch.__version__, "python": platform.python_version()}
    bench.result |= {"cuda": torch.version.cuda, "cores": os.cpu_count(), "model": bench.model}
    bench.say(f"{name}, torch {torch.__version__}, {os.cpu_count()} cores")


def graphs(bench: Bench, wanted: list[str]) -> None:
    """The unet and vae sections: eager first, while nothing compiles; then all compiles at once; then the graphs."""
    import torch
    from gpu_graphs import KINDS, Part, compile_all

    with torch.inference_mode():
        parts: list[Part] = []
        for section, kind in KINDS.items():
            if section in wanted:
                parts.append(kind(bench))
                parts[-1].before()
        reserve = sum(seconds for name, seconds in RESERVE.items() if name in wanted)
        compile_all(bench, parts, reserve)
        for compiled in parts:
            compiled.after()


def restored(bench: Bench) -> None:
    found = bench.child("restore", seconds=150)
    for name, value in found.items():
        section, short = (bench.vae_key, name[4:]) if name.startswith("vae_") else (bench.unet_key, name)
        bench.put(section, **{short: value})
    unet = found.get("restore_any_size") or found.get("restore_exact")
    if isinstance(unet, dict):
        bench.put(bench.unet_key, restore_s=unet["restore_s"])
    bench.say(f"restore: {found}")


def served(bench: Bench) -> None:
    import gpu_server

    gpu_server.run(bench)


def torch_compiled(bench: Bench) -> None:
    cache = bench.work / "torch-compile-cache"
    for name in ("cold", "warm"):
        if bench.left() < 30:
            return
        found = bench.child("torch_compile", env={"TORCHINDUCTOR_CACHE_DIR": str(cache)}, seconds=400)
        if "failed" in found:
            bench.put(bench.unet_key, **{f"torch_compile_{name}_failed": found["failed"]})
            return
        bench.put(
            bench.unet_key,
            torch_compile_ms=found["ms"],
            torch_compile_rel_l2_to_eager=found["rel_l2_to_eager"],
            **{f"torch_compile_{name}_s": found["first_call_s"]},
        )


def table(bench: Bench) -> Any:
    from rich.table import Table

    result = Table("figure", "value", title=f"{bench.result.get('device')}, torch {bench.result.get('torch')}")
    for section in (bench.unet_key, bench.vae_key):
        for name, value in bench.result.get(section, {}).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                result.add_row(f"{section} {name}", f"{value:.4g}")
            elif isinstance(value, str) and ("refused" in name or "failed" in name):
                result.add_row(f"{section} {name}", value)
    for name, found in bench.result.get("server", {}).items():
        for step, row in found.items():
            if isinstance(row, dict) and "said" in row:
                result.add_row(f"server {name}, {step}", f"{row['said']} {row.get('to_eager_of_255', '')}")
        if "failed" in found:
            result.add_row(f"server {name}", found["failed"])
    return result


def child(bench: Bench, name: str) -> None:
    import gpu_children
    import torch

    gpu_common.boot(bench.device, bench.work)
    # The last line of the output is the answer; everything before it is talk.
    with torch.inference_mode():
        answer = getattr(gpu_children, name)(bench)
    print(json.dumps(answer), flush=True)
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Is the pack right and fast on this GPU?")
    parser.add_argument("--only", default=",".join(SECTIONS), help=f"some of {','.join(SECTIONS)}")
    parser.add_argument("--seconds", type=float, default=3600, help="end after this time with what is there")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "benchmarks" / "gpu.json")
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build" / "benchmarks" / "gpu", help="checkpoint and graphs"
    )
    parser.add_argument("--model", default="sdxl_base", help="sdxl_base, or a small one of tests/support/models.py")
    parser.add_argument("--side", type=int, default=1024, help="pixels")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu only to rehearse")
    parser.add_argument("--profile", action="store_true", help="sample the compiling processes")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    wanted = options.only.split(",")
    unknown = sorted(set(wanted) - set(SECTIONS))
    if unknown:
        parser.error(f"no section {unknown[0]}; there are {', '.join(SECTIONS)}")
    bench = Bench(
        options.work.resolve(), options.out.resolve(), options.device, options.model, options.side, options.rounds,
        time.monotonic() + options.seconds,
    )  # fmt: skip
    if options.child:
        bench.out = bench.work / f"{options.child}.json"
        child(bench, options.child)
    if bench.out.is_file():
        bench.result = json.loads(bench.out.read_text())
    profile = bench.out.parent / "profile"
    watch = None
    if options.profile:
        import gpu_profile

        gpu_profile.install(profile)
        watch = gpu_profile.CompilerWatch()
    gpu_common.boot(bench.device, bench.work)
    versions(bench)
    gpu_common.write_checkpoint(bench)
    sections = {
        "graphs": lambda: graphs(bench, wanted),
        "restore": lambda: restored(bench),
        "server": lambda: served(bench),
        "torch": lambda: torch_compiled(bench),
    }
    for name, section in sections.items():
        if name not in wanted and not (name == "graphs" and {"unet", "vae"} & set(wanted)):
            continue
        if bench.left() < 10:
            bench.say(f"{name}: out of time")
            continue
        try:
            section()
        except Exception as error:
            import traceback

            traceback.print_exc()
            bench.put("failed", **{name: f"{type(error).__name__}: {str(error)[:300]}"})
    if watch is not None:
        bench.put("compilers", rows=watch.stop())
    bench.save()
    from rich.console import Console

    Console(width=140).print(table(bench))


if __name__ == "__main__":
    main()
