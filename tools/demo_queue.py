"""The queue items of the demo: what each rendered, how long it took, and how far that is from the uncompiled."""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import demo_report
from demo_checkpoints import fail
from demo_prompts import prepared
from demo_times import Times, of_media, steps
from headless import host, media, server, workflows
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
TIMES = 3  # that the VAE is measured, uncompiled and compiled
INPUT_IMAGES = [f"onegraph_demo_{number}.png" for number in range(1, TIMES + 1)]
VIDEO = BACKEND != "oneflow" and os.environ.get("VIDEO") == "1"
WORDS, TOKENS = "a lighthouse at dusk", 256  # of a text: how it begins, and how long it is
console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def images_of(outcome: server.Outcome) -> dict[str, Any]:
    """The saved images by the prefix of their file names, the finished one last; a video's frames side by side."""
    import numpy as np

    named: dict[str, list[Any]] = {}
    for file, image in zip(outcome.files, outcome.images, strict=True):
        named.setdefault(file.rsplit("_", 2)[0], []).append(image)
    return {prefix: np.concatenate(frames, axis=1) for prefix, frames in sorted(named.items())}


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
        self.keys = {
            **self._keys(self.prompt),
            **self._keys(img2img),
            "video:decoder": "video",
            "text:generation": "text",
        }
        self.components = ["base", *(["refiner"] if self.refiner else []), "decoder", "encoder"]
        self.media: dict[str, dict[str, workflows.Prompt]] = {}
        if BACKEND != "oneflow":  # which serves no blocks
            self.media["text"] = {f"text {number}": media.text(True, WORDS, TOKENS, number) for number in (1, 2, 3)}
        if VIDEO:
            self.media["video"] = {
                f"video {number}": media.video(True, color=0x404040 * number) for number in (1, 2, 3)
            }
        self.components += self.media
        self.written: dict[str, list[str]] = {}
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
            of_steps = steps(prompt, outcome, lambda link: self._component(prompt, link))
            self.times.add(how, {**calls, **of_steps, **of_media(outcome)}, timed)
        images = images_of(outcome)
        largest = same = None
        if reference:
            eager = self.eager[reference]
            differences = [int(abs(image.astype(int) - eager[prefix]).max()) for prefix, image in images.items()]
            largest = max(differences, default=None)
            same = outcome.written == self.written[reference] if outcome.written else None
        else:
            self.eager[name], self.written[name] = images, outcome.written
        status = "\n".join(f"{component}: {texts[component]}" for component in self.components if component in texts)
        status = status or "the workflow without OneGraph"
        times = {component: self.ms(component, "step_ms") for component in ("base", "refiner")}
        times |= {component: self.ms(component, "call_ms") for component in ("decoder", "encoder")}
        times |= {one: round(statistics.median(took), 2) if took else None for one, took in of_media(outcome).items()}
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
                "same_text": same,
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
        table = Table(title=title, caption="base, refiner: ms a step; others: ms an image, video or token")
        table.add_column("queue item")
        timed = demo_report.timed_in(self.items)
        for column in demo_report.columns(timed):
            table.add_column(column, justify="right")
        table.add_column("text of the nodes", overflow="fold", ratio=1)
        for item in self.items:
            table.add_row(*demo_report.row(item, timed))
        return table
