"""Arguments as forms and leaves: there and back, and which calls are of one form."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.forms import matcher

from onegraph.signature import call_tree
from onegraph.signature.call_tree import (
    NumberForm,
    TensorForm,
    UnknownArgumentError,
    flatten,
    from_json,
    leaf_forms,
    rebuild,
    to_json,
)
from onegraph.signature.parameters import Parameters, as_call, method_of, options_of, parameters_of

OWN = (__name__.partition(".")[0],)


@dataclasses.dataclass(frozen=True)
class Modulation:
    shift: torch.Tensor
    gate: Any = None


class Compressed:
    __slots__ = ("data", "frames")

    def __init__(self, data: torch.Tensor, frames: int) -> None:
        self.data, self.frames = data, frames


class Loose:
    def __init__(self) -> None:
        self.data = torch.zeros(1)


@dataclasses.dataclass
class Held:
    data: Any = None


def _write_slot(state: dict[str, Any]) -> None:
    state["compressed"].frames = 8


def _write_field(state: dict[str, Any]) -> None:
    state["held"].data = torch.zeros(1)


def _write_attribute(state: dict[str, Any]) -> None:
    state["held"].more = 1


def _delete_slot(state: dict[str, Any]) -> None:
    del state["compressed"].data


WRITES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "append": lambda state: state["list"].append(None),
    "pop": lambda state: state["list"].pop(),
    "within itself": lambda state: state["list"].append(state["list"]),
    "nested": lambda state: state["list"][0].update(k=torch.zeros(1)),
    "equal tensor": lambda state: state["list"][0].update(k=state["list"][0]["k"].clone()),
    "number": lambda state: state.update(end=700),
    "truth value": lambda state: state.update(ready=True),
    "key": lambda state: state.update(more=None),
    "key that is no name": lambda state: state.update({3: None}),
    "function": lambda state: state.update(end=print),
    "order": lambda state: state.update(list=state.pop("list")),
    "slot": _write_slot,
    "deleted slot": _delete_slot,
    "field": _write_field,
    "attribute": _write_attribute,
}
READS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "nothing": lambda state: None,
    "tensor in place": lambda state: state["list"][0]["k"].add_(1),
    "a copy": lambda state: {**state}.update(end=8),
    "the same again": lambda state: state.update(end=state["end"]),
}


@pytest.mark.parametrize("change", [*WRITES, *READS])
def test_what_is_written_into_containers_is_seen(change: str) -> None:
    state = {
        "list": [{"k": torch.zeros(2)}, 5], "end": 600, "ready": False, "held": Held(1),
        "compressed": Compressed(torch.zeros(1), 7),
    }  # fmt: skip
    written = call_tree.watched((state,), OWN)
    assert not written()
    {**WRITES, **READS}[change](state)
    assert written() == (change in WRITES)


def test_attributes_besides_the_fields_are_no_part_of_a_form() -> None:
    """A block may read them, or write them for the next one."""
    value = Held(torch.zeros(1))
    form, _ = flatten(value, OWN)
    assert matcher(form)(value) is not None
    value.more = 3  # type: ignore[attr-defined]
    assert matcher(form)(value) is None
    with pytest.raises(UnknownArgumentError, match="no fields"):
        flatten(value, OWN)


LEAVES = st.one_of(
    st.builds(lambda shape: torch.zeros(shape), st.lists(st.integers(1, 3), min_size=0, max_size=3)),
    st.just(torch.ones(2, dtype=torch.int64)),
    st.integers(-5, 5),
    st.none(),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=3),
)
TREES = st.recursive(
    LEAVES,
    lambda below: st.one_of(
        st.lists(below, max_size=3),
        st.lists(below, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), below, max_size=3),
        st.builds(Modulation, st.just(torch.zeros(2)), below),
        st.builds(Compressed, st.just(torch.zeros(2)), st.integers(0, 9)),
    ),
    max_leaves=8,
)


def parts(value: Any) -> Any:
    """A value that can be compared: tensors by identity."""
    if isinstance(value, torch.Tensor):
        return id(value)
    if isinstance(value, Modulation):
        return "Modulation", parts(value.shift), parts(value.gate)
    if isinstance(value, Compressed):
        return "Compressed", parts(value.data), value.frames
    if isinstance(value, dict):
        return {name: parts(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(parts(one) for one in value)
    return type(value), value


@settings(max_examples=200, deadline=None)
@given(TREES)
def test_a_tree_comes_back(value: Any) -> None:
    form, leaves = flatten(value, OWN)
    assert parts(rebuild(form, leaves)) == parts(value)
    assert [isinstance(one, torch.Tensor) for one in leaves] == [isinstance(f, TensorForm) for f in leaf_forms(form)]
    assert from_json(json.loads(json.dumps(to_json(form))), OWN) == form
    found = matcher(form)(value)
    assert found is not None and [*map(id, found)] == [*map(id, leaves)]


@settings(max_examples=200, deadline=None)
@given(TREES, TREES)
def test_only_values_of_one_form_match(one: Any, other: Any) -> None:
    form, _ = flatten(one, OWN)
    other_form, _ = flatten(other, OWN)
    assert (matcher(form)(other) is not None) == (repr(form) == repr(other_form))


class Special(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "value",
    [
        Loose(),
        {1: 2},
        {2, 3},
        torch.zeros(2).as_subclass(Special),
        float("nan"),
        float("inf"),
        torch.float16,
        1j,
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_no_graph_can_stand_for(value: Any) -> None:
    for given_value in (value, [value], {"a": (None, value)}):
        with pytest.raises(UnknownArgumentError):
            flatten(given_value, OWN)
    form, _ = flatten(torch.zeros(2))
    assert matcher(form)(value) is None


def test_objects_of_other_packages_stay_whole() -> None:
    with pytest.raises(UnknownArgumentError, match=r"Modulation$"):
        flatten(Modulation(torch.zeros(1)), ("comfy",))
    form, _ = flatten(Modulation(torch.zeros(1)), OWN)
    with pytest.raises(ValueError, match="no form"):
        from_json(to_json(form), ("comfy",))


@pytest.mark.parametrize(
    "data",
    [None, [], ["tensor"], ["tensor", "2", "float32"], ["tensor", 2, "nodtype"], ["constant", [1]], ["mapping", 3],
     ["object"], ["object", "os:system"], ["number", 3], ["set"], "tensor", {"tensor": 1}],
)  # fmt: skip
def test_no_form(data: Any) -> None:
    with pytest.raises(ValueError, match="no form"):
        from_json(data, OWN)


def test_numbers_are_leaves_and_truth_values_are_not() -> None:
    form, leaves = flatten([1, True, 2.0])
    assert leaves == [1]
    assert matcher(form)([7, True, 2.0]) == [7]
    assert matcher(form)([7, False, 2.0]) is None
    assert matcher(form)([True, True, 2.0]) is None
    assert matcher(form)([7, True, 2]) is None
    assert leaf_forms(form) == [NumberForm()]


# Arguments by name ------------------------------------------------------------------------------------------


class Plain:
    def forward(self, x: Any, vec: Any, mask: Any = None, transformer_options: Any = {}) -> Any:  # noqa: B006
        return x, vec, mask, transformer_options


class Open:
    def other(self, context: Any, *args: Any, **kwargs: Any) -> Any:
        return "other", context, args, kwargs

    def forward(self, context: Any, *args: Any, **kwargs: Any) -> Any:
        return context, args, kwargs


def test_arguments_mean_the_same_however_they_are_given() -> None:
    known = Parameters(Plain.forward)
    ways = [((1, 2), {}), ((1,), {"vec": 2}), ((), {"vec": 2, "x": 1}), ((1, 2, None), {"transformer_options": {}})]
    assert {repr(known.bind(*way)) for way in ways} == {"{'x': 1, 'vec': 2, 'mask': None, 'transformer_options': {}}"}
    args, kwargs = as_call(known.bind((1,), {"vec": 2, "mask": 3}))
    assert Plain().forward(*args, **kwargs) == (1, 2, 3, {})
    for wrong in (((1, 2, 3, 4, 5), {}), ((1,), {"other": 2})):
        with pytest.raises(TypeError):
            known.bind(*wrong)


def test_functions_of_any_arguments() -> None:
    known = Parameters(Open.forward)
    named = known.bind((1, 2, 3), {"c": 4, "transformer_options": {"a": 1}})
    assert named == {"context": 1, "*": (2, 3), "**": {"c": 4, "transformer_options": {"a": 1}}}
    assert options_of(named) == {"a": 1}
    args, kwargs = as_call(named)
    assert Open().forward(*args, **kwargs) == (1, (2, 3), {"c": 4, "transformer_options": {"a": 1}})
    form, leaves = flatten(named)
    assert leaves == [1, 2, 3, 4]
    assert rebuild(form, leaves, options="these")["**"]["transformer_options"] == "these"


@pytest.mark.parametrize("cls", [Plain, Open])
def test_calls_of_two_methods_with_the_same_arguments_have_two_forms(cls: Any) -> None:
    named = [Parameters(cls.forward, name).bind((1, 2), {}) for name in ("forward", "other")]
    forms = [flatten(one)[0] for one in named]
    assert [[matcher(form)(one) is not None for one in named] for form in forms] == [[True, False], [False, True]]
    assert as_call(named[0]) == as_call(named[1])
    assert call_tree.from_json(json.loads(json.dumps(call_tree.to_json(forms[1])))) == forms[1]


def test_a_call_is_one_of_the_method_that_its_arguments_name() -> None:
    named = parameters_of(Open, "other").bind((1, 2), {"c": 3})
    args, kwargs = as_call(rebuild(*flatten(named)))
    assert method_of(Open, named)(Open(), *args, **kwargs) == ("other", 1, (2,), {"c": 3})
    assert method_of(Open, parameters_of(Open).bind((1,), {})) is Open.forward


def test_options_are_no_part_of_the_form() -> None:
    form, leaves = flatten({"x": 1, "transformer_options": {"patches": Loose()}})
    assert leaves == [1]
    assert matcher(form)({"x": 2, "transformer_options": None}) == [2]
    assert call_tree.OPTIONS == "transformer_options" and sys.getrefcount(form) > 0


def test_arguments_that_no_function_takes_are_refused() -> None:
    parameters = Parameters(lambda self, x, y=2: None)
    assert parameters.bind((1,), {"y": 3}) == {"x": 1, "y": 3}
    for args, kwargs in [((1, 2, 3), {}), ((1,), {"x": 1}), ((1,), {"z": 1}), ((1, 2), {"y": 3})]:
        with pytest.raises(TypeError):
            parameters.bind(args, kwargs)
