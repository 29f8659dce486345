"""A call by what is known, checked once more where that no longer holds."""

from __future__ import annotations

import pytest

from onegraph.common import reasons
from onegraph.runtime.calls.serve import Failed, serve
from onegraph.runtime.graphs.loaded_graph import CHANGED, Changed


@pytest.mark.parametrize(
    ("known", "changed", "wanted"), [(False, False, [True]), (True, False, [False]), (True, True, [False, True])]
)
def test_what_is_called_is_checked_first_unless_it_is_known(known: bool, changed: bool, wanted: list[bool]) -> None:
    checked: list[bool] = []

    def attempt(check: bool) -> str | Changed:
        checked.append(check)
        return CHANGED if changed and not check else "output"

    assert serve(attempt, known) == "output"
    assert checked == wanted


def test_an_attempt_that_raises_is_a_refusal() -> None:
    def attempt(check: bool) -> str:
        raise KeyError("no such input")

    assert serve(attempt, known=True) == Failed(reasons.CallFailed("KeyError", "'no such input'"))


def test_an_interrupt_goes_through() -> None:
    def attempt(check: bool) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        serve(attempt, known=False)
