"""A sampling that raised and was caught in a node: the next one of the same prompt is checked like any other."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable

import pytest
import torch
from support.edits.judge import Case, assert_same, compiled_fully
from support.edits.subjects import Subject, nothing
from support.edits.weights import UNREGISTERED
from support.scenes.places import KNOWN, UNKNOWABLE
from torch.multiprocessing.reductions import StorageWeakRef

EDITS = ("layer written into the table", "parameter written into the table", "data replaced", "transposed", "negated")


class Failed(Exception):
    """Of a pack's own."""


def fail() -> None:
    raise Failed


def failed(run: Callable[..., torch.Tensor], place: str) -> None:
    with pytest.raises(Failed):
        run({**KNOWN, **UNKNOWABLE}[place], fail)


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("place", ["library's callback", "apply_model wrapper"])
@pytest.mark.parametrize("component", ["net", "unet"])
def test_the_next_sampling_sees_every_edit(subject: Subject, place: str, edit: str) -> None:
    Case(subject, UNREGISTERED[edit], keeps=True)  # binds anew
    fast = subject.compiled()
    plain = compiled_fully(subject, fast, "before")
    failed(fast, place)
    with UNREGISTERED[edit](subject.module, subject.roles, []):
        result = fast(None, nothing)
        assert_same(subject, result, subject.eager(None, nothing), "edited after a sampling that failed")
    assert_same(subject, compiled_fully(subject, fast, "undone"), plain, "undone")


@pytest.mark.parametrize("component", ["net", "unet"])
def test_it_lets_go_of_the_weights(subject: Subject) -> None:
    fast = subject.compiled()
    compiled_fully(subject, fast, "before")
    failed(fast, "library's callback")
    layer = subject.module.get_submodule(subject.roles["deep"])
    old = StorageWeakRef(layer.weight.untyped_storage())
    layer.weight.data = layer.weight.data.clone()
    gc.collect()
    assert old.expired()
    compiled_fully(subject, fast, "after")


@pytest.mark.parametrize("edit", EDITS)
def test_a_decode_that_failed(edit: str, decoder: Subject) -> None:
    """The host decodes in tiles where the first way raised, and so may find the edit in the midst of a run."""
    fast = decoder.compiled()
    compiled_fully(decoder, fast, "before")
    with contextlib.suppress(Failed):
        fast(KNOWN["callback"], fail)
    if edit in ("transposed",):
        edit = "block written into the table"  # no weight of a VAE is a matrix
    with UNREGISTERED[edit](decoder.module, decoder.roles, []):
        assert_same(decoder, fast(None, nothing), decoder.eager(None, nothing), "edited after a decode that failed")
