"""A package `edited_host` that stands for the host, whose functions tests change and replace."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from onegraph.compiler.code import code_record
from onegraph.compiler.code.fingerprint import Rules
from onegraph.graph_cache.manifest import CodeRecord

SOURCE = """
import functools
import math
import torch
import torch.nn.functional as F

def scaled(x, factor=2):
    return x * factor  # {comment}

def doubled(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args) * 2
    return wrapper

@doubled
def wrapped(x):
    return x + {one}

def fast(x): return F.relu(x)
def slow(x): return x.clamp(min=0)
activation = fast
tripled = functools.partial(scaled, factor=3)
SHIFT, SHIFTS, MAY_SHIFT = {shift}, (1.0, 2.0), True

def unused(x):
    return x - {unused}

class Base(torch.nn.Module):
    gain = {gain}
    unnamed = {unnamed}

    def helper(self, x):
        return F.gelu(x)

    @staticmethod
    def still(x):
        return torch.sin(x)

class M(Base):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Conv1d(1, 1, 1)

    def forward(self, x):
        parts = [scaled(part) for part in wrapped(self.still(self.helper(self.inner(x)))).chunk(1)]
        shift = SHIFT * SHIFTS[0] if MAY_SHIFT else 0
        return tripled(activation(parts[0])) * self.gain + math.pi + shift
"""


def write(folder: Path, **changes: Any) -> ModuleType:
    """The package `edited_host` with one module, freshly imported."""
    package = folder / "edited_host"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text("")
    (package / "model.py").write_text(
        SOURCE.format(**{"comment": "", "one": 1, "unused": 1, "gain": 1, "unnamed": 1, "shift": 1.5, **changes})
    )
    _forget()
    importlib.invalidate_caches()
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        return importlib.import_module("edited_host.model")
    finally:
        sys.dont_write_bytecode = before


def _forget() -> None:
    for name in [name for name in sys.modules if name.startswith("edited_host")]:
        del sys.modules[name]


@contextlib.contextmanager
def imported(folder: Path) -> Iterator[ModuleType]:
    """The package's module, importable from the folder as long as this lasts."""
    sys.path.insert(0, str(folder))
    try:
        yield write(folder)
    finally:
        sys.path.remove(str(folder))
        _forget()


RULES = Rules(interchangeable=frozenset({"edited_host.model:activation"}))


def record_of(host: ModuleType) -> CodeRecord:
    """The functions that a call of the package's model runs."""
    module = host.M()
    seen: code_record.Ran = set()
    with code_record.watched(seen):
        module(torch.zeros(1, 1, 4))
    return code_record.record(seen, module, RULES)
