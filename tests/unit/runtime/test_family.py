"""What a family's inputs and axes make of a call."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from onegraph.common.refused import Refused
from onegraph.runtime.family import Axis, Family, Input, Shapes, Tensors
from onegraph.signature.declared import Dim


class Pictures(Family):
    component = "pictures"
    arguments = ("x", "context", "mode")
    neutral = frozenset({"mode"})

    def inputs(self, module: torch.nn.Module, given: Tensors) -> Sequence[Input]:
        return (
            Input("x", ("batch", None, "height", "width")),
            Input("context", ("batch", "tokens", 8), dtype="float32"),
            Input("mask", ("batch", "height/2", "width/2"), optional=True),
        )

    def axes(self, module: torch.nn.Module, given: Tensors) -> tuple[Sequence[Axis], str]:
        sides = (Axis(name, 8, 64, 4, pixels=8) for name in ("height", "width"))
        return [Axis("batch", 1, 4, text="batch {}"), *sides, Axis("tokens", 1, 77, text="{} tokens")], "any size"


MODULE, FAMILY = torch.nn.Identity(), Pictures()
X, CONTEXT = torch.zeros(2, 3, 16, 24), torch.zeros(2, 7, 8)


@pytest.mark.parametrize(
    ("shapes", "label", "height"),
    [("any size", "any size", Dim("height", 8, 64, 4)), ("exact", "192x128 batch 2 7 tokens", Dim("height", 16, 16))],
)
def test_a_range_for_a_call(shapes: Shapes, label: str, height: Dim) -> None:
    ranged = FAMILY.ranged(MODULE, {"x": X.half(), "context": CONTEXT}, shapes)
    assert (ranged.label, ranged.shapes.dim("height"), ranged.shapes.dim("height").pixels) == (label, height, 8)
    assert ranged.sizes == {"batch": 2, "height": 16, "width": 24, "tokens": 7}
    assert [(spec.name, spec.dims, spec.dtype) for spec in ranged.shapes.inputs] == [
        ("x", ("batch", 3, "height", "width"), "float16"),
        ("context", ("batch", "tokens", 8), "float32"),
    ]


@pytest.mark.parametrize("shapes", ["any size", "exact"])
def test_inputs_that_disagree_are_refused_in_terms_of_the_first(shapes: Shapes) -> None:
    given = {"x": X, "context": CONTEXT[:1]}
    ranged = FAMILY.ranged(MODULE, given, shapes)
    assert ranged.sizes["batch"] == 2
    refusal = ranged.shapes.refusal([*given.values()], X.device)
    assert refusal is not None and "context" in refusal.text


def test_an_input_that_the_family_does_not_name_is_an_error() -> None:
    with pytest.raises(ValueError, match="takes no other"):
        FAMILY.ranged(MODULE, {"x": X, "context": CONTEXT, "other": X}, "exact")


@pytest.mark.parametrize(
    ("args", "kwargs", "code"),
    [
        ((X, CONTEXT), {"guidance": 1.0}, "call_argument"),
        ((X, [CONTEXT]), {}, "not_plain_inputs"),
        ((X[0], CONTEXT), {}, "unusual_inputs"),
        ((X,), {}, "unusual_inputs"),
    ],
)
def test_a_call_that_no_graph_takes(args: tuple[object, ...], kwargs: dict[str, object], code: str) -> None:
    refused = FAMILY.read(MODULE, args, kwargs)
    assert isinstance(refused, Refused) and refused.reason.code == code


def test_arguments_that_make_no_difference_are_left_out() -> None:
    found = FAMILY.read(MODULE, (X,), {"context": CONTEXT, "mode": "fast", "guidance": None, "options": {}})
    assert not isinstance(found, Refused) and [*found] == ["x", "context"]
