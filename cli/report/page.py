"""A page of figures and pictures, and its HTML: one file that needs nothing else."""

from __future__ import annotations

import importlib.util
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .charts import STYLE, Bars, Timeline, bars_svg, timeline_svg


@dataclass(frozen=True)
class Tile:
    """A figure that is read first, with its name."""

    value: str
    label: str


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
class Table:
    """Rows of plain text. Columns from `numbers_from` to `numbers_to` hold numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers_from: int = 1
    numbers_to: int = 0


@dataclass(frozen=True)
class Page:
    """What a page shows, from top to bottom. All strings are plain text."""

    title: str
    lead: str
    tiles: tuple[Tile, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    bars: tuple[Bars, ...] = ()
    timelines: tuple[Timeline, ...] = ()
    tables: tuple[Table, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()  # versions and the machine
    command: str = ""


def why_not() -> str:
    """What to do first, in a sentence, where pages cannot be made; empty where they can."""
    if importlib.util.find_spec("jinja2") is not None:
        return ""
    return "A page of figures needs Jinja2, which is not installed here; install it with: pip install jinja2"


def render(page: Page) -> str:
    """The page as HTML.

    Raises:
        ModuleNotFoundError: Jinja2 is not installed; see `why_not`.
    """
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    drawings: dict[str, Any] = {
        "bars": [(chart, Markup(bars_svg(chart, f"bars-{i}"))) for i, chart in enumerate(page.bars)],
        "timelines": [(chart, Markup(timeline_svg(chart, f"time-{i}"))) for i, chart in enumerate(page.timelines)],
    }
    return environment.get_template("page.html.j2").render(page=page, style=Markup(STYLE), **drawings)
