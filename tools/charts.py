"""Bars as a picture of its own and time lines for the demo's page, as SVG with text that a screen reader reads.

A time line is as wide as its place in the page: horizontal places are percentages, so that text keeps its size on
a phone. A picture has its own paper, and colours for both themes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

from headless import host

host.import_pack()
from onegraph.cli.report.page import COLOURS, SERIES, Bars, Group  # noqa: E402

_DRAWN = """
.chart text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: var(--ink);
  paint-order: stroke; stroke: var(--paper); stroke-width: 3px; }
.chart .muted { fill: var(--muted); }
.chart .head { font-weight: 600; }
.chart .large { font-size: 15px; }
.chart .small { font-size: 12px; }
.chart .value { text-anchor: end; font-variant-numeric: tabular-nums; }
.chart .tick { text-anchor: middle; fill: var(--muted); font-size: 12px; }
.chart .track { fill: var(--track); }
.chart .grid { stroke: var(--line); stroke-width: 1; }
""" + "".join(f".{name} {{ fill: var(--{name}); background: var(--{name}); }}\n" for name in SERIES)
STYLE = COLOURS.rstrip("\n") + _DRAWN

_LINE = 20  # pixels of a line of text
_BAR = 10
_ROW = _LINE + _BAR + 8
_SEEN = 0.004  # of the length: seen, however small the value


@dataclass(frozen=True)
class OwnScales(Bars):
    """A bar chart each of whose groups has a scale of its own."""


@dataclass(frozen=True)
class Span:
    """From when to when something took place, seconds, and what (one of SERIES)."""

    start: float
    end: float
    what: str
    text: str


@dataclass(frozen=True)
class Lane:
    """A line of a time line: its name, what stands at its right end, its spans."""

    label: str
    text: str
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Timeline:
    """What took place when, in seconds from the start of a process. The legend names what its colours are."""

    title: str
    lanes: tuple[Lane, ...]
    legend: tuple[tuple[str, str], ...] = ()  # (one of SERIES, its name)
    note: str = ""

    @property
    def end(self) -> float:
        return max((span.end for lane in self.lanes for span in lane.spans), default=0.0)


def _percent(share: float) -> str:
    return f"{100 * share:.2f}".rstrip("0").rstrip(".") + "%"


def _svg(name: str, title: str, description: str, size: str, body: list[str]) -> str:
    return "\n".join(
        [
            f'<svg class="chart" {size} role="img" aria-labelledby="{name}-title {name}-text">',
            f'<title id="{name}-title">{escape(title)}</title>',
            f'<desc id="{name}-text">{escape(description)}</desc>',
            *body,
            "</svg>",
        ]
    )


def described(chart: Bars | Timeline) -> str:
    """All of a chart in words."""
    if isinstance(chart, Bars):
        lines = [f"{g.label}: {', '.join(f'{b.label} {b.text}' for b in g.bars)}." for g in chart.groups]
    else:
        lines = [
            f"{lane.label}: from second {lane.spans[0].start:.1f}, {lane.text}." for lane in chart.lanes if lane.spans
        ]
    return " ".join(lines)


def _scale(chart: Bars, group: Group) -> float:
    """The value whose bar is as long as there is room."""
    return (group.largest or 1.0) if isinstance(chart, OwnScales) else chart.largest


def bars_file(charts: tuple[Bars, ...], title: str) -> str:
    """Draw bar charts below each other as a file of its own, 760 pixels wide, readable on pages of either theme.

    Browsers tell a picture of the system's theme, and a site may show the other one: so it has its own paper.
    """
    width, names, bars, values, row, edge = 760, 250, 360, 440, 19, 16
    body: list[str] = []
    y = edge
    for chart in charts:
        body.append(f'<text class="head large" x="{edge}" y="{y + 14}">{escape(chart.title)}</text>')
        y += 32
        for group in chart.groups:
            scale = _scale(chart, group)
            body.append(f'<text x="{edge}" y="{y + 13}">{escape(group.label)}</text>')
            for bar in group.bars:
                body.append(f'<text class="muted" x="{names}" y="{y + 13}">{escape(bar.label)}</text>')
                length = 0.0
                if bar.value is not None:
                    length = max(_SEEN, bar.value / scale) * (width - values - edge)
                    place = f'x="{bars}" y="{y + 3}" height="{row - 7}" rx="2"'
                    body.append(f'<rect class="{bar.series}" {place} width="{length:.1f}"/>')
                body.append(f'<text x="{bars + length + 8:.1f}" y="{y + 13}">{escape(bar.text)}</text>')
                y += row
            y += 9
        if chart.note:
            body.append(f'<text class="muted small" x="{edge}" y="{y + 10}">{escape(chart.note)}</text>')
            y += 22
        y += 12
    whole = f'viewBox="0 0 {width} {y}" width="{width}" height="{y}" xmlns="http://www.w3.org/2000/svg"'
    words = " ".join(f"{chart.title}: {described(chart)}" for chart in charts)
    paper = '<rect width="100%" height="100%" rx="6" fill="var(--paper)"/>'
    return _svg("chart", title, words, whole, [f"<style>{STYLE}</style>", paper, *body]) + "\n"


def _step(seconds: float) -> float:
    """A round distance of ticks, for four or five of them."""
    rough = max(seconds, 1e-3) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    return float(next(power * m for m in (1, 2, 5, 10) if power * m >= rough))


def timeline_svg(chart: Timeline, name: str) -> str:
    """Draw a time line for a page: a row for each lane, seconds below."""
    whole = chart.end or 1.0
    body: list[str] = []
    height = len(chart.lanes) * _ROW
    step = _step(whole)
    ticks = [step * i for i in range(int(whole / step + 1e-9) + 1)]
    for tick in ticks:
        at = _percent(tick / whole)
        body.append(f'<line class="grid" x1="{at}" x2="{at}" y1="0" y2="{height}"/>')
    for i, lane in enumerate(chart.lanes):
        y = i * _ROW
        body.append(f'<text x="0" y="{y + 14}">{escape(lane.label)}</text>')
        body.append(f'<text class="value muted" x="100%" y="{y + 14}">{escape(lane.text)}</text>')
        body.append(f'<rect class="track" x="0" y="{y + _LINE}" width="100%" height="{_BAR}" rx="3"/>')
        for span in lane.spans:
            share = max(_SEEN, (span.end - span.start) / whole)
            body.append(
                f'<rect class="{span.what}" x="{_percent(span.start / whole)}" y="{y + _LINE}" '
                f'width="{_percent(share)}" height="{_BAR}"><title>{escape(span.text)}</title></rect>'
            )
    for tick in ticks:
        share = tick / whole
        anchor = "start" if share < 0.02 else "end" if share > 0.95 else "middle"
        place = f'x="{_percent(share)}" y="{height + 14}" style="text-anchor: {anchor}"'
        body.append(f'<text class="tick" {place}>{tick:g} s</text>')
    return _svg(name, chart.title, described(chart), f'width="100%" height="{height + _LINE + 2}"', body)
