"""Rules between sizes: what records show is what calls are checked with."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onegraph.compiler.blocks.example_choice import with_examples
from onegraph.signature.rule import Rule
from onegraph.signature.size_rules import MOST, SizeRules, sizes_of

# As a block of Flux is called: image, text, both together, a vector, and a table of height and width.
CALLS = [(2, 12, 20, 29), (1, 8, 14, 7), (3, 18, 10, 50), (2, 22, 16, 13)]


def call(batch: int, height: int, width: int, text: int) -> tuple[tuple[int, ...], ...]:
    image = height * width
    return ((batch, image, 64), (batch, text, 64), (batch, 64), (1, image + text, 2, 2), (2 * batch,), (height, width))


RULES = SizeRules.infer([call(*one) for one in CALLS])


def test_what_the_records_show() -> None:
    kinds = {place: rule.kind for place, rule in RULES.rules.items()}
    assert RULES.symbols == ((0, 0), (0, 1), (1, 1), (5, 0), (5, 1))
    assert kinds[0, 2] == kinds[3, 0] == "fixed"
    assert RULES.rules[1, 0] == Rule("symbol", 0, (0,))
    assert RULES.rules[3, 1] == Rule("sum", 0, (1, 2))
    assert RULES.rules[4, 0] == Rule("multiple", 2, (0,))
    assert not RULES.varies(0, 2) and RULES.varies(3, 1)
    longer = SizeRules.infer([((size,), (size + 3,)) for size in (4, 9)])
    assert longer.rules[1, 0] == Rule("offset", 3, (0,))


@settings(max_examples=150, deadline=None)
@given(st.tuples(*[st.integers(1, 60)] * 4))
def test_any_call_of_the_kind_fits(sizes: tuple[int, int, int, int]) -> None:
    assert RULES.fits(call(*sizes))


@settings(max_examples=150, deadline=None)
@given(st.tuples(*[st.integers(1, 60)] * 4), st.sampled_from([p for p in RULES.rules if p[0] < 5]), st.integers(1, 9))
def test_one_size_that_is_another_does_not(sizes: tuple[int, int, int, int], place: tuple[int, int], more: int) -> None:
    given_sizes = [*map(list, call(*sizes))]
    given_sizes[place[0]][place[1]] += more
    assert not RULES.fits([tuple(one) for one in given_sizes])


@settings(max_examples=50, deadline=None)
@given(st.tuples(*[st.integers(1, 60)] * 4), st.integers(1, 9))
def test_rules_that_are_inferred_again_admit_all_that_they_did(sizes: tuple[int, int, int, int], rows: int) -> None:
    narrow = SizeRules.infer([(*call(*one), (4, one[1])) for one in CALLS])  # rows were 4, a length the height
    missed = (*call(7, 4, 6, 5), (4 + rows, 9))
    assert not narrow.holds(missed)
    rules = SizeRules.infer([missed], narrow.within(((1, MOST),) * 5).samples(7))
    assert rules.recorded_sizes() == dict(enumerate(missed))  # of a call that was made
    for values in ((4, sizes[1]), (4 + rows, 9), (17, 23)):
        assert rules.fits((*call(*sizes), values))
    assert {rules.rules[place] for place in narrow.rules if place[0] < 6} == {
        rule for place, rule in narrow.rules.items() if place[0] < 6
    }


def test_what_a_graph_is_asked_for_lies_in_its_ranges() -> None:
    rules = SizeRules.infer([((a, b), (b,), ()) for a, b in ((2, 9), (3, 7), (2, 4))])
    for ranges in (((1, MOST), (1, MOST)), ((2, 9), (5, 5)), ((40, 64), (2, 3))):
        samples = rules.within(ranges).samples(3)
        assert samples and all(map(rules.within(ranges).fits, samples))
        assert rules.within(ranges).holds(((1, 1000), (1000,), ())) and not rules.holds(((1, 9), (8,), ()))


def test_products_where_the_image_comes_last() -> None:
    """As in Anima: height and width come first, tokens follow from them."""
    records = [((b, h, w, 8), (1, h * w, 4), (b, h * w * 3 // 3)) for b, h, w, _ in CALLS]
    rules = SizeRules.infer(records)
    assert rules.rules[1, 1] == rules.rules[2, 1] == Rule("product", 0, (1, 2))
    assert rules.fits(((5, 7, 9, 8), (1, 63, 4), (5, 63))) and not rules.fits(((5, 7, 9, 8), (1, 64, 4), (5, 64)))


def test_products_where_the_sides_come_last() -> None:
    """As in Sana, whose block makes an image of its tokens: those are no size of their own."""
    rules = SizeRules.infer([((b, h * w, 4), (b, t, 4), (h,), (w,)) for b, h, w, t in CALLS])
    assert rules.symbols == ((0, 0), (1, 1), (2, 0), (3, 0))
    assert rules.rules[0, 1] == Rule("product", 0, (2, 3))
    small = rules.example_sizes()
    assert small[0][1] == small[2][0] * small[3][0]


def test_a_size_that_others_follow_from_is_one_of_its_own() -> None:
    """Three times the tokens would be a rule that there is none for, if tokens were a product."""
    rules = SizeRules.infer([((b, h * w), (h,), (w,), (3 * h * w,)) for b, h, w, _ in CALLS])
    assert (0, 1) in rules.symbols
    assert rules.fits(((2, 6), (2,), (3,), (18,))) and not rules.fits(((2, 6), (2,), (3,), (19,)))


def test_graphs_are_tried_at_sizes_of_a_record() -> None:
    """Code may rely on more than rules say; a call that is large is none to try."""
    assert RULES.example_sizes() == dict(enumerate(call(*CALLS[0])))
    assert RULES.recorded_sizes() == RULES.example_sizes()
    large = SizeRules.infer([call(batch, 40 * height, 40 * width, text) for batch, height, width, text in CALLS])
    assert large.recorded_sizes()[0][1] > large.example_sizes()[0][1] == 2
    bare = SizeRules.from_json({name: value for name, value in RULES.to_json().items() if name != "example"})
    assert bare.example_sizes()[0] == (2, 2, 64)


def test_ranges_are_checked() -> None:
    narrow = RULES.within([(2, 8), *RULES.ranges[1:]])
    assert narrow.fits(call(2, 8, 8, 8)) and not narrow.fits(call(1, 8, 8, 8)) and not narrow.fits(call(9, 8, 8, 8))
    assert not RULES.fits(call(1, MOST, 2, 1))
    with pytest.raises(ValueError, match="ranges"):
        RULES.within([(1, 2)])


def test_there_and_back() -> None:
    assert SizeRules.from_json(json.loads(json.dumps(RULES.to_json()))) == RULES


BROKEN: dict[str, Callable[[dict[str, Any]], object]] = {
    "no ranges": lambda data: data.pop("ranges"),
    "too few ranges": lambda data: data["ranges"].pop(),
    "an unknown rule": lambda data: data["rules"].append([0, 9, "square", 0, 1]),
    "a symbol that there is not": lambda data: data["rules"].append([0, 9, "symbol", 0, 77]),
    "a sum of one": lambda data: data["rules"].append([0, 9, "sum", 0, 1]),
    "a symbol without a rule": lambda data: data["rules"].pop(0),
    "a word": lambda data: data["symbols"].append("x"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_no_rules(how: str) -> None:
    data = json.loads(json.dumps(RULES.to_json()))
    BROKEN[how](data)
    with pytest.raises(ValueError, match="no rules"):
        SizeRules.from_json(data)


def test_records_of_several_forms() -> None:
    for records in ([], [((1, 2),), ((1, 2), (3,))], [((1, 2),), ((1,),)]):
        with pytest.raises(ValueError, match="one form"):
            SizeRules.infer(records)


def test_sizes_of_leaves() -> None:
    assert sizes_of([torch.zeros(2, 3), 7, torch.zeros(())]) == ((2, 3), (7,), ())


def prefixed(batch: int, tokens: int, prefix: int) -> tuple[tuple[int, ...], ...]:
    return ((batch, tokens, 8), (batch, 1), (prefix,))


ALONE = [prefixed(3, 29, 29), prefixed(1, 7, 7), prefixed(4, 50, 50)]  # the prefix is all there is


def test_examples_tell_the_symbols_apart() -> None:
    records = [prefixed(1, 393, 9), *ALONE]
    rules = SizeRules.infer(records)
    assert rules.example == (3, 29, 29)
    examples = [*with_examples(rules, records)]
    assert examples[0].example == (3, 393, 9)  # of two records; a prefix is never more than there are tokens
    for one in examples:
        assert min(one.example) > 1 and len({*one.example}) == 3
        assert (one.rules, one.symbols) == (rules.rules, rules.symbols)


def test_records_come_before_what_is_mixed_of_them() -> None:
    records = [prefixed(2, 12, 5), prefixed(1, 7, 3), prefixed(4, 50, 6)]
    rules = SizeRules.infer(records)
    assert [one.example for one in with_examples(rules, records)][:2] == [(2, 12, 5), (4, 50, 6)]


def test_no_example_tells_apart_what_never_differs() -> None:
    records = [prefixed(1, 9, 9), prefixed(2, 2, 9), prefixed(1, 1, 1)]  # nothing is told of 2 symbols but 9 and 9
    assert all(len({*one.example}) == len(one.example) for one in with_examples(SizeRules.infer(records), records))


def test_slices_that_take_nothing() -> None:
    rules = SizeRules.infer([prefixed(2, 12, 5), prefixed(1, 7, 3), prefixed(3, 40, 5)]).bounded([(2, 1)], [])
    assert rules.slices_take_some(prefixed(5, 12, 5))
    assert not rules.slices_take_some(prefixed(2, 12, 11))
    assert not rules.slices_take_some(prefixed(2, 12, 12))


def test_symbols_that_a_capture_takes_for_the_same() -> None:
    records = [call(*one) for one in CALLS]
    rules = RULES.bounded([(0, 1), (0, 2), (3, 1)], records).same({2: 1, 4: 3})
    assert rules.symbols == ((0, 0), (0, 1), (5, 0))
    assert rules.rules[1, 1] == Rule("symbol", 0, (1,))
    assert rules.rules[3, 1] == Rule("sum", 0, (1, 1))
    assert rules.example == tuple(RULES.example[number] for number in (0, 1, 3))
    assert rules.bounds == ((0, 1), (2, 1))
    assert rules.fits(((2, 9, 64), (2, 9, 64), (2, 64), (1, 18, 2, 2), (4,), (3, 3)))
    assert not rules.fits(((2, 9, 64), (2, 8, 64), (2, 64), (1, 17, 2, 2), (4,), (3, 3)))
    assert RULES.same({}) == RULES


def test_a_part_of_a_call_has_the_sizes_of_a_smaller_one() -> None:
    """Of two lengths and their sum; a batch, a few tokens and what does not vary stay as they are."""
    records = [((2, image, 64), (2, text, 64), (image + text, 3)) for image, text in ((40, 24), (96, 32))]
    rules = SizeRules.infer(records)
    assert rules.part(((2, 4096, 64), (2, 512, 64), (4608, 3))) == ((2, 1024, 64), (2, 128, 64), (1152, 3))
    assert rules.part(((2, 4096, 64), (2, 12, 64), (4108, 3))) == ((2, 512, 64), (2, 12, 64), (524, 3))
    assert rules.part(((2, 96, 64), (2, 32, 64), (128, 3))) is None, "small already"


def test_a_part_is_served_by_the_graph() -> None:
    records = [((1, tokens, 64),) for tokens in (40, 96)]
    whole = ((1, 1 << 17, 64),)
    rules = SizeRules.infer(records)
    assert rules.part(whole) == ((1, 1 << 15, 64),), "enough to judge by"
    assert rules.within([(1 << 16, 1 << 18)]).part(whole) == ((1, 1 << 16, 64),)
    assert rules.within([(1 << 17, 1 << 18)]).part(whole) is None
    assert SizeRules.infer([whole]).part(whole) is None, "of one size"
