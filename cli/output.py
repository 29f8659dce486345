"""Printing for commands: plain, since names may hold what a terminal obeys, and messages what rich takes for markup."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.cells import cell_len

from ..common.memory import in_words
from ..common.plain_text import plain

NO_GRAPHS = (
    "No graphs yet. Run a workflow with Compile Model (OneGraph), or `onegraph bake WORKFLOW.json`, to make some."
)
# Of each command: one JSON document on standard output, and nothing else there.
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]

_LEAST_CELL = 18  # columns of a terminal, to which a cell is shortened before a column is dropped


def print_json(data: Any) -> None:
    """Print a JSON document, whose strings are escaped, so that no terminal obeys them."""
    typer.echo(json.dumps(data, indent=1))


def print_either(as_json: bool, data: Any, *lines: str, errors: Iterable[str] = ()) -> None:
    """Print a JSON document, or lines in its place, and errors."""
    if as_json:
        print_json(data)
        return
    for line in lines:
        print_line(line)
    for error in errors:
        print_error(error)


def size(count: int) -> str:
    """Write bytes for people, in the units of the page and the nodes.

    >>> size(1_500_000), size(3 << 30)
    ('1.4 MiB', '3.0 GiB')
    """
    return in_words(count) if count >= 1 << 30 else f"{count / 2**20:.1f} MiB"


def counted(count: int, noun: str = "graph") -> str:
    """Write how many there are.

    >>> counted(1), counted(0, "file")
    ('1 graph', '0 files')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"


def print_line(line: str) -> None:
    """Print a line whole: one that is broken at the terminal's width leaves no path to copy."""
    typer.echo(plain(line))


def print_error(text: str) -> None:
    """Print what went wrong where errors belong, so that standard output holds results alone."""
    typer.echo(f"Error: {plain(text)}", err=True)


def terminal_columns() -> int | None:
    """Return the width of the terminal that is written to. None: a file or a pipe, which gets everything whole."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def print_text(text: str) -> None:
    """Print a sentence that holds no path, wrapped at words on a terminal."""
    typer.echo(textwrap.fill(plain(text), terminal_columns() or sys.maxsize, break_on_hyphens=False))


def print_no_graphs(*folders: Path) -> None:
    """Tell that there are none, what makes some, and where they would be."""
    print_text(NO_GRAPHS)
    print_line(f"Looked in {', '.join(map(str, folders))}")


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]], drop: Sequence[str] = ()) -> None:
    """Print a table of plain text, a line for each row. rich's tables take 0.7 ms a row, and there may be thousands.

    Args:
        drop: columns that a terminal without room for all goes without, the least important first. Cells of the others
            are shortened in the middle, as models and paths differ at both ends.
    """
    cells = [[plain(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    kept = _fitted(widths, [header.index(name) for name in drop], terminal_columns() or sys.maxsize)
    edge, rule, cross, between = "│─┼…" if "utf" in (sys.stdout.encoding or "").lower() else "|-+~"
    lines = [
        f" {edge} ".join(_padded(row[column], width, between) for column, width in kept.items()).rstrip()
        for row in cells
    ]
    lines.insert(1, f"{rule}{cross}{rule}".join(rule * width for width in kept.values()))
    typer.echo("\n".join(lines))


def _fitted(widths: Sequence[int], drop: Iterable[int], most: int) -> dict[int, int]:
    """Choose columns and their widths, so that a line takes no more than `most`."""
    kept = dict(enumerate(widths))
    for column in drop:
        if sum(min(width, _LEAST_CELL) + 3 for width in kept.values()) - 3 <= most:
            break
        del kept[column]
    while sum(kept.values()) + 3 * len(kept) - 3 > most and max(kept.values()) > 1:
        kept[max(kept, key=kept.__getitem__)] -= 1
    return kept


def _padded(cell: str, width: int, between: str) -> str:
    if cell_len(cell) > width:
        left, right = cell[: len(cell) // 2], cell[len(cell) // 2 :]
        while left and cell_len(left + between + right) > width:
            left, right = (left[:-1], right) if len(left) > len(right) else (left, right[1:])
        cell = left + between + right
    return cell + " " * (width - cell_len(cell))
