"""Edits of a live module that several nodes, several models or nested samplings use at the same time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.edits import subjects
from support.edits.cases import one_in
from support.edits.code import CODE
from support.edits.edit import Edit
from support.edits.judge import Case, assert_same, compiled_fully
from support.edits.subjects import Subject, nothing
from support.edits.weights import REGISTERED, UNREGISTERED
from support.scenes.places import KNOWN, UNKNOWABLE

EDITS: dict[str, Edit] = {**REGISTERED, **UNREGISTERED, **CODE}
SOME = (
    "block exchanged",
    "layer written into the table",
    "parameter set",
    "data replaced",
    "negated",
    "weight_function appended",
    "padding mode",
    "forward hook",
    "vendored method",
)


def same(subject: Subject, run: subjects.Run, what: str) -> None:
    assert_same(subject, run(None, nothing), subject.eager(None, nothing), what)


@pytest.mark.parametrize(
    ("component", "edit"), one_in(4, [(c, edit) for c in ("unet", "net", "decoder") for edit in SOME])
)
def test_two_nodes_on_one_model(subject: Subject, edit: str) -> None:
    """Each has seen the model at other times."""
    Case(subject, EDITS[edit], keeps=True)  # binds anew
    first, second = subject.compiled(), subject.compiled()
    compiled_fully(subject, first, "first")
    with EDITS[edit](subject.module, subject.roles, []):
        same(subject, second, "a new node, edited")
        same(subject, first, "the first node, edited")
    compiled_fully(subject, second, "undone")
    with EDITS[edit](subject.module, subject.roles, []):
        same(subject, first, "the first node, edited again")
    same(subject, second, "the second node saw none of it")
    same(subject, first, "undone")


@pytest.fixture(scope="module")
def another(unet: Subject, checkpoint: Callable[..., Path]) -> Subject:
    """A model of the same graph with other weights."""
    found = subjects.unet(checkpoint())
    with torch.inference_mode(False), torch.no_grad():
        for parameter in found.module.parameters():
            parameter.mul_(1.1)
    return found


@pytest.mark.parametrize("edit", SOME)
def test_two_models_that_share_a_graph(edit: str, unet: Subject, another: Subject) -> None:
    first, second = unet.compiled(), another.compiled()
    compiled_fully(unet, first, "first")
    compiled_fully(another, second, "second")
    with EDITS[edit](unet.module, unet.roles, []):
        same(another, second, "the other model")
        same(unet, first, "edited")
        same(another, second, "the other model again")
    same(unet, first, "undone")
    same(another, second, "the other model at the end")


@pytest.mark.parametrize("place", ["callback", "library's callback"])
@pytest.mark.parametrize("edit", ["parameter set", "block exchanged", "bias added"])
def test_a_sampling_inside_a_callback(edit: str, place: str, unet: Subject, another: Subject) -> None:
    """A pack edits the model, and samples with another one: the host nests no sampling of one model."""
    where = {**KNOWN, **UNKNOWABLE}[place]
    first, second = unet.compiled(), another.compiled()
    compiled_fully(unet, first, "first")
    inner: list[torch.Tensor] = []

    def sampled(run: subjects.Run, other: subjects.Run) -> torch.Tensor:
        with contextlib.ExitStack() as edited:

            def act() -> None:
                inner.append(other(None, nothing))
                edited.enter_context(EDITS[edit](unet.module, unet.roles, []))
                inner.append(other(None, nothing))

            return run(where, act)

    result = sampled(first, second)
    reference = sampled(unet.eager, another.eager)
    for number in range(2):
        assert_same(another, inner[number], inner[2 + number], f"inner sampling {number}")
    assert_same(unet, result, reference, "outer sampling")
    same(unet, first, "undone")
