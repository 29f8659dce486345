"""The page of `onegraph bench`."""

from __future__ import annotations

from typing import Any

from . import machine
from .page import Bar, Bars, Group, Page, Table, Tile


def _bar(label: str, value: float, series: str, unit: str) -> Bar:
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return Bar(label, value, series, f"{value:,.{digits}f} {unit}")


def _apart(results: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The backends that were measured, and why others were not."""
    failed = {name: both["again"]["failed"] for name, both in results.items() if "failed" in both["again"]}
    return {name: both for name, both in results.items() if name not in failed}, failed


def _tiles(measured: dict[str, Any]) -> list[Tile]:
    eager = measured.get("eager")
    if eager is None:
        return []
    tiles = []
    for name, both in measured.items():
        if name != "eager":
            tiles.append(
                Tile(f"{eager['again']['step_ms'] / both['again']['step_ms']:.2f}x", f"faster than uncompiled, {name}")
            )
            tiles.append(Tile(f"{both['again']['first_s']:.2f} s", f"first step of a new process, {name}"))
    return tiles


def page_of(checkpoint: str, size: str, results: dict[str, Any], command: str) -> Page:
    """Make the page of what was measured.

    Args:
        results: by backend, `first` and `again`: Figures of host/jobs/bench.py as a dictionary, or {"failed": why}.
    """
    measured, failed = _apart(results)

    def bars(figure: str, unit: str, scale: float = 1.0) -> tuple[Bar, ...]:
        return tuple(
            _bar(name, both["again"][figure] * scale, "eager" if name == "eager" else "compiled", unit)
            for name, both in measured.items()
        )

    starts = tuple(
        Group(
            name,
            (
                _bar("empty store", both["first"]["first_s"], "eager" if name == "eager" else "compile", "s"),
                _bar("filled store", both["again"]["first_s"], "eager" if name == "eager" else "restore", "s"),
            ),
        )
        for name, both in measured.items()
    )
    rows = [
        (
            name,
            f"{both['first']['first_s']:.2f}",
            f"{both['again']['first_s']:.2f}",
            f"{both['again']['step_ms']:.1f}",
            f"{both['again']['memory_bytes'] / 1e6:,.0f}",
            both["again"]["said"],
        )
        for name, both in measured.items()
    ]
    rows += [(name, "", "", "", "", f"failed: {why}") for name, why in failed.items()]
    charts = (
        Bars("A sampling step, batch 2", (Group("mean of the later steps", bars("step_ms", "ms")),)),
        Bars(
            "The first step of a process", starts, "With compiling into an empty store, or restoring from a filled one."
        ),
        Bars("Memory", (Group("what sampling adds at its peak", bars("memory_bytes", "MB", 1e-6)),)),
    )
    return Page(
        title=f"{checkpoint}, {size}",
        lead="A model's sampling, uncompiled and under the backends, each in processes of its own.",
        tiles=tuple(_tiles(measured)),
        bars=charts if measured else (),
        tables=(
            Table(
                "Backends",
                ("backend", "first step, s", "restored, s", "step, ms", "memory, MB", "status"),
                tuple(rows),
                numbers_to=4,
            ),
        ),
        facts=(("checkpoint", checkpoint), ("size", f"{size} pixels"), *machine.facts()),
        command=command,
    )
