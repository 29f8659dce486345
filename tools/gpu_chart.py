"""docs/pictures/gpu.svg: what a step takes on a GPU, and the first one of a new process, from benchmarks/results."""

from __future__ import annotations

from headless import host

host.import_pack()
import measured  # noqa: E402
from charts import OwnScales, bars_file  # noqa: E402

from onegraph.cli.report.page import Bar, Bars, Group  # noqa: E402

FILE = host.ROOT / "docs" / "pictures" / "gpu.svg"


def bars_of(eager: float | None, torch: float | None, ours: float, unit: str) -> tuple[Bar, ...]:
    """Bars of what was measured; behind ours, how many times eager's speed it is."""

    def text(value: float) -> str:
        digits = 0 if value >= 100 else 1 if value >= 10 else 2
        return f"{value:,.{digits}f} {unit}"

    given = (("uncompiled", eager, "eager"), ("torch.compile", torch, "torch"))
    others = tuple(Bar(label, value, series, text(value)) for label, value, series in given if value is not None)
    gain = f"  ({eager / ours:.2f}x)" if eager else ""
    return (*others, Bar("OneGraph", ours, "compiled", text(ours) + gain))


def steps() -> Bars:
    """A step of each model, milliseconds; each model has its own scale."""
    groups = tuple(
        Group(
            f"{one.model}, {one.weights}, {one.card}",
            bars_of(one.step["eager"], one.step.get("torch.compile"), one.step["OneGraph"], "ms"),
        )
        for one in measured.measured()
    )
    note = (
        "Full size, random weights, 1024x1024 where nothing else is said. The bars of each model have their own scale."
    )
    return OwnScales("The fastest step", groups, note)


def starts() -> Bars:
    """The first step of a new process that finds what an earlier one stored, seconds."""
    groups = tuple(
        Group(label, bars_of(None, first["torch.compile"], first["OneGraph"], "s"))
        for label, first in measured.restarts().items()
    )
    return Bars("The first step after a restart", groups)


def chart() -> str:
    return bars_file((steps(), starts()), "Diffusion models on a GPU: uncompiled, torch.compile and OneGraph")


def main() -> None:
    FILE.write_text(chart(), encoding="utf-8")
    print(FILE.relative_to(host.ROOT))


if __name__ == "__main__":
    main()
