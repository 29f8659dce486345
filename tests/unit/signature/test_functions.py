"""Functions that a block is called with: their results' sizes follow rules, and they are folded for comparisons."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
import torch

from onegraph.signature import call_tree
from onegraph.signature.call_tree import UnknownArgumentError, flatten, functions_of, rebuild
from onegraph.signature.functions import CalledFunctions, fold, folding, noting, reaches
from onegraph.signature.matching import structured
from onegraph.signature.size_rules import SizeRules

RECORDS = [((2, 5, 8), (3,)), ((3, 7, 8), (4,)), ((1, 11, 8), (6,))]  # a tensor and a whole number
RULES = SizeRules.infer(RECORDS)


def _one(x: Any) -> Any:
    return x


class Bound:
    def method(self) -> None: ...


@pytest.mark.parametrize("function", [_one, lambda: 3, Bound().method, functools.partial(_one, 2), len])
def test_whatever_a_function_does_its_form_is_one(function: Any) -> None:
    value = {"x": torch.ones(2), "attend": [function, 3]}
    form, leaves = flatten(value)
    assert call_tree.functions_in(form) == 1
    assert functions_of(form, value) == [function]
    assert call_tree.from_json(json.loads(json.dumps(call_tree.to_json(form)))) == form
    assert rebuild(form, leaves, functions=[_one])["attend"] == [_one, 3]
    assert structured(form)({"x": leaves[0], "attend": [_one, 4]}) == [leaves[0], 4]
    assert structured(form)({"x": leaves[0], "attend": [None, 4]}) is None


@pytest.mark.parametrize("value", [torch.nn.Linear(1, 1), torch.nn.Linear, type("Called", (), {"__call__": _one})()])
def test_what_can_be_called_and_holds_more_is_no_function(value: Any) -> None:
    with pytest.raises(UnknownArgumentError):
        flatten([value])


def test_another_function_in_a_list_is_seen() -> None:
    value = [_one, len]
    written = call_tree.watched(value)
    assert not written()
    value[0] = len
    assert written()


def test_numbers_below_one_are_part_of_the_form() -> None:
    forms = {flatten(number)[0] for number in (0, -1, 1, 7)}
    assert len(forms) == 3  # code asks whether there is a prefix at all
    form = flatten([0])[0]
    assert structured(form)([0]) == []
    assert structured(form)([1]) is None
    assert structured(form)([False]) is None
    assert structured(flatten([4])[0])([0]) is None
    assert call_tree.from_json(call_tree.to_json(form)) == form


def test_sizes_of_results_follow_rules() -> None:
    records = [(sizes, ((0, (sizes[0][0], sizes[0][1], 16)), (1, sizes[1]))) for sizes in RECORDS]
    called = CalledFunctions.infer(RULES, records)
    assert called.shapes([9, 10, 2]) == [[9, 10, 16], [2]]
    assert CalledFunctions.from_json(json.loads(json.dumps(called.to_json()))) == called


@pytest.mark.parametrize(
    ("results", "what"),
    [
        ([((0, (2,)),), ((0, (2,)), (0, (2,))), ((0, (2,)),)], "in some calls"),
        ([((0, (2,)),), ((1, (2,)),), ((0, (2,)),)], "in some calls"),
        ([((0, (2,)),), ((0, (2, 1)),), ((0, (2,)),)], "in some calls"),
        ([((0, "other"),)] * 3, "returns no tensor"),
        ([((0, "nothing"),), ((0, (2,)),), ((0, "nothing"),)], "in some calls"),
        ([((0, (17,)),), ((0, (4,)),), ((0, (99,)),)], "no rule"),
    ],
)
def test_what_no_graph_can_call_is_told(results: Any, what: str) -> None:
    with pytest.raises(UnknownArgumentError, match=what):
        CalledFunctions.infer(RULES, [*zip(RECORDS, results, strict=True)])


def test_what_functions_return_is_noted() -> None:
    x = torch.ones(2, 3)
    results: list[Any] = []
    same, half, two = noting([_one, lambda x: x.half(), lambda x: (x, x)], results, ())
    for function in (same, two, half, same):
        function(x)
    assert same(torch.ones(1)).shape == (1,)
    assert results == [(0, (2, 3)), (2, "other"), (1, "other"), (0, (2, 3)), (0, (1,))]


def test_a_function_may_return_nothing() -> None:
    results: list[Any] = []
    noting([lambda x: None], results, ())[0](torch.ones(2))
    assert results == [(0, "nothing")]
    called = CalledFunctions.infer(RULES, [(sizes, ((0, "nothing"), (1, (3,)))) for sizes in RECORDS])
    assert called.shapes([9, 10, 2]) == [None, [3]]
    assert CalledFunctions.from_json(json.loads(json.dumps(called.to_json()))) == called
    first, second = folding(2, [None, (3,)], ())
    assert first(torch.ones(2)) is None and second(torch.ones(2)).shape == (3,)


@pytest.mark.parametrize("shape", [(4, 6), (2, 3), (7,), (), (2, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_every_value_adds_to_what_is_folded(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensors = [torch.randn(4, 6, dtype=dtype), torch.randn(5, dtype=dtype), torch.tensor([3, 4])]
    folded = fold(tensors, shape)
    assert (folded.shape, folded.dtype) == (shape, dtype)
    assert torch.equal(folded, fold([one.t().contiguous().t() if one.ndim == 2 else one for one in tensors], shape))
    if 0 in shape:
        return
    for tensor in tensors:
        for place in range(tensor.numel()):
            changed = [one.clone() for one in tensors]
            changed[[one is tensor for one in tensors].index(True)].view(-1)[place] += 8
            assert not torch.equal(fold(changed, shape), folded)


def test_eager_folds_what_a_graph_folds() -> None:
    q, k = torch.randn(2, 3), torch.randn(3, 3)
    first, second = folding(2, [(2, 3), (4,)], ())
    assert torch.equal(first(q, 7, k=k, preferred=object(), transformer_options={"x": q}), fold([q, k], (2, 3)))
    assert torch.equal(second([q, (k,)]), fold([q, k], (4,)))


def test_a_function_that_holds_what_a_block_changes_is_told() -> None:
    x, other = torch.ones(4), torch.ones(4)
    held = {"all": [x[1:]]}

    def closure() -> Any:
        return held

    def default(kept: Any = x) -> Any:
        return kept

    class Keeps:
        def __init__(self) -> None:
            self.kept = x

        def method(self) -> Any:
            return self.kept

    for function in (closure, default, Keeps().method, functools.partial(_one, x), functools.partial(_one, x=[x])):
        assert reaches(function, [x])
        assert not reaches(function, [other])
    assert not reaches(closure, [x], options=held)
    assert not reaches(_one, [x])
