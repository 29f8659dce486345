"""The server section of `benchmarks/gpu`: the real headless ComfyUI on this device, with and without DynamicVRAM."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .common import Bench

STEPS = 4  # of the images that are compared
FIRST_STEPS = 30  # of the first image after a restart
REFINED_STEPS = 8  # of which the refiner takes two
COUNTS = ("compiles", "restores", "preloads", "compiled_calls", "replayed_calls", "eager_calls", "reasons")


def prompt_of(bench: Bench, steps: int) -> Any:
    """txt2img with both OneGraph nodes on the benchmark's checkpoint."""
    from headless import workflows

    prompt = workflows.with_checkpoints(workflows.load("txt2img"), bench.checkpoint(bench.model).name)
    prompt = workflows.with_steps(prompt, steps, steps)
    prompt = workflows.with_inputs(prompt, "EmptyLatentImage", width=bench.side, height=bench.side)
    return workflows.with_compiled_vae(prompt, dynamic_resolution="any size")


@contextlib.contextmanager
def _running(
    bench: Bench, base: Path, environ: Mapping[str, str], options: tuple[str, ...], log: str
) -> Iterator[tuple[Any, float]]:
    """A ready server and the seconds it took to start."""
    from headless import host, server

    started = time.monotonic()
    device = server.ON_CPU if bench.device == "cpu" else ()
    # The demo's rule for tiny models: they gain little, and it is no news that they do not.
    trust = {} if bench.model == "sdxl_base" else {"ONEGRAPH_TESTING_TRUST_SLOW_GRAPHS": "1"}
    environment = {"ONEGRAPH_HOME": str(bench.work / "home"), **trust, **environ}
    with server.running(base, host.comfyui_path(), env=environment, options=options, device=device, log=log) as running:
        yield running, round(time.monotonic() - started, 1)


def _differences(image: Any, eager: Any) -> dict[str, float]:
    difference = abs(image.astype(int) - eager.astype(int))
    return {"largest": int(difference.max()), "mean": round(float(difference.mean()), 4)}


def _images(bench: Bench, found: dict[str, Any], running: Any) -> dict[str, Any]:
    """Two seeds without the nodes and with them: pixels compared."""
    from headless import workflows

    prompt = prompt_of(bench, STEPS)
    other = workflows.with_inputs(prompt, "KSampler", seed=2)
    images: dict[str, Any] = {}
    for step, workflow in (
        ("eager", workflows.without_onegraph(prompt)),
        ("eager, seed 2", workflows.without_onegraph(other)),
        ("node", prompt),
        ("node, seed 2", other),
    ):
        if bench.left() < 5:
            found["stopped"] = f"before {step}: out of time"
            break
        outcome = running.run(workflow, seconds=bench.left())
        row: dict[str, Any] = {"status": outcome.status, "seconds": round(outcome.seconds, 2)}
        if outcome.error:
            row["error"] = outcome.error[:300]
        if outcome.images:
            images[step] = outcome.images[-1]
            row["std"] = round(float(images[step].std()), 1)
        if step.startswith("node"):
            row["said"] = {node: outcome.text(node) for node in ("2", "vae")}
            eager = images.get(step.replace("node", "eager"))
            if eager is not None and step in images:
                row["to_eager_of_255"] = _differences(images[step], eager)
            row["runs"] = running.status()["runs"]
        if step == "eager, seed 2" and {step, "eager"} <= set(images):
            row["to_seed_1_of_255"] = _differences(images[step], images["eager"])
        found[step] = row
        bench.say(f"{step}: {row}")
    return images


def _refined(bench: Bench, found: dict[str, Any], running: Any) -> None:
    """Base, refiner and one VAE, two images, with the nodes against without."""
    from headless import workflows

    names = (bench.checkpoint(model).name for model in (bench.model, bench.refiner))
    prompt = workflows.with_checkpoints(workflows.load("base_refiner"), *names)
    prompt = workflows.with_inputs(prompt, "EmptyLatentImage", width=bench.side, height=bench.side)
    prompt = workflows.with_inputs(prompt, "OneGraphCompileVAE", dynamic_resolution="any size")
    prompt = workflows.with_steps(prompt, REFINED_STEPS, REFINED_STEPS - 2)
    eager = running.run(workflows.without_onegraph(prompt), seconds=bench.left())
    result = running.run(prompt, seconds=bench.left())
    found |= {"status": result.status, "said": dict(result.texts), "seconds": round(result.seconds, 2)}
    found["to_eager_of_255"] = [_differences(a, b) for a, b in zip(result.images, eager.images, strict=True)]
    bench.say(f"base and refiner: {found}")


def _first_image(bench: Bench, found: dict[str, Any], running: Any, workflow: Any) -> None:
    """Seconds from the ready server to its first image."""
    outcome = running.run(workflow, seconds=bench.left())
    found |= {"status": outcome.status, "first_image_s": round(outcome.seconds, 2), "steps": FIRST_STEPS}
    found["said"] = {node: outcome.text(node) for node in ("2", "vae") if outcome.text(node)}


def _marks(log: Path) -> list[str]:
    """The lines of a server's log that say how it runs."""
    text = log.read_text(errors="replace") if log.is_file() else ""
    marks = ("DynamicVRAM", "aimdo version", "OneGraph", "onegraph", "VRAM state", "replaying", "CUDA error")
    colours = re.compile("\x1b\\[[0-9;]*m")
    return [colours.sub("", line) for line in text.splitlines() if any(mark in line for mark in marks)][:25]


def one(
    bench: Bench,
    name: str,
    options: tuple[str, ...],
    work: Any,
    base: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Start a server, let `work(found, server)` fill the figures, stop it; what goes wrong is a figure, too."""
    if bench.left() < 40:
        return {"failed": "out of time"}
    base = base or bench.work / "base"
    log = base / f"server-{name}.log"
    log.unlink(missing_ok=True)
    found: dict[str, Any] = {}
    try:
        with _running(bench, base, environ or {}, options, log.name) as (running, seconds):
            found |= {"start_s": seconds, "device": running.get("/system_stats")["devices"][0]["name"]}
            work(found, running)
            status = running.status()
            found["status"] = {count: status[count] for count in COUNTS}
    except Exception as error:  # the benchmark goes on with what it has
        found["failed"] = f"{type(error).__name__}: {str(error)[:300]}"
        lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
        bench.say(f"server {name} failed: {found['failed']}\n" + "\n".join(lines[-15:]))
    found["log_marks"] = _marks(log)
    return found


def run_bfloat16(bench: Bench) -> None:
    """UNet weights in bfloat16: images against eager's, and both against float32."""
    from headless import server, workflows

    server.prepare_base(bench.work / "base")
    images: dict[str, Any] = {}

    def rounded(found: dict[str, Any], running: Any) -> None:
        images.update(_images(bench, found, running))

    def exact(found: dict[str, Any], running: Any) -> None:
        outcome = running.run(workflows.without_onegraph(prompt_of(bench, STEPS)), seconds=bench.left())
        found["status"], images["float32"] = outcome.status, outcome.images[-1]

    found = one(bench, "bfloat16", ("--bf16-unet",), rounded)
    one(bench, "float32", ("--fp32-unet",), exact)
    for step in ("eager", "node"):
        if {step, "float32"} <= set(images):
            found[step]["to_float32_of_255"] = _differences(images[step], images["float32"])
    bench.put("server", bfloat16=found)
    bench.say(f"bfloat16: {found}")


def run(bench: Bench) -> None:
    from headless import server, workflows

    server.prepare_base(bench.work / "base")

    def images(found: dict[str, Any], running: Any) -> None:
        _images(bench, found, running)

    bench.put("server", default=one(bench, "default", (), images))

    def refined(found: dict[str, Any], running: Any) -> None:
        _refined(bench, found, running)

    bench.put("server", base_and_refiner=one(bench, "base_and_refiner", (), refined))
    prompt = prompt_of(bench, FIRST_STEPS)
    for name, workflow in (("node", prompt), ("eager", workflows.without_onegraph(prompt))):

        def first(found: dict[str, Any], running: Any, workflow: Any = workflow) -> None:
            _first_image(bench, found, running, workflow)

        row = one(bench, f"restart-{name}", (), first)
        bench.put("first_image_after_restart", **{name: row})
        bench.say(f"restart, {name}: " + str({k: v for k, v in row.items() if k != "log_marks"}))
    options = ("--disable-dynamic-vram",)
    bench.put("server", without_dynamic_vram=one(bench, "without_dynamic_vram", options, images))
