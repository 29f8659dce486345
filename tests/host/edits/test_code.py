"""Whatever another pack does to a live module's code and settings: the image is eager's of the same model."""

from __future__ import annotations

import pytest
from support.edits.cases import one_in
from support.edits.code import CODE, OF_TRANSFORMERS, PREPARED
from support.edits.judge import Case
from support.edits.subjects import Subject
from support.scenes.places import KNOWN, UNKNOWN

COMPONENTS = ("unet", "net", "decoder", "encoder")
EDITS = {**CODE, **OF_TRANSFORMERS}
ALL = [(component, edit) for component in COMPONENTS[:3] for edit in (EDITS if component != "decoder" else CODE)]
SOME = ("padding mode", "forward hook", "vendored method", "a mark gives way", "method of a layer's class")
ENCODER = [("encoder", edit) for edit in SOME]
AT_PLACES = [
    *(("unet", place, edit) for place in ("callback under no_grad", "patcher's prepare_state") for edit in SOME),
    *(("net", place, edit) for place in ("callback", "guider's inner_sample") for edit in SOME),
]


def case_of(subject: Subject, edit: str) -> Case:
    return Case(subject, EDITS[edit], True, PREPARED.get(edit))


@pytest.mark.parametrize(("component", "edit"), one_in(4, [one for one in ALL if one[0] != "net"]))
def test_an_edit_before_a_run(subject: Subject, edit: str) -> None:
    case_of(subject, edit).before_a_run()


@pytest.mark.parametrize(("component", "edit"), one_in(4, [*ALL, *ENCODER]))
def test_an_edit_between_runs(subject: Subject, edit: str) -> None:
    case_of(subject, edit).between_runs()


@pytest.mark.parametrize(("component", "edit"), one_in(4, [*ALL, *ENCODER]))
def test_an_edit_between_calls(subject: Subject, edit: str) -> None:
    case_of(subject, edit).between_calls(KNOWN["function wrapper"])


@pytest.mark.parametrize(("component", "place", "edit"), one_in(3, AT_PLACES))
def test_an_edit_at_a_place(subject: Subject, place: str, edit: str) -> None:
    case_of(subject, edit).between_calls({**KNOWN, **UNKNOWN}[place])
