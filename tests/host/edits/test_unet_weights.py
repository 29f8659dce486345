"""Whatever another pack does to a UNet's weights and parts, and wherever: the image is eager's of the same model."""

from __future__ import annotations

import pytest
from support.edits.judge import Case
from support.edits.places import KNOWN, UNKNOWABLE, UNKNOWN
from support.edits.subjects import Subject
from support.edits.weights import REGISTERED, REPLACING, UNREGISTERED

EDITS = {**REGISTERED, **UNREGISTERED}
PLACES = {**KNOWN, **UNKNOWN, **UNKNOWABLE}
ALIVE = [(name, alive) for name in EDITS for alive in ((True, False) if name in REPLACING else (False,))]


def named(case: object) -> str:
    return {True: "kept", False: "dropped"}[case] if isinstance(case, bool) else str(case)


@pytest.mark.parametrize(("edit", "keeps"), ALIVE, ids=named)
def test_an_edit_before_a_run(edit: str, keeps: bool, unet: Subject) -> None:
    Case(unet, EDITS[edit], keeps).before_a_run()


@pytest.mark.parametrize(("edit", "keeps"), ALIVE, ids=named)
def test_an_edit_between_runs(edit: str, keeps: bool, unet: Subject) -> None:
    Case(unet, EDITS[edit], keeps).between_runs()


@pytest.mark.parametrize(("edit", "keeps"), ALIVE, ids=named)
def test_an_edit_between_calls(edit: str, keeps: bool, unet: Subject) -> None:
    Case(unet, EDITS[edit], keeps).between_calls(KNOWN["function wrapper"])
