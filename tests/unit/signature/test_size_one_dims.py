"""Sizes of 1 where another graph's calls have others, and the other way about."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onegraph.signature.size_one_dims import SizeOneDims, differing_size_one_dims
from onegraph.signature.size_rules import SizeRules

Sizes = tuple[tuple[int, ...], ...]
TENSORS = (0, 1, 2)


def call(batch: int, tokens: int, frames: int, text: int) -> Sizes:
    """As a block of Wan is called: tokens, timesteps, a table of positions; and a number."""
    return ((batch, tokens, 32), (batch, frames, 6, 32), (1, tokens + text, 4), (text,))


def rules(*records: Sizes, least: int = 1) -> SizeRules:
    found = SizeRules.infer(records)
    return found.within(
        [(least if place == (1, 1) else 1, high) for place, (_, high) in zip(found.symbols, found.ranges, strict=True)]
    )


ONE = rules(call(2, 8, 1, 5), call(1, 12, 1, 7), call(3, 40, 1, 9))
EACH = rules(call(2, 8, 4, 5), call(1, 12, 3, 7), call(3, 40, 8, 9), least=2)
numbers = st.integers(2, 50)


@settings(max_examples=80, deadline=None)
@given(st.tuples(st.integers(1, 50), st.integers(1, 50), numbers, st.integers(1, 50)))
def test_one_timestep_or_one_for_each_frame(sizes: tuple[int, int, int, int]) -> None:
    batch, tokens, frames, text = sizes
    one, each = call(batch, tokens, 1, text), call(batch, tokens, frames, text)
    assert ONE.fits(one) and EACH.fits(each) and not ONE.fits(each) and not EACH.fits(one)
    found = differing_size_one_dims(ONE, each, TENSORS)
    assert found == SizeOneDims(((2, 0),), ((1, 1),))
    assert found.fit(each) and not found.fit(one)
    found = differing_size_one_dims(EACH, one, TENSORS)
    assert found == SizeOneDims(((1, 1), (2, 0)), ())
    assert found.fit(one) and not found.fit(each)


@pytest.mark.parametrize("sizes", [call(1, 1, 1, 1), call(5, 1, 1, 3), call(1, 9, 1, 1)])
def test_a_batch_or_a_length_of_one_is_no_difference(sizes: Sizes) -> None:
    assert ONE.fits(sizes) and differing_size_one_dims(ONE, sizes, TENSORS) is None


def test_a_batch_that_no_graph_serves() -> None:
    """Code may need two; a graph for one of them is another."""
    narrow = ONE.within([(2, high) if number == 0 else (1, high) for number, (_, high) in enumerate(ONE.ranges)])
    found = differing_size_one_dims(narrow, call(1, 8, 1, 5), TENSORS)
    assert found == SizeOneDims(((0, 0), (1, 0), (1, 1), (2, 0)), ())
    assert found.fit(call(1, 30, 1, 2)) and not found.fit(call(2, 8, 1, 5))


def test_other_sizes_are_no_difference() -> None:
    tokens, timesteps, table, text = call(2, 8, 1, 5)
    assert differing_size_one_dims(ONE, (tokens, timesteps, (1, 99, 4), text), TENSORS) is None
    assert differing_size_one_dims(ONE, ((2, 8, 33), timesteps, table, text), TENSORS) is None


def test_where_a_symbol_is_read_is_the_broadcast_one() -> None:
    """The batch is read of the first tensor, which is the one that has one for all."""
    found = differing_size_one_dims(ONE, ((1, 8, 32), (3, 1, 6, 32), (1, 13, 4), (5,)), TENSORS)
    assert found is not None and (0, 0) in found.single and (1, 0) not in found.single


def test_numbers_are_no_sizes() -> None:
    fixed = rules(*(((batch, 8), (1,)) for batch in (2, 3, 5)))
    assert differing_size_one_dims(fixed, ((2, 8), (4,)), (0,)) is None
    assert differing_size_one_dims(fixed, ((2, 8), (4,)), (0, 1)) == SizeOneDims((), ((1, 0),))


def test_a_number_of_1_that_the_graph_was_not_compiled_for_is_a_difference() -> None:
    """As LTX's rows of timesteps for each frame, of which a text alone has one."""
    inferred = rules(*(((batch, rows, 8), (rows,)) for batch, rows in ((2, 6), (3, 4), (5, 9))))
    excluding = inferred.within([(1, 99), (2, 99)])
    assert differing_size_one_dims(inferred, ((2, 1, 8), (1,)), (0,)) is None
    assert differing_size_one_dims(excluding, ((2, 1, 8), (1,)), (0,)) == SizeOneDims(((0, 1),), ())
    numbers = rules(*(((batch, 8), (rows,)) for batch, rows in ((2, 6), (3, 4), (5, 9)))).within([(1, 99), (2, 99)])
    assert differing_size_one_dims(numbers, ((2, 8), (1,)), (0,)) == SizeOneDims(((1, 0),), ())


def test_there_and_back() -> None:
    found = SizeOneDims(((1, 1), (2, 0)), ((0, 3),))
    assert SizeOneDims.from_json(json.loads(json.dumps(found.to_json()))) == found
