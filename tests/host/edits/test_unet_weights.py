"""Whatever another pack does to a UNet's weights and parts, and wherever: the image is eager's of the same model."""

from __future__ import annotations

import pytest
from support.edits.cases import named, one_in
from support.edits.judge import Case
from support.edits.subjects import Subject
from support.edits.weights import REGISTERED, REPLACING, UNREGISTERED
from support.scenes.places import KNOWN, UNKNOWABLE, UNKNOWN

EDITS = {**REGISTERED, **UNREGISTERED}
ALIVE = [(name, alive) for name in EDITS for alive in ((True, False) if name in REPLACING else (False,))]
# What a pack does in the midst of a run: replaces, moves, computes.
IN_MID_RUN = (
    "layer exchanged",
    "block written into the table",
    "deep parameter set",
    "deep data replaced",
    "transposed",
    "bias added",
    "weight_function appended",
)
AT_PLACES = [
    *((place, edit) for place in {**KNOWN, **UNKNOWN} for edit in IN_MID_RUN if place != "function wrapper"),
    # Nothing tells of code there, but each of these edits is registered.
    *((place, edit) for place in UNKNOWABLE for edit in REGISTERED),
]


@pytest.mark.parametrize(("edit", "keeps"), one_in(4, ALIVE), ids=named)
def test_an_edit_before_a_run(edit: str, keeps: bool, unet: Subject) -> None:
    Case(unet, EDITS[edit], keeps).before_a_run()


@pytest.mark.parametrize(("edit", "keeps"), one_in(5, ALIVE), ids=named)
def test_an_edit_between_runs(edit: str, keeps: bool, unet: Subject) -> None:
    Case(unet, EDITS[edit], keeps).between_runs()


@pytest.mark.parametrize(("edit", "keeps"), one_in(5, ALIVE), ids=named)
def test_an_edit_between_calls(edit: str, keeps: bool, unet: Subject) -> None:
    Case(unet, EDITS[edit], keeps).between_calls(KNOWN["function wrapper"])


@pytest.mark.parametrize(("place", "edit"), one_in(5, AT_PLACES), ids=named)
def test_an_edit_at_a_place(place: str, edit: str, unet: Subject) -> None:
    """The old part is kept: an address that is free again may be given to what comes next, and hide a stale one."""
    Case(unet, EDITS[edit], keeps=True).between_calls({**KNOWN, **UNKNOWN, **UNKNOWABLE}[place])
