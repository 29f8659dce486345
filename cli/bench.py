"""`onegraph bench`: eager and the backends side by side on one checkpoint."""

from __future__ import annotations

import json
import platform
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from ..common.errors import without_paths
from . import child
from .output import Json, print_error, print_json, print_line, print_table
from .output import size as in_megabytes
from .paths import comfyui_in, existing_file
from .report import page as report
from .report.bench import page_of as bench_page

CHOICES = ("eager", "inductor", "oneflow")
SHARED = "onegraph-bench.json"
ISSUES = "https://github.com/onegraph/ComfyUI-OneGraph/issues"


def _run(job: dict[str, Any], home: Path) -> dict[str, Any]:
    """Measure in a process of its own; `failed` holds its last line when it did not end well."""
    caches = {"ONEGRAPH_HOME": str(home), "TORCHINDUCTOR_CACHE_DIR": str(home / "inductor")}
    try:
        figures: dict[str, Any] = child.result("host.jobs.bench", json.dumps(job), environ=caches)
    except child.ChildFailedError as error:
        return {"failed": str(error)[:200]}
    return figures


def _command(checkpoint: Path, chosen: list[str], size: str, cpu: bool) -> str:
    """The command as others can repeat it: without this machine's folders."""
    device = " --cpu" if cpu else ""
    return f"onegraph bench {checkpoint.name} --comfyui ComfyUI --backends {','.join(chosen)} --size {size}{device}"


def _shared(machine: dict[str, Any], results: dict[str, Any], checkpoint: str) -> dict[str, Any]:
    """What others may see of a measurement: no path, no name of a file, a user or a machine.

    Args:
        checkpoint: the name of the file, without its ending.
    """
    import torch

    from ..common.version import __version__

    def plain(figures: dict[str, Any]) -> dict[str, Any]:
        texts = {
            name: without_paths(one).replace(checkpoint, "model") for name, one in figures.items() if type(one) is str
        }
        return figures | texts

    gpu = torch.cuda.is_available() and machine["device"] != "CPU"
    return {
        **machine,
        "memory_mib": torch.cuda.get_device_properties(0).total_memory // 2**20 if gpu else None,
        "cuda": torch.version.cuda if gpu else None,
        "os": platform.system(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "onegraph": __version__,
        "backends": {name: {run: plain(one) for run, one in both.items()} for name, both in results.items()},
    }


def bench(
    checkpoint: Annotated[Path, existing_file("A .safetensors file: a checkpoint, or a diffusion model alone.")],
    comfyui: Annotated[Path, typer.Option(metavar="FOLDER", envvar="COMFYUI_PATH", help="ComfyUI's folder.")],
    backends: Annotated[
        str, typer.Option(help="What to compare, with commas; eager is the uncompiled model.")
    ] = ",".join(CHOICES),
    size: Annotated[str, typer.Option(help="Width x height of the image, pixels.")] = "512x512",
    cpu: Annotated[bool, typer.Option("--cpu", help="Run on the CPU although there is a GPU.")] = False,
    custom_node: Annotated[
        str, typer.Option(help="A custom node pack to import first, for model families of its own.")
    ] = "",
    out: Annotated[Path | None, typer.Option(help="Write the figures to this JSON file too.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with charts to this file too.")] = None,
    share: Annotated[
        bool, typer.Option("--share", help=f"Write {SHARED} here, which names neither this machine nor its files.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure a model uncompiled and under each backend.

    First step, restart, step time and memory, in processes of their own. Your graphs are neither used nor changed. A
    backend that is slower than the uncompiled model is measured all the same.
    """
    chosen = [name.strip() for name in backends.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in CHOICES]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]} is none of {', '.join(CHOICES)}.")
    try:
        width, height = (int(side) // 8 * 8 for side in size.split("x"))
    except ValueError as error:
        raise typer.BadParameter(f"{size} is not a size; write it like 512x512.") from error
    comfyui = comfyui_in(comfyui)
    for written in (out, html):  # before minutes of measuring
        if written is not None and not written.parent.is_dir():
            raise typer.BadParameter(f"{written.parent} is no folder.")
    if html is not None and (missing_package := report.why_not()):
        print_error(missing_package)
        raise typer.Exit(1)
    import torch

    rows: list[tuple[str, ...]] = []
    results: dict[str, Any] = {}
    for name in chosen:
        with tempfile.TemporaryDirectory(prefix="onegraph-bench-") as folder:
            link = Path(folder) / "models" / checkpoint.name
            link.parent.mkdir()
            link.symlink_to(checkpoint.resolve())
            job = {
                "comfyui": str(comfyui), "checkpoint": str(link), "backend": name, "width": width,
                "height": height, "cpu": cpu or not torch.cuda.is_available(), "custom_node": custom_node,
            }  # fmt: skip
            if not as_json:
                print_line(f"measuring {name} ...")
            first = _run(job, Path(folder) / "home")
            again = _run(job, Path(folder) / "home") if "failed" not in first else first
        shown = "uncompiled" if name == "eager" else name
        results[name] = {"first": first, "again": again}
        if "failed" in again:
            rows.append((shown, "", "", "", "", f"failed: {again['failed']}"))
            continue
        row = (
            shown,
            f"{first['first_s']:.1f}",
            f"{again['first_s']:.2f}",
            f"{again['step_ms']:.0f}",
            in_megabytes(again["memory_bytes"]),
            again["said"],
        )
        rows.append(row)
    device = "CPU" if cpu or not torch.cuda.is_available() else torch.cuda.get_device_name()
    machine = {"device": device, "torch": torch.__version__, "size": f"{width}x{height}"}
    if out is not None:
        out.write_text(json.dumps({**machine, "backends": results}, indent=1) + "\n")
    if share:
        Path(SHARED).write_text(
            json.dumps(_shared(machine, results, checkpoint.stem), indent=1) + "\n", encoding="utf-8"
        )
    if html is not None:
        page = bench_page(checkpoint.name, f"{width}x{height}", results, _command(checkpoint, chosen, size, cpu))
        html.write_text(report.render(page), encoding="utf-8")
    code = 1 if all("failed" in one["again"] for one in results.values()) else 0
    if as_json:
        print_json({**machine, "backends": results})
        raise typer.Exit(code)
    print_table(
        ("backend", "first step s", "restored s", "step ms", "memory", "status"), rows, drop=("status", "memory")
    )
    print_line(
        f"{checkpoint.name}, {width}x{height}, on {device}; Python {platform.python_version()}, "
        f"torch {torch.__version__}. "
        "First step and restored: the first sampling step with an empty store and with a filled one."
    )
    if html is not None:
        print_line(f"to look at: {html}")
    if share:
        print_line(f"to send: {SHARED}, at {ISSUES}")
    raise typer.Exit(code)
