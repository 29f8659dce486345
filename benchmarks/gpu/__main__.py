"""Is the pack right and fast on this GPU? `python -m benchmarks.gpu --out FILE`, in an environment with ComfyUI.

Full-size SDXL with seeded random weights, through ComfyUI's own loader, sampling and server. One table, one JSON file.
Sections, in this order, each on its own by `--only`:

limits  what this device's matrix products reach
unet    SDXL's base: eager, compiled, replayed, distance from float32, memory, sizes and batches, 30 steps of sampling
refiner the same of the refiner
vae     the decoder and the encoder
restore loading all cached graphs in a fresh process
server  ComfyUI itself, as it starts by default (DynamicVRAM), restarted, and without DynamicVRAM
sizes   the UNet's graph for every multiple of 8 pixels against that for the usual sizes; only where --only names it
own     what of a replayed step is the pack's own part; only where --only names it
controlnet  sampling steered by one ControlNet, a LoRA and a strength changed; only where --only names it
mixed   twenty prompts with changing checkpoints and LoRAs in the server; only where --only names it
fleet   a new machine's first step, graphs from a store over HTTP; only where --only names it
bfloat16  the same with UNet weights in bfloat16, against eager and float32; only where --only names it
torch   torch.compile and core's node for it, which users have today: empty caches, then the caches of the first process

`COMFYUI_PATH` names ComfyUI. Figures are printed and written as they come, and after `--seconds` it ends with what it
has; a further run with the same `--out` and `--work` adds to it and uses the graphs that are there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import time
from pathlib import Path
from typing import Any

from . import common
from .common import REFINERS, ROOT, SDXL_TFLOP, Bench

GRAPHS = ("unet", "refiner", "vae")
SECTIONS = ("limits", *GRAPHS, "restore", "server", "torch")
EXTRA = ("sizes", "own", "controlnet", "mixed", "bfloat16", "fleet")
RESERVE = {"unet": 45.0, "refiner": 40.0, "vae": 15.0}  # seconds kept free for what follows the compiles


def versions(bench: Bench) -> None:
    import torch

    name = torch.cuda.get_device_name() if bench.device == "cuda" else platform.processor() or platform.machine()
    bench.result |= {"device": name, "torch": torch.__version__, "python": platform.python_version()}
    bench.result |= {"cuda": torch.version.cuda, "cores": os.cpu_count(), "model": bench.model}
    bench.say(f"{name}, torch {torch.__version__}, {os.cpu_count()} cores")


def limits(bench: Bench) -> None:
    found = common.matmul_tflops(bench)
    floor = 1e3 * SDXL_TFLOP / max(found.values())
    bench.put("limits", **found, sdxl_tflop=SDXL_TFLOP, sdxl_floor_ms=round(floor, 2))


def graphs(bench: Bench, wanted: list[str]) -> None:
    """The unet, refiner and vae sections: eager first, while nothing compiles; then the compiles; then the graphs."""
    import torch

    from .compile import compile_at_once
    from .graphs import components

    with torch.inference_mode():
        every = components(bench, wanted)
        for component in every:
            component.before()
        deadline = bench.deadline - sum(seconds for name, seconds in RESERVE.items() if name in wanted)
        waiting = {
            f"{component.name} {name}": compile_ for component in every for name, compile_ in component.compiles.items()
        }
        # What a user waits for is compiled alone, as it is there; of the others only the graphs matter.
        alone = {name: waiting.pop(name) for name in (f"{bench.model} any_size",) if name in waiting}
        for named in (alone, waiting):
            if named:
                compile_at_once(bench, named, deadline)
        for component in every:
            component.after()


def restored(bench: Bench) -> None:
    _restored(bench, "restore")
    _restored(bench, "preloaded")


def _restored(bench: Bench, child: str) -> None:
    found = bench.child(child, seconds=150)
    bench.say(f"{child}: {found}")
    seconds = []
    for key, graphs_ in found.get("parts", {}).items():
        for name, suffix in (("any_size", ""), ("exact", "_exact")):
            row = graphs_.get(name, {})
            if row:
                bench.put(key, **{f"{child}{suffix}": row})
            if "restore_s" in row:
                bench.put(key, **{f"{child}{suffix}_s": row["restore_s"]})
        seconds.append(graphs_["any_size"].get("restore_s"))
    if len(seconds) == 4 and None not in seconds:
        bench.result[f"{child}_all_s"] = round(sum(seconds), 4)
    bench.put(child, **found)


def served(bench: Bench) -> None:
    from . import server

    server.run(bench)


def bfloat16(bench: Bench) -> None:
    from . import server

    server.run_bfloat16(bench)


def fleet(bench: Bench) -> None:
    from . import fleet as section

    section.run(bench)


def _torch_compiled(bench: Bench, model: str, child: str) -> dict[str, str]:
    """Empty caches, a folder of their own, then what the first process left there; the environment that names it."""
    key, cache = bench.unet_key(model), bench.work / f"torch-compile-cache-{model}"
    shutil.rmtree(cache, ignore_errors=True)
    env = {"TORCHINDUCTOR_CACHE_DIR": str(cache)}
    for state in ("cold", "warm"):
        found = bench.child(child, env, seconds=400) if bench.left() > 30 else {"failed": "out of time"}
        if "failed" in found:
            bench.put(key, **{f"torch_compile_{state}_failed": found["failed"]})
            break
        bench.put(key, torch_compile_ms=found["ms"], torch_compile_rel_l2_to_eager=found["rel_l2_to_eager"])
        bench.put(key, **{f"torch_compile_{state}_s": found["first_call_s"]})
    return env


def torch_compiled(bench: Bench) -> None:
    key = bench.unet_key(bench.model)
    env = _torch_compiled(bench, bench.model, "torch_compile")
    if bench.left() > 30:
        found = bench.child("core_node", env, seconds=200)
        bench.put(key, torch_compile_node=found)
        bench.say(f"core's TorchCompileModel, caches warm: {found}")
    _torch_compiled(bench, bench.refiner, "torch_compile_refiner")


def sizes(bench: Bench) -> None:
    from . import sizes as section

    section.run(bench)


def own(bench: Bench) -> None:
    from . import own_part

    own_part.run(bench)


def controlnet(bench: Bench) -> None:
    from . import controlnet as section

    section.run(bench)


def mixed(bench: Bench) -> None:
    from . import mixed as section

    section.run(bench)


def child(bench: Bench, name: str) -> None:
    import torch

    from . import children

    bench.out = bench.work / f"{name}.json"
    common.boot(bench.device, bench.work)
    # The last line of the output is the answer; everything before it is talk.
    with torch.inference_mode():
        answer = getattr(children, name)(bench)
    print(json.dumps(answer), flush=True)
    os._exit(0)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Is the pack right and fast on this GPU?")
    parser.add_argument("--only", default=",".join(SECTIONS), help=f"some of {','.join(SECTIONS)}")
    parser.add_argument("--seconds", type=float, default=3600, help="end after this time with what is there")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "benchmarks" / "gpu.json")
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build" / "benchmarks" / "gpu", help="checkpoints and graphs"
    )
    parser.add_argument(
        "--model", choices=sorted(REFINERS), default="sdxl_base", help="the base; a small one to rehearse"
    )
    parser.add_argument("--side", type=int, default=1024, help="pixels; other sizes of the grid scale with it")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu only to rehearse")
    parser.add_argument("--profile", action="store_true", help="sample the compiling processes")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.only = options.only.split(",")
    unknown = sorted(set(options.only) - {*SECTIONS, *EXTRA})
    if unknown:
        parser.error(f"no section {unknown[0]}; there are {', '.join((*SECTIONS, *EXTRA))}")
    return options


def run(bench: Bench, wanted: list[str]) -> None:
    """The wanted sections, as far as the time goes; one that fails leaves the others."""
    sections: dict[str, Any] = {
        "limits": lambda: limits(bench),
        "graphs": lambda: graphs(bench, wanted),
        "restore": lambda: restored(bench),
        "server": lambda: served(bench),
        "torch": lambda: torch_compiled(bench),
        "sizes": lambda: sizes(bench),
        "own": lambda: own(bench),
        "controlnet": lambda: controlnet(bench),
        "mixed": lambda: mixed(bench),
        "bfloat16": lambda: bfloat16(bench),
        "fleet": lambda: fleet(bench),
    }
    for name, section in sections.items():
        if name not in wanted and not (name == "graphs" and set(GRAPHS) & set(wanted)):
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


def main() -> None:
    options = arguments()
    bench = Bench(
        options.work.resolve(), options.out.resolve(), options.device, options.model, options.side, options.rounds,
        time.monotonic() + options.seconds,
    )  # fmt: skip
    if options.child:
        child(bench, options.child)
    if bench.out.is_file():
        bench.result = json.loads(bench.out.read_text())
    watch = None
    if options.profile:
        from . import profile

        profile.install(bench.out.parent / "profile")
        watch = profile.CompilerWatch()
    common.boot(bench.device, bench.work)
    versions(bench)
    common.write_checkpoints(bench)
    run(bench, options.only)
    if watch is not None:
        bench.put("compilers", rows=watch.stop())
    bench.result["seconds"] = round(time.monotonic() - bench.started, 1)
    bench.save()
    from rich.console import Console

    from . import table

    Console(width=160).print(table.table(bench))


if __name__ == "__main__":
    main()
