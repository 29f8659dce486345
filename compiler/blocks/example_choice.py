"""Which sizes a block is captured with. A compiler takes what is the same in the example for the same at all times."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...signature.size_rules import SizeRules, Sizes

_MOST_EXAMPLES = 4
_MOST_TRIED = 8  # values of a symbol, and records, that examples are mixed of
_MOST_MIXED = 3  # symbols of an example that have the value of another record

_Values = tuple[int, ...]


def with_examples(rules: SizeRules, records: Sequence[Sizes]) -> Iterator[SizeRules]:
    """Yield rules with the examples to capture by, the best first: symbols differ and are more than 1.

    These are the example at hand and records, where they are such, and records in which a few symbols have values of
    other records, the fewest first. A block's code may refuse some: it may rely on more than the rules.
    """
    values = [*dict.fromkeys(tuple(int(record[leaf][dim]) for leaf, dim in rules.symbols) for record in records)]
    ways = filter(_tells_apart, (rules.example, *sorted(values, key=sum), *_mixed(values, len(rules.symbols))))
    for way in itertools.islice(dict.fromkeys(ways), _MOST_EXAMPLES):
        yield replace(rules, example=way)


def _mixed(values: Sequence[_Values], symbols: int) -> Iterator[_Values]:
    """Of each number of mixed symbols two at most: the first that is ordered as all records are, and the first."""
    numbers = range(symbols)
    ordered = [(a, b) for a, b in itertools.permutations(numbers, 2) if all(one[a] <= one[b] for one in values)]
    columns = [sorted({one[number] for one in values})[:_MOST_TRIED] for number in numbers]
    for count in range(1, _MOST_MIXED + 1):
        ways = [
            way
            for record, places in itertools.product(values[:_MOST_TRIED], itertools.combinations(numbers, count))
            for others in itertools.product(*(columns[place] for place in places))
            if _tells_apart(way := _with(record, places, others))
        ]
        yield from itertools.islice((way for way in ways if all(way[a] <= way[b] for a, b in ordered)), 1)
        yield from ways[:1]


def _with(record: _Values, places: Sequence[int], values: Sequence[int]) -> _Values:
    changed = dict(zip(places, values, strict=True))
    return tuple(changed.get(place, value) for place, value in enumerate(record))


def _tells_apart(values: Sequence[int]) -> bool:
    return all(value > 1 for value in values) and len({*values}) == len(values)
