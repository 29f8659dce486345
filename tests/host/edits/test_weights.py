"""Whatever another pack does to the weights and parts of a ControlNet or a VAE: the result is eager's of that model."""

from __future__ import annotations

import pytest
from support.edits.cases import named, one_in
from support.edits.judge import Case
from support.edits.subjects import Subject
from support.edits.weights import OF_VAE, REGISTERED, REPLACING, UNREGISTERED
from support.scenes.places import KNOWN, UNKNOWN

EDITS = {**REGISTERED, **UNREGISTERED, **OF_VAE}
WITHOUT_BIAS = ("bias added", "bias written into the table")  # no layer of a VAE is without
SQUARE = ("transposed", "expanded", "laid out anew")  # nor one's weight a matrix
OF_DECODER = tuple(name for name in EDITS if name not in (*WITHOUT_BIAS, *SQUARE))
OF_NET = tuple(name for name in EDITS if name not in OF_VAE)
# The encoder is of full size.
OF_ENCODER = (
    "block exchanged",
    "layer exchanged",
    "quant exchanged",
    "parameter set",
    "parameter written into the table",
    "data replaced",
    "negated",
    "weight_function appended",
)
BETWEEN_CALLS = ("block exchanged", "parameter written into the table", "data replaced", "weight_function appended")


def cases(*which: tuple[str, tuple[str, ...]]) -> list[tuple[str, str, bool]]:
    return [
        (component, edit, keeps)
        for component, edits in which
        for edit in edits
        for keeps in ((True, False) if edit in REPLACING | {*OF_VAE} else (True,))
    ]


FIRST = cases(("net", ("block exchanged", "negated", "bias added")), ("decoder", ("quant exchanged", "negated")))
BETWEEN_RUNS = cases(("net", OF_NET), ("decoder", OF_DECODER), ("encoder", OF_ENCODER))
IN_MID_RUN = cases(("net", OF_NET), ("decoder", OF_DECODER), ("encoder", BETWEEN_CALLS))
AT_PLACES = [(place, edit) for place in UNKNOWN if "inference" not in place for edit in (*BETWEEN_CALLS, "bias added")]


@pytest.mark.parametrize(("component", "edit", "keeps"), one_in(2, FIRST), ids=named)
def test_an_edit_before_a_run(subject: Subject, edit: str, keeps: bool) -> None:
    Case(subject, EDITS[edit], keeps).before_a_run()


@pytest.mark.parametrize(("component", "edit", "keeps"), one_in(4, BETWEEN_RUNS), ids=named)
def test_an_edit_between_runs(subject: Subject, edit: str, keeps: bool) -> None:
    Case(subject, EDITS[edit], keeps).between_runs()


@pytest.mark.parametrize(("component", "edit", "keeps"), one_in(4, IN_MID_RUN), ids=named)
def test_an_edit_between_calls(subject: Subject, edit: str, keeps: bool) -> None:
    """Of a sampling, or between two images of a batch."""
    Case(subject, EDITS[edit], keeps).between_calls(KNOWN["function wrapper"])


@pytest.mark.parametrize(("place", "edit"), one_in(3, AT_PLACES), ids=named)
def test_an_edit_of_a_controlnet_at_a_place(place: str, edit: str, net: Subject) -> None:
    Case(net, EDITS[edit], keeps=True).between_calls(UNKNOWN[place])
