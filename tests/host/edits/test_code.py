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


def case_of(request: pytest.FixtureRequest, component: str, edit: str) -> Case:
    subject = request.getfixturevalue(component)
    assert isinstance(subject, Subject)
    return Case(subject, EDITS[edit], True, PREPARED.get(edit))


@pytest.mark.parametrize(("component", "edit"), one_in(4, [one for one in ALL if one[0] != "net"]))
def test_an_edit_before_a_run(component: str, edit: str, request: pytest.FixtureRequest) -> None:
    case_of(request, component, edit).before_a_run()


@pytest.mark.parametrize(("component", "edit"), one_in(4, [*ALL, *ENCODER]))
def test_an_edit_between_runs(component: str, edit: str, request: pytest.FixtureRequest) -> None:
    case_of(request, component, edit).between_runs()


@pytest.mark.parametrize(("component", "edit"), one_in(4, [*ALL, *ENCODER]))
def test_an_edit_between_calls(component: str, edit: str, request: pytest.FixtureRequest) -> None:
    case_of(request, component, edit).between_calls(KNOWN["function wrapper"])


@pytest.mark.parametrize(("component", "place", "edit"), one_in(3, AT_PLACES))
def test_an_edit_at_a_place(component: str, place: str, edit: str, request: pytest.FixtureRequest) -> None:
    case_of(request, component, edit).between_calls({**KNOWN, **UNKNOWN}[place])
