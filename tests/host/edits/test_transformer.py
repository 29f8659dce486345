"""Whatever another pack does to one block of a diffusion transformer: the latent is eager's of the same model."""

from __future__ import annotations

import pytest
from support.edits.cases import named, one_in
from support.edits.code import CODE, OF_TRANSFORMERS, PREPARED
from support.edits.edit import Edit
from support.edits.judge import Case
from support.edits.subjects import Subject
from support.edits.weights import REGISTERED, REPLACING, UNREGISTERED
from support.scenes.places import KNOWN, UNKNOWABLE, UNKNOWN

WITHOUT_BIAS = ("bias added", "bias written into the table")  # no layer of its blocks is without
WEIGHTS: dict[str, Edit] = {
    name: edit for name, edit in {**REGISTERED, **UNREGISTERED}.items() if name not in WITHOUT_BIAS
}
SOME_CODE: dict[str, Edit] = {
    name: {**CODE, **OF_TRANSFORMERS}[name]
    for name in (
        "eps of a norm", "forward hook", "forward pre-hook", "hook of every module", "forward of a layer",
        "_call_impl of a layer", "_compiled_call_impl of a layer", "a mark gives way", "subclass of the same name",
        "method of a block's class", "weight as a property", "vendored method",
        "vendored method under the host's name", "global of a method", "torch.nn.functional's silu",
        "mode around operations", "order of layers", "a layer more", "torch's cat", "Tensor's chunk",
    )
}  # fmt: skip
EDITS = {**WEIGHTS, **SOME_CODE}
ALIVE = [(name, keeps) for name in EDITS for keeps in ((True, False) if name in REPLACING else (True,))]
# What a pack does in the midst of a run.
IN_MID_RUN = (
    "block exchanged",
    "layer written into the table",
    "deep data replaced",
    "transposed",
    "weight_function appended",
    "forward hook",
    "global of a method",
)
AT_PLACES = [
    *((place, edit) for place in {**KNOWN, **UNKNOWN} for edit in IN_MID_RUN if place != "function wrapper"),
    # Nothing tells of code there, but each of these edits is registered.
    *((place, edit) for place in UNKNOWABLE for edit in REGISTERED if edit not in WITHOUT_BIAS),
]


def case_of(subject: Subject, edit: str, keeps: bool = True) -> Case:
    return Case(subject, EDITS[edit], keeps, PREPARED.get(edit))


@pytest.mark.parametrize(("edit", "keeps"), one_in(8, ALIVE), ids=named)
def test_an_edit_before_a_run(edit: str, keeps: bool, transformer: Subject) -> None:
    case_of(transformer, edit, keeps).before_a_run()


@pytest.mark.parametrize(("edit", "keeps"), one_in(4, ALIVE), ids=named)
def test_an_edit_between_runs(edit: str, keeps: bool, transformer: Subject) -> None:
    case_of(transformer, edit, keeps).between_runs()


@pytest.mark.parametrize(("edit", "keeps"), one_in(4, ALIVE), ids=named)
def test_an_edit_between_calls(edit: str, keeps: bool, transformer: Subject) -> None:
    case_of(transformer, edit, keeps).between_calls(KNOWN["function wrapper"])


@pytest.mark.parametrize(("place", "edit"), one_in(8, AT_PLACES), ids=named)
def test_an_edit_at_a_place(place: str, edit: str, transformer: Subject) -> None:
    case_of(transformer, edit).between_calls({**KNOWN, **UNKNOWN, **UNKNOWABLE}[place])
