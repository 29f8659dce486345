"""A page of figures, and its HTML: one file that needs nothing else."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# What a bar shows; each is a colour of the page. They differ in lightness too, and every bar has its name.
SERIES = ("eager", "torch", "compiled", "compile", "restore", "start")
COLOURS = """
:root { --paper: #ffffff; --ink: #1f2328; --muted: #59636e; --line: #d1d9e0; --track: #eff2f5;
  --eager: #8c959f; --torch: #c2790a; --compiled: #0969da; --compile: #bc4c00; --restore: #1a7f37; --start: #d0d7de; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #0d1117; --ink: #f0f6fc; --muted: #9198a1; --line: #3d444d; --track: #212830;
    --eager: #7d8590; --torch: #d29922; --compiled: #4493f8; --compile: #f0883e; --restore: #3fb950; --start: #484f58; }
}
"""
_TEMPLATE = Path(__file__).with_name("page.html.j2")


@dataclass(frozen=True)
class Bar:
    """A value of a series (one of SERIES); None draws no bar. `text` is what stands at its right end."""

    label: str
    value: float | None
    series: str
    text: str


@dataclass(frozen=True)
class Group:
    """Bars of one thing, such as the calls of one component."""

    label: str
    bars: tuple[Bar, ...]

    @property
    def largest(self) -> float:
        """The largest value; 0 without any."""
        return max((bar.value or 0.0 for bar in self.bars), default=0.0)


@dataclass(frozen=True)
class Bars:
    """A bar chart; all of its groups share one scale, which starts at 0."""

    title: str
    groups: tuple[Group, ...]
    note: str = ""

    @property
    def largest(self) -> float:
        """The value whose bar is as long as there is room."""
        return max((group.largest for group in self.groups), default=0.0) or 1.0


@dataclass(frozen=True)
class Tile:
    """A figure that is read first, with its name."""

    value: str
    label: str


@dataclass(frozen=True)
class Table:
    """Rows of plain text. Columns from the second to `numbers_to` hold numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers_to: int = 0


@dataclass(frozen=True)
class Page:
    """What a page shows, from top to bottom. All strings are plain text."""

    title: str
    lead: str
    tiles: tuple[Tile, ...] = ()
    bars: tuple[Bars, ...] = ()
    tables: tuple[Table, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()  # versions and the machine
    command: str = ""


def why_not() -> str:
    """Say what to install first where pages cannot be made; empty where they can."""
    if importlib.util.find_spec("jinja2") is not None:
        return ""
    return "A page of figures needs Jinja2, which is not installed here; install it with: pip install jinja2"


def render(page: Page, template: Path = _TEMPLATE, **more: Any) -> str:
    """Render a page as HTML.

    Args:
        template: one that extends the usual one.
        more: what that takes besides.

    Raises:
        ModuleNotFoundError: Jinja2 is not installed; see `why_not`.
    """
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([template.parent, _TEMPLATE.parent]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template.name).render(page=page, colours=Markup(COLOURS), series=SERIES, **more)
