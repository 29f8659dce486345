"""`make demo`: watch the real, headless ComfyUI render through compiled graphs, restart, and render without compiling.

SDXL base, refiner and one compiled VAE for both, and an image read by the VAE's encoder.

Environment variables:
    CHECKPOINT: path of an SDXL-class checkpoint to render with instead of a small seeded one.
    REFINER: path of a refiner; a CHECKPOINT without it renders by the base alone.
    BACKEND: inductor or oneflow.

OneFlow on a CPU is slower than no compiler. The pack would measure that at the first use and run uncompiled, so the
demo turns this check off and renders at small sizes, to show that the images are right. All output is below build/demo;
the page to look at is report.html there.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import demo_report
from demo_checkpoints import checkpoints_for, fail
from demo_prompts import decoding, prepared, with_when_missing
from demo_times import Times, steps
from headless import host, server, workflows
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build" / "demo"
STEPS = 8
RENDERED = ("base", "refiner", "decoder")  # components that text-to-image times
IMG2IMG_STEPS = 4
BACKEND = os.environ.get("BACKEND") or "auto"
SIZE, OTHER_SIZE = ((128, 128), (128, 96)) if BACKEND == "oneflow" else ((512, 512), (512, 320))
INPUT_SIDE = 128  # of the image for img2img: the encoder is a full-size one, which takes a CPU seconds at 512
LONG_PROMPT = "a lighthouse on a cliff at dusk, oil painting, " * 12
TIMES = 3  # that the VAE is measured, uncompiled and compiled
INPUT_IMAGES = [f"onegraph_demo_{number}.png" for number in range(1, TIMES + 1)]
LARGEST_DIFFERENCE = 2  # of 255, against the uncompiled models
console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def images_of(outcome: server.Outcome) -> dict[str, Any]:
    """The saved images by the prefix of their file names, the finished one last."""
    named = {file.rsplit("_", 2)[0]: image for file, image in zip(outcome.files, outcome.images, strict=True)}
    return dict(sorted(named.items()))


class Demo:
    """The queue items of the demo and what they showed."""

    def __init__(self, checkpoints: dict[str, Path]) -> None:
        self.refiner = checkpoints.get("refiner")
        if self.refiner:
            prompt = workflows.load("base_refiner")
        else:
            prompt = workflows.with_compiled_vae(workflows.load("txt2img"))
        self.prompt = prepared(prompt, checkpoints, BACKEND, STEPS)
        img2img = prepared(workflows.load("img2img"), checkpoints, BACKEND, IMG2IMG_STEPS)
        # One for each time that the encoder is measured: ComfyUI encodes an unchanged image once.
        self.img2img = {
            f"img2img {number}" if number > 1 else "img2img": workflows.with_inputs(img2img, "LoadImage", image=image)
            for number, image in enumerate(INPUT_IMAGES, 1)
        }
        # Both workflows' nodes: where they are alike, ComfyUI keeps the other one's output, and that node reports.
        self.keys = {**self._keys(self.prompt), **self._keys(img2img)}
        self.components = ["base", *(["refiner"] if self.refiner else []), "decoder", "encoder"]
        self.eager: dict[str, dict[str, Any]] = {}
        self.items: list[dict[str, Any]] = []
        self.processes: list[dict[str, Any]] = []
        self.images: list[str] = []
        self.times = Times(self.components)
        # By component: the last queue item's reports, and the seconds spent on compiling and restoring in all of them.
        self.report: dict[str, dict[str, Any]] = {}
        self.compile_s: dict[str, float] = {}
        self.restore_s: dict[str, float] = {}

    def variant(self, *, size: tuple[int, int] = SIZE, text: str = "", seed: int = 1) -> workflows.Prompt:
        prompt = workflows.with_inputs(self.prompt, "EmptyLatentImage", width=size[0], height=size[1])
        for inputs in workflows.samplers(prompt):
            inputs["noise_seed" if "noise_seed" in inputs else "seed"] = seed
            if text:
                prompt[inputs["positive"][0]]["inputs"]["text"] = text
        return prompt

    @contextlib.contextmanager
    def process(self, name: str, base: Path, env: dict[str, str]) -> Iterator[server.Server]:
        """A ComfyUI, with a note of when it started."""
        self._began = time.monotonic()
        with server.running(base, host.comfyui_path(), env=env) as s:
            self.processes.append({"name": name, "ready_s": round(time.monotonic() - self._began, 3)})
            yield s

    def run(
        self,
        s: server.Server,
        name: str,
        prompt: workflows.Prompt,
        reference: str = "",
        *,
        how: str = "",
        timed: tuple[str, ...] = RENDERED,
    ) -> server.Outcome:
        """Queue a prompt, save its images, compare them with uncompiled ones, note what it took.

        `how`: `eager` or `compiled`, where the times of the components `timed` count.
        """
        shown = time.monotonic()
        start_s = shown - self._began
        before = dict(self.compile_s), dict(self.restore_s)
        self.report, texts = {}, {}
        calls: dict[str, list[float]] = {"decoder": [], "encoder": []}

        def show(node: str, text: str) -> None:
            nonlocal shown
            if text.startswith("compiling"):
                if time.monotonic() - shown > 5:
                    shown = time.monotonic()
                    console.print(f"  [dim]{text}[/dim]")
                return
            # A component may run several times in one queue item (the VAE decodes twice): read each report as it comes.
            before, _, rest = text.partition(": ")
            key, status = (f"{node}:{before}", rest) if f"{node}:{before}" in self.keys else (node, text)
            report = s.status()["runs"].get(key)
            if key not in self.keys or report is None or report["text"] != status:
                return
            component = self.keys[key]
            self.report[component] = report
            if component in calls and report["call_ms"] is not None and report["restore_s"] is None:
                calls[component].append(report["call_ms"])
            for total, seconds in ((self.compile_s, report["compile_s"]), (self.restore_s, report["restore_s"])):
                if seconds is not None:
                    total[component] = total.get(component, 0) + seconds
                    texts[component] = status
            texts.setdefault(component, status)

        console.print(f"[bold]{name}[/bold]")
        outcome = s.run(prompt, on_text=show)
        if outcome.status != "success":
            fail(f"the queue item '{name}' ended with {outcome.status} ({outcome.error}); see {s.log}.")
        if how:
            self.times.add(how, {**calls, **steps(prompt, outcome, lambda link: self._component(prompt, link))}, timed)
        images = images_of(outcome)
        largest = None
        if reference:
            eager = self.eager[reference]
            largest = max(int(abs(image.astype(int) - eager[prefix]).max()) for prefix, image in images.items())
        else:
            self.eager[name] = images
        status = "\n".join(f"{component}: {texts[component]}" for component in self.components if component in texts)
        status = status or "the workflow without OneGraph"
        times = {component: self.ms(component, "step_ms") for component in ("base", "refiner")}
        times |= {component: self.ms(component, "call_ms") for component in ("decoder", "encoder")}
        self.items.append(
            {
                "name": name,
                "process": self.processes[-1]["name"],
                "start_s": round(start_s, 3),
                "seconds": round(outcome.seconds, 3),
                "compile_s": round(sum(self.compile_s.values()) - sum(before[0].values()), 3),
                "restore_s": round(sum(self.restore_s.values()) - sum(before[1].values()), 4),
                "ms": times,
                "reference": reference,
                "largest_difference": largest,
                "text": status,
                "images": self._save(name, images),
            }
        )
        console.print(f"  {outcome.seconds:.1f} s: " + status.replace("\n", "\n  "))
        return outcome

    def ms(self, component: str, key: str) -> float | None:
        """A time in the last queue item's report."""
        milliseconds = self.report.get(component, {}).get(key)
        return milliseconds and round(milliseconds, 2)

    def _component(self, prompt: workflows.Prompt, model: Any) -> str:
        loader = prompt[workflows.loader_of(prompt, model)]["inputs"]["ckpt_name"]
        return "refiner" if self.refiner and loader == self.refiner.name else "base"

    def _keys(self, prompt: workflows.Prompt) -> dict[str, str]:
        """The component that each key of the runs in GET /onegraph/status is about."""
        keys = {}
        for node in workflows.nodes(prompt, "OneGraphCompileModel"):
            keys[node] = self._component(prompt, prompt[node]["inputs"]["model"])
        for node in workflows.nodes(prompt, "OneGraphCompileVAE"):
            keys |= {f"{node}:{component}": component for component in ("decoder", "encoder")}
        return keys

    def _save(self, name: str, images: dict[str, Any]) -> dict[str, str]:
        """Write the images of a queue item; their files by prefix, relative to the repository's root."""
        from PIL import Image

        files: dict[str, str] = {}
        folder = OUT / "images"
        folder.mkdir(parents=True, exist_ok=True)
        for prefix, image in images.items():
            slug = name.replace(",", "").replace(" ", "-")
            if len(images) > 1:
                slug += prefix.removeprefix("onegraph").replace("_", "-")
            file = folder / f"{len(self.items):02d}-{slug}.png"
            Image.fromarray(image).save(file)
            files[prefix] = file.relative_to(ROOT).as_posix()
        self.images += files.values()
        return files

    def write_inputs(self, folder: Path) -> None:
        """The last image, made small and turned, for img2img."""
        from PIL import Image

        image = Image.open(ROOT / self.images[-1]).resize((INPUT_SIDE, INPUT_SIDE))
        for number, name in enumerate(INPUT_IMAGES):
            image.rotate(90 * number).save(folder / name)

    def table(self) -> Table:
        title = "One workflow in ComfyUI: uncompiled, compiled, and after a restart"
        table = Table(title=title, caption="base and refiner: ms per step; decode and encode: ms per image")
        table.add_column("queue item")
        for column in demo_report.NUMBERS:
            table.add_column(column, justify="right")
        table.add_column("text of the nodes", overflow="fold", ratio=1)
        for item in self.items:
            table.add_row(*demo_report.row(item))
        return table


def main() -> None:
    load = round(os.getloadavg()[0], 2)  # of others: nothing of the demo runs yet
    for stale in ("images", "home", "inductor", "base/output"):
        shutil.rmtree(OUT / stale, ignore_errors=True)
    base = OUT / "base"
    checkpoints = checkpoints_for(base, BACKEND)
    folder = checkpoints["base"].parent
    for graphs in folder.glob("*.graphs"):
        shutil.rmtree(graphs)
    (base / "server.log").unlink(missing_ok=True)
    demo = Demo(checkpoints)
    # As where ComfyUI has run before: Python keeps the bytecode of what it imports, whoever told it not to.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(ROOT / "build" / "pycache"))
    # The compiler's own caches start empty too, so that compile_s is what a first user sees.
    env = {"ONEGRAPH_HOME": str(OUT / "home"), "TORCHINDUCTOR_CACHE_DIR": str(OUT / "inductor")}
    if BACKEND == "oneflow":
        env["ONEGRAPH_TESTING_TRUST_SLOW_GRAPHS"] = "1"
    plain, other, longer = demo.variant(), demo.variant(size=OTHER_SIZE), demo.variant(text=LONG_PROMPT)
    seed2 = demo.variant(seed=2)

    console.print(f"{', '.join(f'{role} {file.name}' for role, file in checkpoints.items())}; starting ComfyUI ...")
    with demo.process("first process", base, env) as s:
        eager_first = demo.run(s, "uncompiled", workflows.without_onegraph(plain), how="eager")
        (base / "input").mkdir(exist_ok=True)
        demo.write_inputs(base / "input")
        demo.run(s, "uncompiled, other size", workflows.without_onegraph(other))
        demo.run(s, "uncompiled, longer prompt", workflows.without_onegraph(longer))
        demo.run(s, "uncompiled, other seed", workflows.without_onegraph(seed2), how="eager")
        demo.run(s, "uncompiled, measured by the nodes", with_when_missing(plain, "eager"), "uncompiled", how="eager")
        for name, prompt in demo.img2img.items():
            eager = with_when_missing(prompt, "eager")
            demo.run(s, f"uncompiled, {name}", eager, how="eager", timed=("encoder",))
        for number in range(2, TIMES + 1):  # a run before measured one
            eager = decoding(with_when_missing(plain, "eager"), number)
            demo.run(s, f"uncompiled, decoding {number}", eager, how="eager", timed=("decoder",))
        demo.run(s, "compiling", plain, "uncompiled")
        demo.run(s, "compiling, img2img", demo.img2img["img2img"], "uncompiled, img2img")
        # Another seed in between: ComfyUI answers an unchanged prompt from its cache of results.
        demo.run(s, "compiled, other seed", seed2, "uncompiled, other seed", how="compiled")
        demo.run(s, "compiled, again", plain, "uncompiled", how="compiled")
        for name, prompt in demo.img2img.items():
            demo.run(s, f"compiled, {name}", prompt, f"uncompiled, {name}")  # the first ones are compared and timed
        demo.run(s, "compiled, other size", other, "uncompiled, other size")
        demo.run(s, "compiled, longer prompt", longer, "uncompiled, longer prompt")
        compiles_first = s.status()["compiles"]
    compile_s = demo.compile_s
    demo.restore_s = {}
    console.print("restarting ComfyUI ...")
    with demo.process("after the restart", base, env) as s:
        demo.run(s, "after the restart, other size", other, "uncompiled, other size")
        for name, prompt in demo.img2img.items():
            again = f"after the restart, {name}"
            demo.run(s, again, prompt, f"uncompiled, {name}", how="compiled", timed=("encoder",))
        demo.run(s, "after the restart", plain, "uncompiled", how="compiled")
        compiles_after = s.status()["compiles"]
    restore_s = {component: round(seconds, 4) for component, seconds in demo.restore_s.items()}

    report = {
        "eager_first_s": round(eager_first.seconds, 3),
        "eager_step_ms": demo.times.median("base", "eager"),
        "compile_s": compile_s.get("base"),
        "compiled_step_ms": demo.times.median("base", "compiled"),
        "compiles_first_process": compiles_first,
        "restore_s": restore_s.get("base"),
        "compiles_after_restart": compiles_after,
        "sizes_rendered": [f"{w}x{h}" for w, h in (SIZE, OTHER_SIZE)],
        "size_encoded": f"{INPUT_SIDE}x{INPUT_SIDE}",
        "max_abs_diff_255": max(i["largest_difference"] for i in demo.items if i["largest_difference"] is not None),
        "graph_bytes": sum(f.stat().st_size for f in folder.glob("*.graphs/**/*") if f.is_file()),
        "refiner_compile_s": compile_s.get("refiner"),
        "refiner_restore_s": restore_s.get("refiner"),
        "refiner_eager_step_ms": demo.times.median("refiner", "eager"),
        "refiner_compiled_step_ms": demo.times.median("refiner", "compiled"),
        "vae_decode_compile_s": compile_s.get("decoder"),
        "vae_decode_restore_s": restore_s.get("decoder"),
        "vae_decode_eager_ms": demo.times.median("decoder", "eager"),
        "vae_decode_compiled_ms": demo.times.median("decoder", "compiled"),
        "vae_encode_compile_s": compile_s.get("encoder"),
        "vae_encode_restore_s": restore_s.get("encoder"),
        "vae_encode_eager_ms": demo.times.median("encoder", "eager"),
        "vae_encode_compiled_ms": demo.times.median("encoder", "compiled"),
        "restore_all_s": round(sum(restore_s.values()), 4),
        "images": demo.images,
    }
    report |= demo_report.surroundings(BACKEND, {role: file.name for role, file in checkpoints.items()})
    report["random_weights"] = not os.environ.get("CHECKPOINT")
    report |= {"samples_ms": demo.times.samples, "load_average": load, "cores": os.cpu_count()}
    report |= {"processes": demo.processes, "queue_items": demo.items}
    (OUT / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    page = demo_report.write(report, ROOT, OUT / "report.html")
    console.print(demo.table())
    seeds = max(
        abs(demo.eager["uncompiled"][k].astype(int) - v).max() for k, v in demo.eager["uncompiled, other seed"].items()
    )
    console.print(f"for scale, another seed differs by {seeds}/255; images: {(OUT / 'images').relative_to(ROOT)}")
    console.print_json(data={k: v for k, v in report.items() if k not in demo_report.LONG})
    eager_only = [
        component for component in demo.components if component not in compile_s or component not in restore_s
    ]
    if eager_only:
        fail(f"{', '.join(eager_only)}: not compiled, or not restored after the restart; the table shows why.")
    everything, restored = sum(compile_s.values()), sum(restore_s.values())
    console.print(
        f"compiled once in {everything:.0f} s ({', '.join(f'{p} {compile_s[p]:.0f}' for p in demo.components)}), "
        f"restored after the restart in {restored:.2f} s ({everything / restored:.0f} times less)"
    )
    console.print(f"beside the uncompiled models: {demo_report.speeds_text(report)}")
    if busy := demo_report.busy_text(report):
        console.print(f"[yellow]{busy}[/yellow]")
    console.print(f"to look at: {page.relative_to(ROOT)}")
    if compiles_after or report["max_abs_diff_255"] > LARGEST_DIFFERENCE:
        fail("a promise was broken: see compiles_after_restart and max_abs_diff_255 above.")


if __name__ == "__main__":
    main()
