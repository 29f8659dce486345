"""The code that is made for a form takes calls apart as the form says, and puts results together."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from support.forms import matcher

from onegraph.signature.call_tree import flatten
from onegraph.signature.matching import finisher, of_form, structured

OWN = (__name__.partition(".")[0],)


@dataclasses.dataclass(frozen=True)
class Pair:
    first: Any
    second: Any


def test_dtypes_and_dimensions_are_looked_at_apart() -> None:
    value = {"x": torch.ones(2, 3), "pair": Pair(torch.ones(4), (1, None)), "transformer_options": {"any": 1}}
    form, leaves = flatten(value, OWN)
    other = {**value, "x": torch.ones(2, 3, 1).half()}
    assert structured(form)(value) == leaves
    found = structured(form)(other)
    assert found is not None and not of_form(form)(found) and of_form(form)(leaves)
    assert matcher(form)(other) is None


@pytest.mark.parametrize("quote", ["it's", 'a"b', "x\ny", "{", "import os"])
def test_names_and_values_never_become_code(quote: str) -> None:
    value = {quote: [quote, torch.ones(1), {quote: True}]}
    form, leaves = flatten(value, OWN)
    assert matcher(form)(value) == leaves
    assert matcher(form)({f"{quote}.": value[quote]}) is None
    assert finisher(form, (None,), ())([], leaves) == value


def test_results_are_put_together_and_changes_written() -> None:
    form, _ = flatten([torch.ones(1), Pair(torch.ones(1), ()), {"k": (torch.ones(1),)}, None], OWN)
    changed, new, other = torch.zeros(1), torch.ones(1), torch.full((1,), 7.0)
    finish = finisher(form, (None, 1, None), (1,))
    found = finish([None, changed], (new, new + 1, other))
    assert found[0] is new and found[1].first is changed and found[2]["k"][0].item() == 2 and found[3] is None
    assert isinstance(found[1], Pair) and found[1].second == () and changed.item() == 7
    for outputs in ((new,), (new, new, other, other)):
        with pytest.raises(ValueError, match="unpack"):
            finish([None, changed], outputs)
    assert finisher(flatten((), OWN)[0], (), ())([], ()) == ()
