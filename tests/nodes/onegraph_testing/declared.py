"""Declares nodes as functions, and loads files of the tests that nodes share with them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

NODES = {}


def node(name, gives, /, optional=(), **takes):
    """Register a function as the node `OneGraphTest<name>` with one output of the type that it `gives`.

    Args:
        optional: names of inputs that need not be there.
        takes: types of inputs by name, with their options where these matter.
    """
    inputs = {"required": {}, "optional": {}}
    for key, kind in takes.items():
        inputs["optional" if key in optional else "required"][key] = kind if isinstance(kind, tuple) else (kind,)

    def register(function):
        NODES[f"OneGraphTest{name}"] = type(
            name, (), {
                "INPUT_TYPES": classmethod(lambda cls: inputs), "RETURN_TYPES": (gives,), "FUNCTION": "run",
                "CATEGORY": "testing", "run": lambda self, **given: (function(**given),),
            },
        )  # fmt: skip
        return function

    return register


def floating(default):
    return ("FLOAT", {"default": default})


def integer(default, **limits):
    return ("INT", {"default": default, **limits})


def loaded(name, *path):
    """A module from a file below the repository's root."""
    file = Path(__file__).resolve().parents[3].joinpath(*path)
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
