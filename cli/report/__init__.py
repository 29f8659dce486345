"""Pages with figures and pictures in one file: what `onegraph bench --html` and the demo write."""

from __future__ import annotations

from . import machine
from .charts import Bar, Bars, Group, Lane, Span, Timeline, bars_file, bars_svg, timeline_svg
from .page import Comparison, Page, Picture, Table, Tile, render, why_not

__all__ = [
    "Bar",
    "Bars",
    "Comparison",
    "Group",
    "Lane",
    "Page",
    "Picture",
    "Span",
    "Table",
    "Tile",
    "Timeline",
    "bars_file",
    "bars_svg",
    "machine",
    "render",
    "timeline_svg",
    "why_not",
]
