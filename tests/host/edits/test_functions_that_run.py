"""Every function that runs in a model's call is replaced, one after the other, wherever a name leads to it."""

from __future__ import annotations

import contextlib
import cProfile
import functools
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any, TypeAlias

import pytest
import torch
from support.edits.subjects import Subject
from support.scenes.judge import SAME, distance

_FOLDERS = ("comfy/ldm", "comfy/ops", "torch/nn", "torch/_tensor", "torch/functional")
_OURS = ("onegraph", "support", "tests", "_pytest", "pytest")
# By which torch calls operations from Python: graphs call none of them.
_DISPATCH = ("torch._ops", "torch.overrides")
Places: TypeAlias = list[tuple[Any, str]]  # modules and classes, and a name in each


def that_run(model: Subject) -> list[Places]:
    """Where names lead to each function of models and of torch that runs in an uncompiled run, in a lasting order."""
    profile = cProfile.Profile(subcalls=False, builtins=False)
    with profile:
        model.eager(None, lambda: None)
    codes = [entry.code for entry in profile.getstats() if isinstance(entry.code, CodeType)]
    found = [one for one in codes if any(folder in one.co_filename for folder in _FOLDERS)]
    return [[*_names_of(one)] for one in sorted(found, key=lambda one: (one.co_filename, one.co_firstlineno))]


def _names_of(code: CodeType) -> Iterator[tuple[Any, str]]:
    """Modules and classes in which a name leads to a function of some code."""
    for home, module in [*sys.modules.items()]:
        if home.startswith((*_OURS, *_DISPATCH)):
            continue
        for name, value in [*getattr(module, "__dict__", {}).items()]:
            if type(value) is FunctionType and value.__code__ is code:
                yield module, name
            elif issubclass(type(value), type) and value.__module__ == home:
                own = [(one, found) for one, found in [*vars(value).items()] if type(found) is FunctionType]
                yield from ((value, one) for one, found in own if found.__code__ is code)


def built_in_that_run(model: Subject) -> list[Places]:
    """The same of what has no code of Python: torch's functions, and methods of tensors."""
    called: dict[tuple[str, int], Any] = {}

    def note(frame: Any, event: str, function: Any) -> None:
        if event == "c_call" and any(folder in frame.f_code.co_filename for folder in _FOLDERS):
            number = 0 if isinstance(getattr(function, "__self__", None), torch.Tensor) else id(function)
            called.setdefault((function.__name__, number), function)

    sys.setprofile(note)
    try:
        model.eager(None, lambda: None)
    finally:
        sys.setprofile(None)
    homes = [home for home in sys.modules if home.startswith(("torch", "comfy"))]
    modules = [sys.modules[home] for home in homes if not home.startswith((*_DISPATCH, "torch._C"))]
    found = []
    for (name, number), function in sorted(called.items(), key=lambda one: one[0]):
        owners = [torch.Tensor] if number == 0 else [one for one in modules if vars(one).get(name) is function]
        found.append([(owner, name) for owner in owners if not name.startswith("__torch")])
    return found


def changed(result: Any) -> Any:
    """A result with other values."""
    if isinstance(result, torch.Tensor) and result.is_floating_point():
        return torch.ops.aten.mul.Tensor(result, 1.05)
    return type(result)(map(changed, result)) if type(result) in (tuple, list) else result


def replacing(function: Any) -> Any:
    """What stands in place of a function of torch or of models, with its name."""

    def replaced(*args: Any, **kwargs: Any) -> Any:
        return changed(function(*args, **kwargs))

    if type(function) is FunctionType:
        functools.update_wrapper(replaced, function)
        del replaced.__wrapped__
    return replaced


@pytest.mark.parametrize("running", [that_run, built_in_that_run])
@pytest.mark.parametrize(
    "component",
    ["transformer", *(pytest.param(one, marks=pytest.mark.full) for one in ("unet", "net", "decoder", "encoder"))],
)
def test_what_replaces_a_function_is_served(
    component: str, running: Callable[[Subject], list[Places]], subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, run = subject.eager(None, lambda: None), subject.compiled()
    assert distance(run(None, lambda: None), usual) < SAME
    wrong, shown = [], 0
    for places in running(subject):
        with monkeypatch.context() as patching:
            for owner, name in places:
                with contextlib.suppress(TypeError):  # of a class that nobody can change
                    patching.setattr(owner, name, replacing(getattr(owner, name)))
            try:
                wanted = subject.eager(None, lambda: None)
            except Exception:  # the model cannot do with such a result
                continue
            found = run(None, lambda: None)
        shown += distance(wanted, usual) > SAME
        if not distance(found, wanted) < SAME:
            wrong.append(f"{places} ({subject.report().text()})")
    assert not wrong
    assert shown >= 20
    assert distance(run(None, lambda: None), usual) < SAME
