"""Every function that runs in a model's call is replaced, one after the other, wherever a name leads to it."""

from __future__ import annotations

import contextlib
import cProfile
import functools
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import pytest
import torch
from support.edits.subjects import Subject
from support.scenes.judge import SAME, distance

_FOLDERS = ("comfy/ldm", "comfy/ops", "torch/nn", "torch/_tensor", "torch/functional")
_OURS = ("onegraph", "support", "tests", "_pytest", "pytest")
# By which torch calls operations from Python: graphs call none of them.
_DISPATCH = ("torch._ops", "torch.overrides")


def that_run(model: Subject) -> list[CodeType]:
    """The code of the functions of models and of torch that run in an uncompiled run, in a lasting order."""
    profile = cProfile.Profile(subcalls=False, builtins=False)
    with profile:
        model.eager(None, lambda: None)
    codes = [entry.code for entry in profile.getstats() if isinstance(entry.code, CodeType)]
    found = [one for one in codes if any(folder in one.co_filename for folder in _FOLDERS)]
    return sorted(found, key=lambda one: (one.co_filename, one.co_firstlineno))


def names_of(code: CodeType) -> Iterator[tuple[Any, str, FunctionType]]:
    """Modules and classes in which a name leads to a function of some code."""
    for home, module in [*sys.modules.items()]:
        if home.startswith((*_OURS, *_DISPATCH)):
            continue
        for name, value in [*getattr(module, "__dict__", {}).items()]:
            if type(value) is FunctionType and value.__code__ is code:
                yield module, name, value
            elif issubclass(type(value), type) and value.__module__ == home:
                own = [(one, found) for one, found in [*vars(value).items()] if type(found) is FunctionType]
                yield from ((value, one, found) for one, found in own if found.__code__ is code)


def changed(result: Any) -> Any:
    """A result with other values."""
    if isinstance(result, torch.Tensor) and result.is_floating_point():
        return result * 1.05
    return type(result)(map(changed, result)) if type(result) in (tuple, list) else result


def replacing(function: FunctionType) -> Any:
    @functools.wraps(function)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return changed(function(*args, **kwargs))

    del replaced.__wrapped__
    return replaced


@pytest.mark.parametrize(
    "component",
    ["transformer", *(pytest.param(one, marks=pytest.mark.full) for one in ("unet", "net", "decoder", "encoder"))],
)
def test_what_replaces_a_function_is_served(component: str, subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, run = subject.eager(None, lambda: None), subject.compiled()
    assert distance(run(None, lambda: None), usual) < SAME
    wrong, shown = [], 0
    for code in that_run(subject):
        with monkeypatch.context() as patching:
            for owner, name, function in names_of(code):
                with contextlib.suppress(TypeError):  # of a class that nobody can change
                    patching.setattr(owner, name, replacing(function))
            try:
                wanted = subject.eager(None, lambda: None)
            except Exception:  # the model cannot do with such a result
                continue
            found = run(None, lambda: None)
        shown += distance(wanted, usual) > SAME
        if not distance(found, wanted) < SAME:
            wrong.append(f"{code.co_filename}:{code.co_name} ({subject.report().text()})")
    assert not wrong
    assert shown >= 20
    assert distance(run(None, lambda: None), usual) < SAME
