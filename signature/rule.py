"""How one size of a call is known: it is fixed, a symbol, or follows from symbols."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

_MOST_FACTORS = 3

LeafDim: TypeAlias = tuple[int, int]  # leaf, dimension
RuleKind: TypeAlias = Literal["fixed", "symbol", "multiple", "fraction", "offset", "sum", "product"]


@dataclass(frozen=True)
class Rule:
    """How a size is known.

    Attributes:
        number: the fixed size, the factor, what is divided by (rounded up) or what is added; 0 where there is none.
        symbols: by their numbers.
    """

    kind: RuleKind
    number: int = 0
    symbols: tuple[int, ...] = ()

    @classmethod
    def of(cls, column: Sequence[int], columns: Sequence[Sequence[int]]) -> Rule | None:
        """Return the simplest rule by which a size follows from symbols in all records, or None."""
        return _inferred(tuple(column), [*map(tuple, columns)])

    def value(self, values: Sequence[int]) -> int:
        """Return the size for the symbols' values; symbolic ones give a symbolic size."""
        operands = [values[one] for one in self.symbols]
        match self.kind:
            case "fixed":
                return self.number
            case "symbol":
                return operands[0]
            case "multiple":
                return self.number * operands[0]
            case "fraction":
                return -(-operands[0] // self.number)
            case "offset":
                return self.number + operands[0]
            case "sum":
                return operands[0] + operands[1]
            case "product":
                return math.prod(operands)

    def to_json(self) -> list[Any]:
        """Return everything, JSON-ready."""
        return [self.kind, self.number, *self.symbols]

    @classmethod
    def from_json(cls, data: Any) -> Rule:
        """Read what `to_json` made. Raises TypeError or ValueError: it is something else."""
        kind, number, *symbols = data
        if kind not in get_args(RuleKind) or (kind == "fraction" and int(number) < 1):
            raise ValueError(f"no rule of a size: {data!r}")
        return cls(kind, int(number), tuple(map(int, symbols)))


def _inferred(column: tuple[int, ...], columns: Sequence[tuple[int, ...]]) -> Rule | None:
    return _fixed(column) or _following(column, columns)


def _fixed(column: tuple[int, ...]) -> Rule | None:
    return Rule("fixed", column[0]) if len(set(column)) == 1 else None


def _following(column: tuple[int, ...], columns: Sequence[tuple[int, ...]]) -> Rule | None:
    """How a column follows from the symbols' columns, the simplest way first."""
    numbers = range(len(columns))
    for one in numbers:
        if columns[one] == column:
            return Rule("symbol", symbols=(one,))
    for one in numbers:
        pairs = [*zip(column, columns[one], strict=True)]
        if len({size - base for size, base in pairs}) == 1:
            return Rule("offset", column[0] - columns[one][0], (one,))
        factor, rest = divmod(column[0], columns[one][0]) if columns[one][0] else (0, 1)
        if not rest and factor > 1 and all(size == factor * base for size, base in pairs):
            return Rule("multiple", factor, (one,))
    for a, b in itertools.combinations(numbers, 2):
        if all(size == columns[a][n] + columns[b][n] for n, size in enumerate(column)):
            return Rule("sum", 0, (a, b))
    for count in range(2, _MOST_FACTORS + 1):
        for some in itertools.combinations(numbers, count):
            if all(size == math.prod(columns[one][n] for one in some) for n, size in enumerate(column)):
                return Rule("product", 0, some)
    return None
