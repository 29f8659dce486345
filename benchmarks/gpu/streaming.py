"""Models larger than the memory that is free: a step eager and by block graphs under DynamicVRAM, on this GPU.

`python -m benchmarks.gpu.streaming --model z-image --rooms 2 1 0.6 0.25 --out FILE`, in an environment with ComfyUI
(`COMFYUI_PATH`) and comfy-aimdo. Weights are seeded random numbers in system memory. A room is what memory is left free
for the weights, as a part of their size; ballast takes the rest, but for 2 GiB that activations and ComfyUI's own
reserve have. `--card 16` leaves as much as a card of 16 GiB has in place of rooms. Steps are those of a second
sampling, whose timesteps the first one had. A row has a step's milliseconds, how many blocks stay, the GiB that a step
copies, and which share of the copies' time it hides (beside a room in which nothing is copied: that one comes first).
Each room and way is a process of its own. `--prompts 60` samples so often instead, two models in turns, another LoRA
for each, and compares each result with eager's.
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

import comfy_aimdo.control  # before torch, as ComfyUI does

from benchmarks.gpu.dits import FULL, ROOT, compiled_by, latent_of, text_of

WAYS = ("eager", "ours")
SPARE = 2 << 30


def enable() -> None:
    """Turn DynamicVRAM on as ComfyUI's own start does."""
    comfy_aimdo.control.init()
    from headless import host

    host.boot(cpu=False)
    host.import_pack()
    import comfy.memory_management
    import comfy.model_management
    import comfy.model_patcher

    devices = [(device.index, 0) for device in comfy.model_management.get_all_torch_devices()]
    assert comfy_aimdo.control.init_devices(devices), "comfy-aimdo does not work here"
    comfy.model_patcher.CoreModelPatcher = comfy.model_patcher.ModelPatcherDynamic
    comfy_aimdo.control.set_log_warning()
    comfy.memory_management.aimdo_enabled = True


def after_node() -> None:
    """What ComfyUI does when a node has run."""
    import comfy.model_management
    import comfy.model_prefetch
    import comfy_aimdo.model_vbar

    comfy.model_management.reset_cast_buffers()
    comfy.model_prefetch.cleanup_prefetch_queues()
    comfy_aimdo.model_vbar.vbars_reset_watermark_limits()


def loaded(name: str, layers: str, seed: int = 0, **unet: Any) -> Any:
    """A MODEL in system memory, as a loader gives it under DynamicVRAM."""
    import comfy.memory_management
    import comfy.model_patcher
    import torch
    from support.models import dits, quantised

    device, wanted = torch.device("cuda", 0), {**FULL[name]["unet"], **unet}
    comfy.memory_management.aimdo_enabled = False  # else layers wait for a file
    with torch.inference_mode():
        made = (
            quantised.load(name, layers, seed, device=device, **wanted)
            if layers
            else dits.load(name, seed, dtype=torch.bfloat16, device=device, **wanted)
        )
        made.model.to("cpu")
    torch.cuda.empty_cache()
    comfy.memory_management.aimdo_enabled = True
    return comfy.model_patcher.CoreModelPatcher(made.model, load_device=device, offload_device=torch.device("cpu"))


def size_of(model: Any) -> int:
    return int(model.model_size())


def with_ballast(weights: int, room: float, card: float = 0.0) -> list[Any]:
    """Take memory until as much as a part of the weights is free, and some more; or what a card of some GiB has."""
    import torch

    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    taken = total - int(card * 2**30) if card else free - int(room * weights) - SPARE
    return [torch.empty(taken, dtype=torch.uint8, device="cuda")] if taken > 0 else []


def sampled(model: Any, name: str, count: int, ticked: Any, seed: int = 3) -> Any:
    import comfy.sample
    import torch

    zeros = latent_of(name, 1024)
    with torch.inference_mode():
        noise, text = comfy.sample.prepare_noise(zeros, seed), text_of(FULL[name], {})
        ticked()
        found = comfy.sample.sample(
            model, noise, count, 1.0, "euler", "simple", text, text, zeros, seed=seed, callback=ticked,
            disable_pbar=True,
        )  # fmt: skip
    after_node()
    return found


def copied_gib_s(times: int = 5) -> float:
    """GiB a second of copies from page-locked memory to the device, alone: the best of a few of 256 MiB."""
    import torch

    source = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device="cuda")
    seconds = []
    for _ in range(times):
        torch.cuda.synchronize()
        began = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return 0.25 / min(seconds)


def measure(name: str, way: str, layers: str, room: float, steps: int, card: float = 0.0) -> dict[str, Any]:
    """Sample in this process with some memory free; the steps' milliseconds, the least memory that was free."""
    enable()
    import comfy.sd
    import torch
    from support.dit_matrix.weights import lora_of

    model = loaded(name, layers)
    weights = size_of(model)
    ballast = with_ballast(weights, room, card)
    free = torch.cuda.mem_get_info()[0]
    chosen = compiled_by(way, model)
    times: list[float] = []
    lows: list[int] = []

    def ticked(*args: Any) -> None:
        torch.cuda.synchronize()
        times.append(time.perf_counter())
        lows.append(torch.cuda.mem_get_info()[0])

    def gaps() -> list[float]:
        return [1e3 * (b - a) for a, b in itertools.pairwise(times)]

    first = sampled(chosen, name, 2, ticked)
    torch.save(first.cpu(), Path(os.environ["BENCH_RESULTS"]) / f"{name}-{layers}-{room}-{way}.pt")
    row: dict[str, Any] = {"way": way, "room": room, "weights_mib": weights >> 20, "free_mib": free >> 20}
    row |= {"first_s": round(gaps()[0] / 1e3, 2), "second_s": round(gaps()[1] / 1e3, 2)}
    for again in (False, True):
        times.clear()
        lows.clear()
        sampled(chosen, name, steps, ticked)
        if not again:
            row["new_timesteps_ms"] = round(statistics.median(gaps()[1:]), 1)
    row |= {"step_ms": round(statistics.median(gaps()[1:]), 1), "least_ms": round(min(gaps()), 1)}
    row["used_mib"] = (free - min(lows)) >> 20
    if way == "ours":
        row |= _reported() | {"copy_gib_s": round(copied_gib_s(), 1)}
    for strength in () if card else (1.0, 0.5):
        times.clear()
        lora = comfy.sd.load_lora_for_models(model, None, lora_of(model), strength, 0)[0]
        changed = sampled(compiled_by(way, lora), name, 4, ticked)
        row[f"lora_{strength}_ms"] = [round(gap, 1) for gap in gaps()]
        torch.save(changed.cpu(), Path(os.environ["BENCH_RESULTS"]) / f"{name}-{layers}-{room}-{way}-{strength}.pt")
    if way == "ours":
        row["lora"] = _reported()
    del ballast
    return row


def _reported() -> dict[str, Any]:
    from onegraph.host.show import status
    from onegraph.runtime.obtain.registry import registry

    report = status.last_runs["7"].to_json()
    blocks = report["blocks"]
    found = {key: blocks[key] for key in ("of", "resident", "streamed", "modulation", "eager_codes", "inexact_codes")}
    found["gib"] = blocks["streamed_bytes"] / 2**30
    return {"text": report["text"], "compiles": registry().counters.compiles, **found}


def prompts(name: str, layers: str, room: float, count: int) -> dict[str, Any]:
    """Two smaller models in turns with other LoRAs: every result beside eager's, and the memory after each prompt."""
    enable()
    import comfy.sd
    import torch
    from support.dit_matrix.weights import lora_of

    models = [loaded(name, layers, seed, n_layers=8) for seed in (0, 1)]
    ballast = with_ballast(size_of(models[0]), room)
    worst, used, texts = 0.0, [], []
    free = torch.cuda.mem_get_info()[0]
    for number in range(count):
        model = models[number % 2]
        strength = (number // 2 % 5) / 4
        if strength:
            model = comfy.sd.load_lora_for_models(model, None, lora_of(model, number // 6), strength, 0)[0]
        found = sampled(compiled_by("ours", model), name, 3, lambda *args: None, number)
        texts.append(_reported()["text"])
        if number % 6 == 5:
            wanted = sampled(model, name, 3, lambda *args: None, number)
            worst = max(worst, float((found.double() - wanted.double()).norm() / wanted.double().norm()))
        used.append((free - torch.cuda.mem_get_info()[0]) >> 20)
    del ballast
    return {"prompts": count, "worst": worst, "used_mib": used[:: max(1, count // 10)], "texts": sorted({*texts})[:6]}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--model", choices=FULL, default="z-image")
    parser.add_argument("--format", default="", help="of quantised layers, such as 'fp8 scaled'")
    parser.add_argument("--rooms", type=float, nargs="+", default=[2.0, 1.0, 0.6, 0.25])
    parser.add_argument("--card", type=float, default=0.0, help="GiB of the memory that is left, in place of rooms")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=0)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "benchmarks")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    os.environ["BENCH_RESULTS"] = str(given.work)
    os.environ.setdefault("ONEGRAPH_HOME", str(given.work / "graphs"))
    given.work.mkdir(parents=True, exist_ok=True)
    if given.prompts:
        print(json.dumps(prompts(given.model, given.format, given.rooms[0], given.prompts)))
        return
    if given.one:
        found = measure(given.model, given.one, given.format, given.rooms[0], given.steps, given.card)
        print(json.dumps(found))
        return
    rows: list[dict[str, Any]] = []
    for room, way in itertools.product([given.card] if given.card else given.rooms, WAYS):
        command = [sys.executable, "-m", "benchmarks.gpu.streaming", "--model", given.model, "--one", way]
        command += ["--rooms", str(room), "--steps", str(given.steps), "--work", str(given.work)]
        command += ["--format", given.format, "--card", str(given.card)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            print(f"{room} {way}: {ended.stderr[-1800:]}", flush=True)
            continue
        row = json.loads(ended.stdout.strip().splitlines()[-1])
        if way == "ours":
            row["distances"] = [
                _distance(given.work, f"{given.model}-{given.format}-{room}", end) for end in ("", "-1.0", "-0.5")
            ]
            whole = next((known["step_ms"] for known in rows if known["way"] == way and known["gib"] == 0), None)
            if whole and row["gib"]:
                row["hidden"] = hidden(row, whole)
            eager = next((one["step_ms"] for one in rows if (one["way"], one["room"]) == ("eager", room)), None)
            row |= {} if eager is None else {"times_eager": round(eager / row["step_ms"], 3)}
        rows.append(row)
        print(json.dumps(row), flush=True)
        if given.out:
            given.out.write_text(json.dumps({"model": given.model, "format": given.format, "rows": rows}, indent=1))


def hidden(row: dict[str, Any], whole_ms: float) -> float:
    """Which share of the copies' own time a step with copies does not add to one that needs none."""
    alone = 1e3 * row["gib"] / row["copy_gib_s"]
    return float(round(1 - (row["step_ms"] - whole_ms) / alone, 3))


def _distance(work: Path, name: str, end: str) -> float | None:
    """Relative L2 of latents from eager's."""
    import torch

    eager, other = work / f"{name}-eager{end}.pt", work / f"{name}-ours{end}.pt"
    if not (eager.exists() and other.exists()):
        return None
    a, b = torch.load(eager).double(), torch.load(other).double()
    return float((a - b).norm() / a.norm())


if __name__ == "__main__":
    main()
