"""Printing for commands: as it is, since names and messages may hold what rich takes for markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from ..common.reasons import Reason
    from ..graph_cache.integrity import Sound


def print_line(line: str) -> None:
    """Print a line whole: one that is broken at the terminal's width leaves no path to copy."""
    Console().print(line, markup=False, highlight=False, soft_wrap=True)


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table of plain text."""
    table = Table(*header)
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)


def describe(state: Sound | Reason) -> str:
    """Tell what was found of an entry, in a word and a clause."""
    from ..common.messages import damage, text
    from ..common.reasons import Damaged, Reason, UnreadableNow, Untrusted

    if isinstance(state, Damaged):
        return f"damaged: {damage(state)}"
    if isinstance(state, Untrusted):
        return f"not trusted: {text(state)}"
    if isinstance(state, UnreadableNow):
        return f"unreadable: {text(state)}"
    return text(state) if isinstance(state, Reason) else "sound"
