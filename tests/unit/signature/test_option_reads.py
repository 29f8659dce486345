"""What a block reads of options is what its graph depends on, and nothing else is."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import pytest

from onegraph.signature.option_reads import OptionGuards, RecordedOptions, UnreadableOptionsError


def block(options: Any) -> Any:
    """Reads options as ComfyUI's blocks do."""
    patches = options.get("patches", {})
    if "attn1_patch" in patches:
        return "patched"
    options.get("optimized_attention_override")
    return options["block"] if "block" in options else options.get("heads", 4)


def guards_of(options: dict[str, Any], function: Callable[[Any], Any] = block) -> OptionGuards:
    recorded = RecordedOptions(options, ["optimized_attention_override"])
    function(recorded)
    return recorded.guards()


class Patches(dict[str, Any]):
    """Holds what its own methods give."""

    def __contains__(self, key: object) -> bool:
        return True


GUARDS = guards_of({"patches": {}, "sigmas": object(), "optimized_attention_override": block, "heads": 8})


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"patches": {}, "heads": 8}, None),
        ({"heads": 8}, None),
        ({"patches": {"post_input": [1]}, "heads": 8, "sigmas": 3}, None),
        ({"patches": {"attn1_patch": []}, "heads": 8}, None),
        ({"patches": {"attn1_patch": [1]}, "heads": 8}, ("patches", "attn1_patch")),
        ({"patches": MappingProxyType({"attn1_patch": [1]}), "heads": 8}, ("patches", "attn1_patch")),
        ({"patches": Patches(), "heads": 8}, ("patches", "attn1_patch")),
        ({"patches": None, "heads": 8}, None),
        ({"optimized_attention_override": None, "heads": 8}, None),
        ({"optimized_attention_override": {}, "heads": 8}, ("optimized_attention_override",)),
        ({"block": [], "heads": 8}, ("block",)),  # which a block may fill
        ({"heads": 8, "block": ("input", 1)}, ("block",)),
        ({"heads": 4}, ("heads",)),
        ({"heads": 8.0}, ("heads",)),
        ({"heads": True}, ("heads",)),
        ({}, ("heads",)),
        (None, ("heads",)),
    ],
)
def test_what_was_read_must_be_as_it_was(options: Any, refused: tuple[str, ...] | None) -> None:
    assert GUARDS.refused(options) == refused


def test_presence_alone() -> None:
    guards = guards_of({"given": object()}, lambda options: "given" in options)
    assert guards == OptionGuards(present=(("given",),))
    assert guards.refused({"given": 5}) is None and guards.refused({}) == ("given",)


def test_what_the_host_has_empty_is_nothing() -> None:
    guards = guards_of({}, lambda options: options.get("wrappers"))
    assert guards.refused({"wrappers": {}}) is None and guards.refused({"wrappers": {"k": [1]}}) == ("wrappers",)


def test_a_dictionary_in_which_nothing_was_read_may_hold_anything() -> None:
    """Krea's blocks ask for patches before they know whether they need any."""
    guards = guards_of({"patches": {}}, lambda options: options.get("patches", {}) is not None and "more" in options)
    assert guards == OptionGuards(absent=(("more",),))
    assert guards.refused({"patches": {"post_input": [1]}}) is None


def test_what_is_no_plain_value_cannot_be_kept() -> None:
    with pytest.raises(UnreadableOptionsError, match="given"):
        guards_of({"given": object()}, lambda options: options["given"])


CHANGES: dict[str, Callable[[Any], Any]] = {
    "set": lambda options: options.__setitem__("a", 1),
    "delete": lambda options: options.__delitem__("heads"),
    "pop": lambda options: options.pop("heads"),
    "update": lambda options: options.update(a=1),
    "setdefault": lambda options: options.setdefault("a", 1),
    "inside": lambda options: options["patches"].update(a=1),
    "all": lambda options: [*options],
    "items": lambda options: [*options.items()],
    "unpack": lambda options: {**options},
    "dict": lambda options: dict(options),
    "merge": lambda options: options | {"a": 1},
    "compare": lambda options: options == {},
    "length": len,
}


@pytest.mark.parametrize("how", CHANGES)
def test_what_no_graph_can_honour(how: str) -> None:
    with pytest.raises(UnreadableOptionsError):
        CHANGES[how](RecordedOptions({"heads": 8, "patches": {"x": 1}}))


def test_a_copy_is_the_blocks_own() -> None:
    def function(options: Any) -> Any:
        own = options.copy()
        own["block_index"] = 3
        return own["block_index"], own.get("heads")

    guards = guards_of({"heads": 8}, function)
    assert guards == OptionGuards(values=((("heads",), 8),))


def test_a_missing_key_is_missing() -> None:
    with pytest.raises(KeyError):
        RecordedOptions({})["heads"]


def test_there_and_back() -> None:
    assert OptionGuards.from_json(json.loads(json.dumps(GUARDS.to_json()))) == GUARDS


@pytest.mark.parametrize(
    "data",
    [None, {}, {"absent": ["a"], "present": [], "values": []}, {"absent": [[1]], "present": [], "values": []},
     {"absent": [], "present": [], "values": [[["a"], [1]]]}, {"absent": [], "present": [], "values": [["a"]]}],
)  # fmt: skip
def test_no_guards(data: Any) -> None:
    with pytest.raises(ValueError, match="no guards"):
        OptionGuards.from_json(data)
