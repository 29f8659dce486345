"""Printing for commands: as it is, since names and messages may hold what rich takes for markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text


def print_line(line: str) -> None:
    """Print a line whole: one that is broken at the terminal's width leaves no path to copy."""
    Console().print(line, markup=False, highlight=False, soft_wrap=True)


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table of plain text."""
    table = Table(*header)
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)
