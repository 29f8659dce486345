"""Printing for commands: plain, since names may hold what a terminal obeys, and messages what rich takes for markup."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer
from rich.cells import cell_len

from ..common.memory import in_words
from ..common.plain_text import plain

# Of each command: one JSON document on standard output, and nothing else there.
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]


def print_json(data: Any) -> None:
    """Print a JSON document, whose strings are escaped, so that no terminal obeys them."""
    typer.echo(json.dumps(data, indent=1))


def print_either(as_json: bool, data: Any, *lines: str) -> None:
    """Print a JSON document, or lines in its place."""
    if as_json:
        print_json(data)
    else:
        for line in lines:
            print_line(line)


def size(count: int) -> str:
    """Write bytes for people, in the units of the page and the nodes.

    >>> size(1_500_000), size(3 << 30)
    ('1.4 MiB', '3.0 GiB')
    """
    return in_words(count) if count >= 1 << 30 else f"{count / 2**20:.1f} MiB"


def print_line(line: str) -> None:
    """Print a line whole: one that is broken at the terminal's width leaves no path to copy."""
    typer.echo(plain(line))


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table of plain text, a line for each row. rich's tables take 0.7 ms a row, and there may be thousands."""
    cells = [[plain(cell) for cell in row] for row in (header, *rows)]
    lengths = [[cell_len(cell) for cell in row] for row in cells]
    widths = [max(column) for column in zip(*lengths, strict=True)]
    edge, rule, cross = ("│", "─", "┼") if "utf" in (sys.stdout.encoding or "").lower() else ("|", "-", "+")
    lines = [
        f" {edge} ".join(cell + " " * (width - length) for cell, length, width in zip(*row, strict=True)).rstrip()
        for row in zip(cells, lengths, [widths] * len(cells), strict=True)
    ]
    lines.insert(1, f"{rule}{cross}{rule}".join(rule * width for width in widths))
    typer.echo("\n".join(lines))
