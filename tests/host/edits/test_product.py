"""The product of what changes, who changes it and when, for resident and streamed weights, checked before the launch
and after it: whatever happens between two calls, the latent is eager's with the same change.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.comfyui import pages
from support.edits import subjects
from support.edits.cases import is_chosen
from support.edits.code import CODE, OF_TRANSFORMERS
from support.edits.edit import Dropped, Edit
from support.edits.moments import AFTER_A_CALL, AT, OF_ALL, OF_BLOCKS
from support.edits.subjects import Run, Subject
from support.edits.weights import REGISTERED, UNREGISTERED
from support.scenes.judge import OTHER, SAME, distance

from onegraph.graph_cache.store import Store
from onegraph.runtime.obtain import registry as registry_module
from onegraph.runtime.obtain.registry import Registry
from onegraph.runtime.policy import ANY_SPEED

WHAT: dict[str, Edit] = {
    name: {**CODE, **OF_TRANSFORMERS, **REGISTERED, **UNREGISTERED}[name]
    for name in (
        "values in place", "parameter set", "data replaced", "storage replaced", "memory freed and taken anew",
        "eps of a norm", "forward of a layer",
        "method of a block's class", "forward hook", "layer exchanged", "layer written into the table",
        "order of layers",
    )
}  # fmt: skip
WHO = {**OF_BLOCKS, **AFTER_A_CALL}
CASES = [
    *(
        (subject, who, when, what)
        for subject in ("transformer", "streamed")
        for who, when, what in itertools.product(OF_BLOCKS, AT, WHAT)
    ),
    *(
        (subject, who, "between steps", what)
        for subject in ("transformer", "streamed", "unet")
        for who, what in itertools.product(AFTER_A_CALL, WHAT)
    ),
    *(("unet", who, when, what) for who, when, what in itertools.product(OF_ALL, AT, WHAT)),
]
IN_DEFAULT = 8  # one in so many


@pytest.fixture(scope="module")
def streamed(transformer: Subject) -> Iterator[Subject]:
    """The same model with room for the pages of a part of it; its graphs are those of the resident one."""
    with pytest.MonkeyPatch.context() as patching, pages.simulated(patching):
        yield subjects.transformer(room=0.4)


@pytest.fixture(scope="module")
def registries(graphs_home: Path) -> dict[bool, Registry]:
    """One whose graphs are launched before the check, and one whose graphs are launched after it."""
    behind = dataclasses.replace(ANY_SPEED, checks_behind_on=("cpu",))
    return {one: Registry(Store(graphs_home), policy=behind if one else ANY_SPEED) for one in (True, False)}


@pytest.fixture(scope="module")
def compiled() -> dict[str, Run]:
    return {}


@pytest.mark.parametrize(
    ("subject", "who", "when", "what"),
    [
        pytest.param(*case, marks=[] if is_chosen(IN_DEFAULT, repr(case)) else [pytest.mark.full], id="-".join(case))
        for case in CASES
    ],
)
def test_a_change(
    subject: str,
    who: str,
    when: str,
    what: str,
    registries: dict[bool, Registry],
    compiled: dict[str, Run],
    request: pytest.FixtureRequest,
) -> None:
    model: Subject = request.getfixturevalue(subject)
    behind = is_chosen(2, f"{subject} {who} {when} {what}")
    registry_module.use(registries[behind])
    place = functools.partial(WHO[who], at=AT[when])
    run = compiled.get(f"{subject} {behind}") or compiled.setdefault(f"{subject} {behind}", model.compiled())

    def edited(run: Run) -> torch.Tensor:
        with contextlib.ExitStack() as undone:
            return run(place, lambda: undone.enter_context(WHAT[what](model.module, model.roles, Dropped())))

    result, reference = edited(run), edited(model.eager)
    told = model.report().text()
    assert subject == "unet" or model.report().blocks.calls, told
    apart = distance(result, reference)
    assert apart < SAME, f"relative L2 {apart:.3g} ({told})"
    if subject != "streamed":  # pages keep what they were filled with, with and without graphs
        assert distance(reference, model.eager(None, lambda: None)) > OTHER, "the change shows nothing"
