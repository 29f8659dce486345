"""The server part of `benchmarks/gpu.py`: the real headless ComfyUI on this device, with and without DynamicVRAM."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from gpu_common import Bench

STEPS = 4


def _start(bench: Bench, base: Path, log: Path, options: tuple[str, ...]) -> Any:
    """tests/support/server.Server starts ComfyUI on the CPU; this one leaves the choice to ComfyUI."""
    from support import host, server

    class GpuServer(server.Server):
        def __init__(self) -> None:
            self.port = server._free_port()
            self.log = log
            self._client = uuid.uuid4().hex
            command = [
                sys.executable, str(host.comfyui_path() / "main.py"), "--port", str(self.port), "--base-directory",
                str(base), "--disable-auto-launch", "--disable-api-nodes", "--database-url", "sqlite:///:memory:",
                *options,
            ]  # fmt: skip
            if importlib.util.find_spec("comfyui_frontend_package") is None:
                empty = bench.work / "frontend"
                empty.mkdir(parents=True, exist_ok=True)
                (empty / "index.html").write_text("")
                command += ["--front-end-root", str(empty)]
            # PYTHONPATH must not smuggle the pack in: the server finds it in custom_nodes alone.
            env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
            env |= {"PYTHONUNBUFFERED": "1", "ONEGRAPH_HOME": str(bench.work / "home")}
            with log.open("ab") as out:
                self._process = subprocess.Popen(
                    command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=env,
                    start_new_session=True,
                )  # fmt: skip

    return GpuServer()


def _prompt(bench: Bench, side: int) -> Any:
    """txt2img with both OneGraph nodes on the benchmark's checkpoint."""
    from support import workflows

    prompt = workflows.with_checkpoints(workflows.load("txt2img"), bench.checkpoint.name)
    prompt = workflows.with_steps(prompt, STEPS, STEPS)
    prompt = workflows.with_inputs(prompt, "EmptyLatentImage", width=side, height=side)
    source = [workflows.nodes(prompt, "CheckpointLoaderSimple")[0], 2]
    prompt = workflows.rewired(prompt, source, ["99", 0])
    choices = {"parts": "decoder", "dynamic_resolution": "any size", "when_missing": "wait", "backend": "auto"}
    prompt["99"] = {"class_type": "OneGraphCompileVAE", "inputs": {"vae": source, **choices}}
    return prompt


def _differences(image: Any, eager: Any) -> dict[str, float]:
    difference = abs(image.astype(int) - eager.astype(int))
    return {"largest": int(difference.max()), "mean": round(float(difference.mean()), 4)}


def _last_lines(log: Path, count: int = 15) -> list[str]:
    try:
        return log.read_text(errors="replace").splitlines()[-count:]
    except OSError:
        return []


def _one(bench: Bench, name: str, options: tuple[str, ...], side: int) -> dict[str, Any]:
    from support import server, workflows

    base = server.prepare_base(bench.work / "base")
    log = bench.out.parent / f"server-{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    found: dict[str, Any] = {}
    started = time.monotonic()
    s = _start(bench, base, log, options)
    try:
        s.wait_ready(min(180.0, max(1.0, bench.left())))
        found["ready_s"] = round(time.monotonic() - started, 1)
        device = s.get("/system_stats")["devices"][0]
        found["device"] = device["name"]
        prompt = _prompt(bench, side)
        seed2 = workflows.with_inputs(prompt, "KSampler", seed=2)
        images: dict[str, Any] = {}
        plain, plain2 = workflows.without_onegraph(prompt), workflows.without_onegraph(seed2)
        for step, workflow in (
            ("eager", plain),
            ("eager, seed 2", plain2),
            ("node", prompt),
            ("node, seed 2", seed2),
        ):
            if bench.left() < 5:
                found["stopped"] = f"before {step}: out of time"
                break
            outcome = s.run(workflow, seconds=bench.left())
            row: dict[str, Any] = {"status": outcome.status, "seconds": round(outcome.seconds, 2)}
            if outcome.error:
                row["error"] = outcome.error[:300]
            if outcome.images:
                images[step] = outcome.images[-1]
                row["std"] = round(float(images[step].std()), 1)
            if step.startswith("node"):
                row["said"] = {node: outcome.text(node) for node in ("2", "99")}
                eager = images.get(step.replace("node", "eager"))
                if eager is not None and step in images:
                    row["to_eager_of_255"] = _differences(images[step], eager)
                row["runs"] = s.status()["runs"]
            if step == "eager, seed 2" and step in images and "eager" in images:
                row["to_seed_1_of_255"] = _differences(images[step], images["eager"])
            found[step] = row
            bench.say(f"server {name}, {step}: {row}")
        status = s.status()
        found["status"] = {
            k: status[k] for k in ("compiles", "restores", "compiled_calls", "replayed_calls", "eager_calls", "reasons")
        }
    except Exception as error:  # the benchmark goes on with what it has
        found["failed"] = f"{type(error).__name__}: {str(error)[:300]}"
        found["log"] = _last_lines(log)
        bench.say(f"server {name} failed: {found['failed']}\n" + "\n".join(found["log"]))
    finally:
        s.stop()
    text = log.read_text(errors="replace") if log.is_file() else ""
    marks = ("DynamicVRAM", "aimdo", "OneGraph", "VRAM state", "pytorch attention", "Traceback", "Error")
    found["log_marks"] = [line for line in text.splitlines() if any(mark in line for mark in marks)][:25]
    return found


def run(bench: Bench) -> None:
    side = bench.side
    host_options = ("--cpu",) if bench.device == "cpu" else ()
    for name, options in (("default", ()), ("without_dynamic_vram", ("--disable-dynamic-vram",))):
        if bench.left() < 40:
            bench.put("server", **{name: {"failed": "out of time"}})
            continue
        bench.put("server", **{name: _one(bench, name, (*options, *host_options), side)})
