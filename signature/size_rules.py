"""Which sizes of a block's calls vary, and which follow from others: inferred from records, checked at each call.

A few recorded calls show columns of sizes. A column that never changes is fixed. Others are symbols, or follow from
symbols: the same, a multiple, more by a constant, a sum (`tokens = text + image`), a product (`tokens = height *
width`). A rule that holds in the records by accident makes the graph serve fewer calls, never a wrong one: whoever
calls it asks `fits` first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from .rule import LeafDim, Rule

if TYPE_CHECKING:
    import torch

MOST = 1 << 18  # the largest size that a graph is made for
_MOST_TRIED = 1 << 24  # elements of all tensors of a call that a graph is tried with
_SAMPLES = 5
_ENOUGH = 1 << 21  # elements of all tensors of a call that a graph is judged by: 680 tokens of 3072 channels
_UNCUT = 16  # up to here a size is that of a batch, of parts or of a few tokens, and stays
_PRIMES = (3, 29, 7, 53, 13, 37, 5, 19, 71, 11, 43)  # no sums and products of one another

Sizes: TypeAlias = Sequence[tuple[int, ...]]  # of each leaf: a tensor's shape, or a whole number alone


def sizes_of(leaves: Sequence[torch.Tensor | int]) -> tuple[tuple[int, ...], ...]:
    """Return the sizes of a call's leaves."""
    return tuple(leaf.shape if hasattr(leaf, "shape") else (leaf,) for leaf in leaves)


@dataclass(frozen=True)
class SizeRules:
    """The sizes of a graph's calls, inferred for a block, declared for a whole module (`declared`).

    Attributes:
        symbols: where each symbol is read.
        rules: of every size, by leaf and dimension.
        ranges: of each symbol, both ends included.
        example: the symbols' values in one of the records; code may rely on more than the rules say. Empty: unknown.
        bounds: pairs of symbols, the first of which is at most the second: ends of slices.
        steps: of which each symbol is a multiple, where a family declares that; empty: inferred rules have none.
    """

    symbols: tuple[LeafDim, ...]
    rules: dict[LeafDim, Rule]
    ranges: tuple[tuple[int, int], ...] = field(default=())
    example: tuple[int, ...] = ()
    bounds: tuple[tuple[int, int], ...] = ()
    steps: tuple[int, ...] = ()

    @classmethod
    def infer(cls, records: Sequence[Sizes], served: Sequence[Sizes] = ()) -> SizeRules:
        """Infer the rules from the sizes of some calls of one form.

        Args:
            served: sizes that the rules shall admit, too, and of which nobody has made a call.

        Raises:
            ValueError: there is no record, or they are of several forms.
        """
        admitted = [*records, *served]
        if not records or len({tuple(map(len, record)) for record in admitted}) != 1:
            raise ValueError("records of calls must be of one form, and there must be some")
        columns = {
            (leaf, dim): tuple(int(record[leaf][dim]) for record in admitted)
            for leaf, shape in enumerate(records[0])
            for dim in range(len(shape))
        }
        symbols: list[LeafDim] = []
        for place, column in columns.items():
            if Rule.of(column, [columns[one] for one in symbols]) is None:
                symbols.append(place)
        for place in tuple(symbols):  # those that follow from later ones, as tokens from the sides of an image
            fewer = [one for one in symbols if one != place]
            symbol_columns = [columns[one] for one in fewer]
            if all(Rule.of(column, symbol_columns) is not None for column in columns.values()):
                symbols = fewer
        symbol_columns = [columns[one] for one in symbols]
        rules = {
            place: rule for place, column in columns.items() if (rule := Rule.of(column, symbol_columns)) is not None
        }

        def telling(record: Sizes) -> tuple[bool, int, int]:
            values = [record[leaf][dim] for leaf, dim in symbols]
            return all(value > 1 for value in values), len({*values}), -sum(map(math.prod, record))

        record = max(records, key=telling)
        example = tuple(int(record[leaf][dim]) for leaf, dim in symbols)
        return cls(tuple(symbols), rules, ((1, MOST),) * len(symbols), example)

    def within(self, ranges: Sequence[tuple[int, int]]) -> SizeRules:
        """Return these rules for the ranges that a compiled graph serves."""
        if len(ranges) != len(self.symbols):
            raise ValueError(f"{len(ranges)} ranges for {len(self.symbols)} symbols")
        return replace(self, ranges=tuple(ranges))

    def bounded(self, pairs: Iterable[tuple[int, int]], records: Sequence[Sizes]) -> SizeRules:
        """Return these rules with those of the bounds that hold in all records."""
        values = [[record[leaf][dim] for leaf, dim in self.symbols] for record in records]
        holding = {(a, b) for a, b in pairs if all(one[a] <= one[b] for one in values)}
        return replace(self, bounds=tuple(sorted(holding | {*self.bounds})))

    def same(self, pairs: Mapping[int, int]) -> SizeRules:
        """Return these rules for calls in which symbols are the same as earlier ones, by their numbers."""
        kept = [number for number in range(len(self.symbols)) if number not in pairs]
        number_of = {number: kept.index(pairs.get(number, number)) for number in range(len(self.symbols))}

        def of_kept(values: Sequence[Any]) -> tuple[Any, ...]:
            return tuple(values[number] for number in kept[: len(values)])

        bounds = [(number_of[a], number_of[b]) for a, b in self.bounds]
        return replace(
            self,
            symbols=of_kept(self.symbols),
            rules={
                place: replace(rule, symbols=tuple(number_of[one] for one in rule.symbols))
                for place, rule in self.rules.items()
            },
            ranges=of_kept(self.ranges),
            example=of_kept(self.example) if self.example else (),
            bounds=tuple(dict.fromkeys((a, b) for a, b in bounds if a != b)),
        )

    def varies(self, leaf: int, dim: int) -> bool:
        """Tell whether a size differs from call to call."""
        return self.rules[leaf, dim].kind != "fixed"

    def fits(self, sizes: Sizes) -> bool:
        """Tell whether a call's sizes are such as the rules say. The call is of the recorded form."""
        values = [sizes[leaf][dim] for leaf, dim in self.symbols]
        in_range = all(low <= value <= high for value, (low, high) in zip(values, self.ranges, strict=True))
        in_steps = not any(value % step for value, step in zip(values, self.steps, strict=False))
        return in_range and in_steps and self.holds(sizes)

    def holds(self, sizes: Sizes) -> bool:
        """Tell whether a call's sizes follow from one another as in the records, in the graph's ranges or not.

        Where they do not, further records make rules that admit the call; ranges are what the block's code admits.
        """
        values = [sizes[leaf][dim] for leaf, dim in self.symbols]
        return all(sizes[leaf][dim] == rule.value(values) for (leaf, dim), rule in self.rules.items()) and all(
            values[a] <= values[b] for a, b in self.bounds
        )

    def samples(self, leaves: int) -> list[Sizes]:
        """Return sizes of calls that fit: what holds in all of them holds in each call that fits.

        Args:
            leaves: how many a call has, those without sizes, too.
        """
        samples: list[Sizes] = []
        for start in range(_SAMPLES):
            values = self._near([_PRIMES[(start + number) % len(_PRIMES)] for number in range(len(self.ranges))])
            for lower, upper in self.bounds:
                values[lower] = min(values[lower], values[upper])
            shapes = self.shapes(values)
            sizes = tuple(shapes.get(leaf, ()) for leaf in range(leaves))
            if self.fits(sizes):
                samples.append(sizes)
        return samples

    def example_sizes(self) -> dict[int, tuple[int, ...]]:
        """Return the sizes of each leaf that has any, by its number, of a small call: of the example, where it is one.

        Code may rely on more than the rules say, and so on sizes that a call had.

        Raises:
            ValueError: there is none.
        """
        if self.example:
            recorded = self.recorded_sizes()
            if sum(map(math.prod, recorded.values())) <= _MOST_TRIED:
                return recorded
        for least in (2, 4, 8, 16, 64, 256, 1024):
            shapes = self.shapes(self._near([least] * len(self.ranges)))
            if all(size >= 0 for shape in shapes.values() for size in shape):
                return shapes
        raise ValueError("no sizes fit the rules")

    def recorded_sizes(self) -> dict[int, tuple[int, ...]]:
        """Return the sizes of each leaf that has any, by its number, in the example."""
        return self.shapes(self.example)

    def _near(self, steps: Sequence[int]) -> list[int]:
        """The symbols' values that are so many steps, or the nearest in their ranges."""
        each = self.steps or (1,) * len(self.ranges)
        near = zip(steps, each, self.ranges, strict=True)
        return [min(max(low, many * step), high) for many, step, (low, high) in near]

    def shapes(self, values: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """Return the sizes of each leaf that has any, by its number, for the symbols' values."""
        shapes: dict[int, tuple[int, ...]] = {}
        for (leaf, _), rule in self.rules.items():
            shapes[leaf] = (*shapes.get(leaf, ()), rule.value(values))
        return shapes

    def slices_take_some(self, sizes: Sizes) -> bool:
        """Tell whether no slice of a call that fits leaves nothing, or one, of what it is taken from."""
        values = [sizes[leaf][dim] for leaf, dim in self.symbols]
        return all(values[b] - values[a] > 1 for a, b in self.bounds)

    def part(self, sizes: Sizes) -> Sizes | None:
        """Return the sizes of a smaller call that fits and can be cut from one that does, of its first tokens.

        At most a quarter of its elements, where the call has no more in what does not vary, and still enough to judge a
        graph by. None: the call itself has no more than enough, or cannot be cut.
        """
        part: Sizes | None = None
        values = [sizes[leaf][dim] for leaf, dim in self.symbols]
        most = min(_elements(sizes) // 4, _ENOUGH)
        for share in (4, 8, 16, 32, 64) if most > _ENOUGH // 64 else ():
            cut = [max(value // share, min(value, _UNCUT)) for value in values]
            shapes = self.shapes([max(low, one) for one, (low, _) in zip(cut, self.ranges, strict=True)])
            smaller = tuple(shapes.get(leaf, ()) for leaf in range(len(sizes)))
            within = all(0 < a <= b for pair in zip(smaller, sizes, strict=True) for a, b in zip(*pair, strict=True))
            if within and self.fits(smaller) and _elements(smaller) < _elements(part or sizes):
                part = smaller
                if _elements(part) <= most:
                    break
        return part

    def to_json(self) -> dict[str, Any]:
        """Return everything, JSON-ready."""
        rules = [[*place, *rule.to_json()] for place, rule in self.rules.items()]
        data: dict[str, Any] = {"symbols": [*map(list, self.symbols)], "rules": rules}
        data["ranges"] = [*map(list, self.ranges)]
        data |= {"example": [*self.example]} if self.example else {}
        return data | ({"bounds": [*map(list, self.bounds)]} if self.bounds else {})

    @classmethod
    def from_json(cls, data: Any) -> SizeRules:
        """Read what `to_json` made.

        Raises:
            ValueError: it is something else.
        """
        try:
            rules = {(int(leaf), int(dim)): Rule.from_json(rule) for leaf, dim, *rule in data["rules"]}
            size_rules = cls(
                tuple((int(leaf), int(dim)) for leaf, dim in data["symbols"]),
                rules,
                tuple((int(low), int(high)) for low, high in data["ranges"]),
                tuple(map(int, data.get("example", ()))),
                tuple((int(a), int(b)) for a, b in data.get("bounds", ())),
            )
            for rule in rules.values():
                rule.value([1] * len(size_rules.symbols))
            right = len(size_rules.ranges) == len(size_rules.symbols) and rules.keys() >= set(size_rules.symbols)
            right = right and len(size_rules.example) in (0, len(size_rules.symbols))
            right = right and all(0 <= one < len(size_rules.symbols) for pair in size_rules.bounds for one in pair)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ValueError(f"no rules of sizes: {data!r}") from error
        if not right:
            raise ValueError(f"no rules of sizes: {data!r}")
        return size_rules


def _elements(sizes: Sizes) -> int:
    return sum(map(math.prod, sizes))
