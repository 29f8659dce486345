"""build/demo/report.html from build/demo/report.json and the images beside it: `make demo` ends with it.

`.venv/bin/python tools/demo_report.py` makes the page again from what the last demo left.
"""

from __future__ import annotations

import io
import json
import os
import re
import statistics
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headless import host

host.import_pack()
from charts import STYLE, Lane, Span, Timeline, timeline_svg  # noqa: E402
from markupsafe import Markup  # noqa: E402

from onegraph.cli.report import machine  # noqa: E402
from onegraph.cli.report.page import Bar, Bars, Group, Page, Table, Tile, render  # noqa: E402
from onegraph.runtime.calls.run_report import faster  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
TEMPLATE = Path(__file__).with_suffix(".html.j2")
# What is timed, and the name of its column in the table of queue items.
COLUMNS = {
    "base": "base", "refiner": "refiner", "decoder": "decode", "encoder": "encode", "video": "video", "text": "token",
}  # fmt: skip
COMPONENTS = tuple(COLUMNS)
LONG = ("images", "processes", "queue_items", "samples_ms", "facts", "command")  # of report.json, not for the terminal
# Field of report.json of each component: (eager, compiled) of a call, ms, and (compile, restore), s.
FIELDS = {
    "base": (("eager_step_ms", "compiled_step_ms"), ("compile_s", "restore_s")),
    "refiner": (("refiner_eager_step_ms", "refiner_compiled_step_ms"), ("refiner_compile_s", "refiner_restore_s")),
    "decoder": (("vae_decode_eager_ms", "vae_decode_compiled_ms"), ("vae_decode_compile_s", "vae_decode_restore_s")),
    "encoder": (("vae_encode_eager_ms", "vae_encode_compiled_ms"), ("vae_encode_compile_s", "vae_encode_restore_s")),
    "video": (("video_eager_ms", "video_compiled_ms"), ("video_compile_s", "video_restore_s")),
    "text": (("token_eager_ms", "token_compiled_ms"), ("text_compile_s", "text_restore_s")),
}
NAMES = {
    "base": "UNet of the base, a step",
    "refiner": "UNet of the refiner, a step",
    "decoder": "VAE decoder, an image",
    "encoder": "VAE encoder, an image",
    "video": "video VAE decoder, a video",
    "text": "text model, a token",
}
# Times of one component differ by less on a machine that does nothing else: slowest to median.
SPREAD = 1.5
# Of the time lines: what a colour is.
LEGEND = (
    ("start", "start"),
    ("eager", "uncompiled"),
    ("compile", "compiling"),
    ("restore", "restoring"),
    ("compiled", "compiled"),
)
# Queue items whose images are shown beside the uncompiled ones.
AGAIN = ("other size", "img2img", "video 1")
SHOWN = ("after the restart", "compiled, again", *(f"after the restart, {what}" for what in AGAIN))
RANDOM = (
    "These models have random weights, so that what they paint is noise. "
    "CHECKPOINT=model.safetensors make demo renders pictures, by a model of yours."
)


@dataclass(frozen=True)
class Picture:
    """A PNG with what stands below it; `alt` is for those who do not see it."""

    png: bytes
    caption: str
    alt: str

    @property
    def address(self) -> str:
        return "data:image/png;base64," + b64encode(self.png).decode()


@dataclass(frozen=True)
class Comparison:
    """Pictures side by side, and a sentence about them."""

    title: str
    pictures: tuple[Picture, ...]
    text: str


@dataclass(frozen=True)
class DemoPage(Page):
    """The page of the demo, with images and time lines."""

    images_note: str = ""
    comparisons: tuple[Comparison, ...] = ()
    timelines: tuple[Timeline, ...] = ()


def surroundings(backend: str, checkpoints: dict[str, str]) -> dict[str, Any]:
    """What report.json tells of the machine, the versions and the command."""
    version = re.search(r'__version__ = "(.+)"', (host.comfyui_path() / "comfyui_version.py").read_text())
    settings = [f"{name}={Path(os.environ[name]).name}" for name in ("CHECKPOINT", "REFINER") if os.environ.get(name)]
    settings += [] if backend == "auto" else [f"BACKEND={backend}"]
    settings += ["VIDEO=1"] if os.environ.get("VIDEO") == "1" else []
    facts = [
        *machine.facts(),
        ("ComfyUI", version[1] if version else "unknown"),
        *((f"checkpoint, {role}", name) for role, name in checkpoints.items()),
    ]
    return {"facts": facts, "command": " ".join([*settings, "make demo"])}


def median_of(report: dict[str, Any], component: str, how: str) -> str:
    """Of how many times a bar is the median; empty where it has none."""
    count = len(report["samples_ms"].get(component, {}).get(how, ()))
    return f", median of {count}" if count else ""


def medians_text(report: dict[str, Any], component: str) -> str:
    """Of how many times a component's are, uncompiled and compiled; empty where it has none."""
    of = report["samples_ms"].get(component, {})
    return f"medians of {len(of['eager'])} and {len(of['compiled'])}" if {"eager", "compiled"} <= {*of} else ""


def speeds_text(report: dict[str, Any]) -> str:
    """How fast each component is beside the uncompiled one."""
    shown = []
    for component, column in COLUMNS.items():
        name = f"{column} step" if column in ("base", "refiner") else column
        eager, compiled = (report[field] for field in FIELDS[component][0])
        if eager and compiled:
            shown.append(f"{name} {faster(eager / compiled)} ({medians_text(report, component)})")
    return ", ".join(shown)


def busy_text(report: dict[str, Any]) -> str:
    """Say why times may be those of a busy machine; empty where nothing speaks for it."""
    load, cores = report["load_average"], report["cores"]
    signs = [f"the load average was {load:.1f} on {cores} cores before the demo began"] if load > cores else []
    for component, of in report["samples_ms"].items():
        for how, samples in of.items():
            if max(samples) > SPREAD * statistics.median(samples):
                name = NAMES[component]
                words = "uncompiled" if how == "eager" else how
                signs.append(f"{name}, {words}, took {min(samples):.0f} to {max(samples):.0f} ms")
    return f"The machine was busy, so that speeds may be wrong: {'; '.join(signs)}." if signs else ""


def timed_in(items: Sequence[dict[str, Any]]) -> list[str]:
    """The components that any of some queue items has a time of."""
    return [component for component in COMPONENTS if any(item["ms"][component] for item in items)]


def columns(timed: Sequence[str]) -> tuple[str, ...]:
    """The columns of numbers in a table of queue items."""
    return ("s", *(COLUMNS[component] for component in timed), "difference")


def row(item: dict[str, Any], timed: Sequence[str]) -> tuple[str, ...]:
    """A queue item as a line of a table: name, `columns`, texts of the nodes."""
    times = [item["ms"][component] for component in timed]
    largest, same = item["largest_difference"], item["same_text"]
    difference = "" if largest is None else f"{largest}/255"
    return (
        item["name"],
        f"{item['seconds']:.1f}",
        *(f"{milliseconds:.0f}" if milliseconds else "" for milliseconds in times),
        difference if same is None else ("same text" if same else "another text"),
        item["text"],
    )


def comparison(item: dict[str, Any], reference: dict[str, Any], root: Path) -> Comparison:
    """The finished image of a queue item beside the uncompiled one, and where they differ."""
    import numpy as np
    from PIL import Image

    prefix = next(reversed(item["images"]))
    eager, other = root / reference["images"][prefix], root / item["images"][prefix]
    pixels = [np.asarray(Image.open(file).convert("RGB")).astype(int) for file in (eager, other)]
    difference = abs(pixels[0] - pixels[1]).max(axis=2)
    largest = int(difference.max())
    factor = 255 // largest if largest else 1
    drawn = io.BytesIO()
    Image.fromarray((difference * factor).astype("uint8")).save(drawn, "png", optimize=True)
    equal = f"{100 * float((difference == 0).mean()):.2f} %"
    brighter = f", {factor} times brighter" if largest and factor > 1 else ""
    return Comparison(
        item["name"],
        (
            Picture(eager.read_bytes(), "uncompiled", f"Image by ComfyUI without OneGraph: {reference['name']}"),
            Picture(other.read_bytes(), item["name"], f"Image through compiled graphs: {item['name']}"),
            Picture(
                drawn.getvalue(),
                f"difference{brighter}" if largest else "difference: none",
                f"Difference of the two images; the largest is {largest} of 255",
            ),
        ),
        f"Largest difference {largest} of 255 in any channel; {equal} of the pixels are equal. "
        f"{pixels[0].shape[1]}x{pixels[0].shape[0]} pixels.",
    )


def timeline(process: dict[str, Any], items: list[dict[str, Any]]) -> Timeline:
    """What a ComfyUI process did when."""
    ready = process["ready_s"]
    lanes = [Lane("ComfyUI starts", f"{ready:.1f} s", (Span(0.0, ready, "start", "start"),))]
    for item in items:
        start, end = item["start_s"], item["start_s"] + item["seconds"]
        prepared = [("compile", item["compile_s"]), ("restore", item["restore_s"])]
        told = [
            f"{what} {seconds:.2g} s" if seconds < 10 else f"{what} {seconds:.0f} s"
            for what, seconds in prepared
            if seconds
        ]
        spans = []
        at = start
        for what, seconds in prepared:
            if seconds:
                spans.append(Span(at, min(at + seconds, end), what, f"{what}, {seconds:.2f} s"))
                at = spans[-1].end
        runs = "eager" if item["name"].startswith("uncompiled") else "compiled"
        spans.append(Span(at, end, runs, f"{dict(LEGEND)[runs]}, {end - at:.1f} s"))
        lanes.append(Lane(item["name"], ", ".join([f"{item['seconds']:.1f} s", *told]), tuple(spans)))
    shown = {span.what for lane in lanes for span in lane.spans}
    return Timeline(
        process["name"][0].upper() + process["name"][1:],
        tuple(lanes),
        tuple((what, name) for what, name in LEGEND if what in shown),
        "Seconds from the start of the process. Compiling and restoring are drawn at the start of their queue item.",
    )


def page_of(report: dict[str, Any], root: Path) -> DemoPage:
    """The page for a report; `root` is the folder that names of images are relative to."""
    items = {item["name"]: item for item in report["queue_items"]}
    present = [c for c in COMPONENTS if any(report[field] for pair in FIELDS[c] for field in pair)]
    calls, starts = [], []
    for component in present:
        (eager, compiled), (compile_s, restore_s) = ([report[field] for field in pair] for pair in FIELDS[component])
        gain = f": {faster(eager / compiled)}" if eager and compiled else ""
        size = f" at {report['size_encoded']}" if component == "encoder" else ""
        calls.append(
            Group(
                NAMES[component] + size + gain,
                (
                    Bar(
                        f"uncompiled{median_of(report, component, 'eager')}",
                        eager,
                        "eager",
                        f"{eager:,.0f} ms" if eager else "not measured",
                    ),
                    Bar(
                        f"compiled{median_of(report, component, 'compiled')}",
                        compiled,
                        "compiled",
                        f"{compiled:,.0f} ms" if compiled else "not compiled",
                    ),
                ),
            )
        )
        starts.append(
            Group(
                NAMES[component].partition(",")[0],
                (
                    Bar("compile, once", compile_s, "compile", f"{compile_s:.1f} s" if compile_s else "not compiled"),
                    Bar("restore", restore_s, "restore", f"{restore_s:.2f} s" if restore_s else "not restored"),
                ),
            )
        )
    compile_s = sum(report[FIELDS[c][1][0]] or 0.0 for c in present)
    eager_step, step = (report[field] for field in FIELDS["base"][0])
    speed = faster(eager_step / step).split(" ", 1) if eager_step and step else None
    largest = report["max_abs_diff_255"]
    tiles = [
        Tile(f"{compile_s:.0f} s", "to compile, once"),
        Tile(f"{report['restore_all_s']:.2f} s", "to restore after the restart, first calls included"),
        Tile(str(report["compiles_after_restart"]), "compiles after the restart"),
        *([Tile(speed[0], f"{speed[1]}, a step of the base (medians)")] if speed else []),
        Tile(f"{largest} of 255", "largest difference to uncompiled images"),
    ]
    note = (f"At {report['sizes_rendered'][0]}.", busy_text(report))
    timed = timed_in(report["queue_items"])
    numbers = columns(timed)
    processes = [(p, [i for i in report["queue_items"] if i["process"] == p["name"]]) for p in report["processes"]]
    return DemoPage(
        title="OneGraph: compiled once, restored after a restart",
        lead=(
            "The same workflows in ComfyUI as it is, through graphs that OneGraph compiles, "
            "and in a second ComfyUI that restores them."
        ),
        images_note=RANDOM if report.get("random_weights") else "",
        tiles=tuple(tiles),
        comparisons=tuple(
            comparison(items[name], items[items[name]["reference"]], root)
            for name in SHOWN
            if name in items and items[name]["reference"] in items
        ),
        bars=(
            Bars("A call, uncompiled and compiled", tuple(calls), " ".join(filter(None, note))),
            Bars(
                "Until a graph is ready",
                tuple(starts),
                "Each graph was compiled once, and restored once after the restart; restoring includes the first call.",
            ),
        ),
        timelines=tuple(timeline(process, of_it) for process, of_it in processes),
        tables=(
            Table(
                "Queue items, one run each",
                (
                    "queue item",
                    numbers[0],
                    *(f"{name}, ms" for name in numbers[1:-1]),
                    numbers[-1],
                    "text of the nodes",
                ),
                tuple(row(item, timed) for item in report["queue_items"]),
                numbers_to=len(numbers),
            ),
        ),
        facts=tuple((name, value) for name, value in report["facts"]),
        command=report["command"],
    )


def html(page: DemoPage) -> str:
    """Render the page."""
    drawings = [(chart, Markup(timeline_svg(chart, f"time-{i}"))) for i, chart in enumerate(page.timelines)]
    return render(page, TEMPLATE, timelines=drawings, drawn=Markup(STYLE))


def write(report: dict[str, Any], root: Path, to: Path) -> Path:
    """Write the page; its path."""
    to.write_text(html(page_of(report, root)), encoding="utf-8")
    return to


def main() -> None:
    folder = ROOT / "build" / "demo"
    print(write(json.loads((folder / "report.json").read_text()), ROOT, folder / "report.html"))


if __name__ == "__main__":
    main()
