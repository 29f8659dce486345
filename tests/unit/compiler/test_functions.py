from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from onegraph.common.errors import CaptureError
from onegraph.compiler import functions
from onegraph.compiler.fingerprint import Rules
from onegraph.compiler.functions import LiveCode
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

def unused(x):
    return x - {unused}

class Base(torch.nn.Module):
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
        return activation(parts[0]) + math.pi
"""


def write(folder: Path, **changes: Any) -> ModuleType:
    """The package `edited_host` with one module, freshly imported."""
    package = folder / "edited_host"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text("")
    (package / "model.py").write_text(SOURCE.format(**{"comment": "", "one": 1, "unused": 1, **changes}))
    for name in [name for name in sys.modules if name.startswith("edited_host")]:
        del sys.modules[name]
    importlib.invalidate_caches()
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        return importlib.import_module("edited_host.model")
    finally:
        sys.dont_write_bytecode = before


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(tmp_path)
    yield write(tmp_path)
    for name in [name for name in sys.modules if name.startswith("edited_host")]:
        del sys.modules[name]


RULES = Rules(interchangeable=frozenset({"edited_host.model:activation"}))


def record_of(host: ModuleType) -> CodeRecord:
    module = host.M()
    with functions.watched() as seen:
        module(torch.zeros(1, 1, 4))
    return functions.record(seen, module, RULES)


def test_every_function_that_ran_is_recorded_and_no_other(host: ModuleType) -> None:
    record = record_of(host)
    own = {name.partition(":")[2] for name in record.functions if name.startswith("edited_host")}
    assert own >= {"scaled", "wrapped", "fast", "Base.helper", "Base.still", "M.forward"}
    assert not own & {"unused", "slow"}
    assert "torch.nn.modules.conv:Conv1d._conv_forward" in record.functions
    assert record.references["edited_host.model:F.gelu"].startswith("builtin")
    assert not any("math" in name for name in record.references)
    assert record.methods["edited_host.model:M.helper"] == "edited_host.model:Base"
    assert CodeRecord.model_validate_json(record.model_dump_json()) == record


def test_a_model_whose_functions_cannot_be_found_again_is_not_compiled(host: ModuleType) -> None:
    module = host.M()
    with pytest.raises(CaptureError, match="could not be recorded"):
        functions.record([], module, RULES)


def test_nothing_differs_in_the_process_that_recorded_it(host: ModuleType) -> None:
    assert LiveCode(record_of(host)).difference() is None


@pytest.mark.parametrize("python", [functions.PYTHON, "another"])
@pytest.mark.parametrize(
    ("change", "name"),
    [({"comment": "another comment"}, ""), ({"unused": 5}, ""), ({"one": 5}, "model.wrapped")],
)
def test_another_version_of_the_host_differs_only_in_functions_that_ran(
    change: dict[str, Any], name: str, python: str, host: ModuleType, tmp_path: Path
) -> None:
    """Also for another Python, whose bytecode is another: then by the functions' source."""
    record = record_of(host).model_copy(update={"python": python})
    import linecache

    write(tmp_path, **change)
    linecache.checkcache()
    found = LiveCode(record).difference()
    assert (found.name if found is not None else "") == name
    if found is not None:
        assert not found.replaced
        assert "another version of model.wrapped than the graph was compiled from" in found.reason


def foreign(*args: Any) -> Any:
    return args[-1] * 0


REPLACED = {
    "Base.helper": lambda host: (host.Base, "helper", "Base.helper"),
    "a subclass's own": lambda host: (host.M, "helper", "M.helper"),
    "a static method": lambda host: (host.Base, "still", "Base.still"),
    "a module's function": lambda host: (host, "scaled", "model.scaled"),
    "a decorated function": lambda host: (host, "wrapped", "model.wrapped"),
    "one of several": lambda host: (host, "activation", "model.activation"),
    "torch's function": lambda host: (torch.nn.functional, "gelu", "F.gelu"),
    "torch's method": lambda host: (torch.nn.Conv1d, "_conv_forward", "Conv1d._conv_forward"),
    "a builtin that is used": lambda host: (torch, "sin", "torch.sin"),
}


@pytest.mark.parametrize("what", REPLACED)
def test_a_replaced_function_is_named_and_seen_at_once(
    what: str, host: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = LiveCode(record_of(host))
    assert live.difference() is None
    owner, attribute, name = REPLACED[what](host)
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(owner, attribute, foreign)
            found = live.difference()
            assert found is not None and found.replaced, what
            assert (found.name, found.replaced_by) == (name, "test_functions")
            fresh = LiveCode(live._record).difference()
            assert fresh == found
        assert live.difference() is None


def test_a_replacement_that_poses_as_the_original_is_noticed(host: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    live = LiveCode(record_of(host))
    assert live.difference() is None
    posing = functools.wraps(host.scaled)(lambda x, factor=2: host.unused(x))
    monkeypatch.setattr(host, "scaled", posing)
    found = live.difference()
    assert found is not None and found.replaced and found.name == "model.scaled"


def test_new_code_in_the_same_function_is_noticed(host: ModuleType) -> None:
    live = LiveCode(record_of(host))
    assert live.difference() is None
    host.scaled.__code__ = (lambda x, factor=2: x * 3).__code__
    assert live.difference() is not None


def test_one_of_the_hosts_interchangeable_functions_is_as_good(
    host: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = record_of(host)
    for python in (functions.PYTHON, "another"):
        live = LiveCode(record.model_copy(update={"python": python}))
        monkeypatch.setattr(host, "activation", host.slow)
        assert live.difference() is None
        monkeypatch.setattr(host, "activation", foreign)
        found = live.difference()
        assert found is not None and found.replaced and found.name == "model.activation"


def test_a_method_of_another_file_is_found_before_anything_is_compiled(
    host: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = host.M()
    assert functions.foreign_method(module) is None
    monkeypatch.setattr(host.Base, "helper", foreign)
    found = functions.foreign_method(module)
    assert found is not None and found.name == "Base.helper"


def test_a_set_in_a_function_has_one_digest_in_every_process(tmp_path: Path) -> None:
    import subprocess

    script = (
        "from onegraph.compiler import functions\n"
        "def f(x): return x in {'a', 'bc', 'def', 'ghij', 'klmno'}\n"
        "print(functions._bytecode_digest(f))"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PATH": "", "PYTHONPATH": ":".join(p for p in sys.path if p)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(digests) == 1
