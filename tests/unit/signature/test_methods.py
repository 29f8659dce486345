"""Objects that blocks call: known by their class and methods, and nothing that they hold is part of a form."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from onegraph.signature import call_tree
from onegraph.signature.call_tree import UnknownArgumentError, flatten, functions_of, rebuild
from onegraph.signature.matching import structured

PACKAGES = (__name__.partition(".")[0],)


class Cache:
    size = 4

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    def put(self, name: str, x: Any) -> None:
        self.kept[name] = x

    @staticmethod
    def half(x: Any) -> Any:
        return x / 2


class Filled(Cache):
    """The same methods."""


class Indexed(Cache):
    def __getitem__(self, name: str) -> Any:
        return self.kept[name]


class Callable(Cache):
    def __call__(self, name: str, make: Any) -> Any:
        return self.kept.setdefault(name, make())


def test_an_object_is_its_class_and_its_methods() -> None:
    cache = Cache()
    form, leaves = flatten({"x": torch.ones(2), "cache": cache}, PACKAGES)
    assert functions_of(form, {"x": None, "cache": cache}) == [cache.half, cache.put]
    assert call_tree.from_json(json.loads(json.dumps(call_tree.to_json(form))), PACKAGES) == form
    with pytest.raises(ValueError, match="no form"):
        call_tree.from_json(call_tree.to_json(form), ("another",))
    taken = structured(form)
    assert taken({"x": leaves[0], "cache": Cache()}) == leaves
    assert taken({"x": leaves[0], "cache": Filled()}) is None and taken({"x": leaves[0], "cache": None}) is None
    written = call_tree.watched(cache, PACKAGES)
    cache.put("k", leaves[0])
    assert not written()  # that is its own business


def test_what_stands_for_an_object_has_nothing_but_methods() -> None:
    form, leaves = flatten([Cache()], PACKAGES)
    (made,) = rebuild(form, leaves, functions=[abs, len])
    assert isinstance(made, Cache) and (made.half, made.put) == (abs, len)
    assert flatten([made], PACKAGES)[0] == form
    with pytest.raises(AttributeError, match="kept"):
        _ = made.kept
    with pytest.raises(TypeError, match="writes into an object"):
        made.kept = {}
    with pytest.raises(TypeError, match="writes into an object"):
        del made.put


def _shadowing(name: str) -> Cache:
    cache = Cache()
    setattr(cache, name, 5)
    return cache


@pytest.mark.parametrize("value", [Indexed(), Callable(), _shadowing("size"), _shadowing("put"), torch.nn.Linear(1, 1)])
def test_objects_that_are_more_than_their_methods_are_not_known(value: Any) -> None:
    with pytest.raises(UnknownArgumentError):
        flatten([value], (*PACKAGES, "torch"))


def test_an_object_of_another_package_is_not_known() -> None:
    with pytest.raises(UnknownArgumentError):
        flatten([Cache()], ("comfy",))
