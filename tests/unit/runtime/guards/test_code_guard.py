"""Whether this process has the functions that a graph was captured from."""

from __future__ import annotations

import functools
import importlib
import linecache
import sys
from collections.abc import Iterator
from pathlib import Path
from types import MethodType, ModuleType
from typing import Any

import pytest
import torch
from support.edits import edited_host
from support.edits.edited_host import record_of

from onegraph.common.code_digest import PYTHON, underlying_function
from onegraph.common.reasons import FunctionReplaced, OtherHostVersion
from onegraph.runtime.guards.code_guard import CodeGuard, foreign_method, is_defined_in


@pytest.fixture
def host(tmp_path: Path) -> Iterator[ModuleType]:
    with edited_host.imported(tmp_path) as module:
        yield module


def test_the_recording_process_finds_no_difference(host: ModuleType) -> None:
    assert CodeGuard(record_of(host)).difference() is None


@pytest.mark.parametrize("python", [PYTHON, "another"])
@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"comment": "another comment"}, ""),
        ({"unused": 5}, ""),
        ({"one": 5}, "model.wrapped"),
        ({"unnamed": 5}, ""),
        ({"gain": 5}, "Base.gain"),
        ({"shift": 2.5}, "model.SHIFT"),
    ],
)
def test_another_host_differs_in_functions_that_ran(
    change: dict[str, Any], name: str, python: str, host: ModuleType, tmp_path: Path
) -> None:
    """Also for another Python, whose bytecode is another: then by the functions' source."""
    record = record_of(host).model_copy(update={"python": python})
    edited_host.write(tmp_path, **change)
    linecache.checkcache()
    found = CodeGuard(record).difference()
    assert (found.name if found is not None else "") == name
    if found is not None:
        assert isinstance(found, OtherHostVersion)
        text = found.text
        assert text == f"this ComfyUI has another version of {name} than the graph was compiled from"


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
def test_a_replaced_function_is_named_at_once(what: str, host: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    live = CodeGuard(record_of(host))
    assert live.difference() is None
    owner, attribute, name = REPLACED[what](host)
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(owner, attribute, foreign)
            found = live.difference()
            assert found == FunctionReplaced(name, "test_code_guard"), what
            assert CodeGuard(live._record).difference() == found
            assert found.text == f"another custom node replaced {name} (test_code_guard)"
        assert live.difference() is None


BINDING = {
    "an argument by name": lambda function: functools.partial(function, factor=3),
    "an argument": lambda function: functools.partial(function, torch.ones(1)),
    "an object": lambda function: MethodType(function, torch.ones(1)),
    "an argument of a partial": lambda function: functools.partial(functools.partial(function, factor=3)),
}


@pytest.mark.parametrize("python", [PYTHON, "another"])
@pytest.mark.parametrize("what", ["a static method", "a module's function", "one of several", "a decorated function"])
@pytest.mark.parametrize("bound", BINDING)
def test_what_is_bound_to_the_same_function_counts(
    bound: str, what: str, python: str, host: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its code is that of the graph, and its result is not."""
    live = CodeGuard(record_of(host).model_copy(update={"python": python}))
    assert live.difference() is None
    owner, attribute, _ = REPLACED[what](host)
    function = underlying_function(vars(owner)[attribute])
    other = BINDING[bound](function)
    monkeypatch.setattr(owner, attribute, staticmethod(other) if what == "a static method" else other)
    assert live.difference() is not None


def test_other_arguments_bound_to_the_function_of_a_name_count(
    host: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = CodeGuard(record_of(host))
    monkeypatch.setattr(host, "tripled", functools.partial(host.scaled, factor=4))
    assert live.difference() is not None
    monkeypatch.setattr(host, "tripled", functools.partial(host.scaled, factor=3))
    assert live.difference() is None


@pytest.mark.parametrize(("name", "value"), [("SHIFT", 2.5), ("SHIFTS", (2.0, 2.0))])
def test_a_number_of_the_models_module_counts(
    name: str, value: object, host: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = CodeGuard(record_of(host))
    assert live.difference() is None
    monkeypatch.setattr(host, name, value)
    assert live.difference() == OtherHostVersion(f"model.{name}")
    monkeypatch.undo()
    assert live.difference() is None


def test_what_is_true_or_false_in_a_module_tells_of_the_machine(
    host: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = CodeGuard(record_of(host))
    monkeypatch.setattr(host, "MAY_SHIFT", False)
    assert live.difference() is None


def test_a_partial_that_binds_nothing_is_the_function(host: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    live = CodeGuard(record_of(host))
    monkeypatch.setattr(host, "scaled", functools.partial(host.scaled))
    assert live.difference() is None


@pytest.mark.parametrize("what", ["Base.helper", "a module's function", "torch's method", "a builtin that is used"])
def test_a_function_that_is_gone_is_noticed(what: str, host: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    live = CodeGuard(record_of(host))
    assert live.difference() is None
    owner, attribute, _ = REPLACED[what](host)
    with monkeypatch.context() as patch:
        patch.delattr(owner, attribute)
        assert live.difference() is not None
    assert live.difference() is None


@pytest.mark.parametrize(("owner", "name"), [("Base", "Base.gain"), ("M", "M.gain")])
def test_a_value_of_a_class_is_noticed(
    owner: str, name: str, host: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that a derived class gets, which comes before the one that was recorded."""
    live = CodeGuard(record_of(host))
    moment = object()
    for _ in range(2):
        assert live.difference(moment) is None
        with monkeypatch.context() as patch:
            patch.setattr(getattr(host, owner), "gain", 2, raising=owner == "Base")
            found = live.difference(moment)
            assert found is not None and found.name == name


def test_a_derived_class_may_have_the_recorded_value_of_its_own(
    host: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a loader that sets an option's default on a class. Watched on: the class' other values count."""
    live = CodeGuard(record_of(host))
    monkeypatch.setattr(host.M, "gain", host.Base.gain, raising=False)
    assert live.difference() is None
    monkeypatch.setattr(host.M, "gain", host.Base.gain + 1)
    assert live.difference() is not None
    monkeypatch.setattr(host.M, "gain", host.Base.gain)
    assert live.difference() is None
    monkeypatch.setattr(host.M, "gain", lambda self: host.Base.gain)
    assert live.difference() is not None


def test_a_posing_replacement_is_noticed(host: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    live = CodeGuard(record_of(host))
    assert live.difference() is None
    posing = functools.wraps(host.scaled)(lambda x, factor=2: host.unused(x))
    monkeypatch.setattr(host, "scaled", posing)
    found = live.difference()
    assert isinstance(found, FunctionReplaced) and found.name == "model.scaled"


def test_new_code_in_the_same_function_is_noticed(host: ModuleType) -> None:
    live = CodeGuard(record_of(host))
    assert live.difference() is None
    host.scaled.__code__ = (lambda x, factor=2: x * 3).__code__
    assert live.difference() is not None


def vendored(host: ModuleType) -> ModuleType:
    """An edited copy of the host's file in another pack: most of its functions have the very same code."""
    copied = ModuleType("a_pack.model")
    source = Path(str(host.__file__)).read_text().replace("return x * factor", "return x * factor * 3")
    exec(compile(source, str(host.__file__), "exec"), vars(copied))  # noqa: S102
    return copied


def with_a_copy(host: ModuleType) -> None:
    host.M.forward = vendored(host).M.forward


def with_a_copy_that_poses(host: ModuleType) -> None:
    copied = vendored(host)
    vars(copied)["__name__"] = host.__name__
    host.M.forward = copied.M.forward


def with_other_defaults(host: ModuleType) -> None:
    host.scaled.__defaults__ = (3,)


def with_other_keywords(host: ModuleType) -> None:
    host.scaled.__kwdefaults__ = {"more": 1}


def with_another_closure(host: ModuleType) -> None:
    (cell,) = host.wrapped.__closure__
    cell.cell_contents = lambda x: x + 5


@pytest.mark.parametrize(
    "edit", [with_a_copy, with_a_copy_that_poses, with_other_defaults, with_other_keywords, with_another_closure]
)
@pytest.mark.parametrize("python", [PYTHON, "another"])
def test_an_edited_function_of_the_same_code_is_noticed(edit: Any, python: str, host: ModuleType) -> None:
    record = record_of(host).model_copy(update={"python": python})
    live = CodeGuard(record)
    assert live.difference() is None
    edit(host)
    assert live.difference() is not None
    assert CodeGuard(record).difference() is not None


def test_a_default_put_back_is_as_good(host: ModuleType) -> None:
    live = CodeGuard(record_of(host))
    before = host.scaled.__defaults__
    with_other_defaults(host)
    assert live.difference() is not None
    host.scaled.__defaults__ = before
    assert live.difference() is None


@pytest.mark.parametrize("cls", [torch.Tensor, torch.nn.Parameter])
@pytest.mark.parametrize(("name", "counts"), [("chunk", True), ("__add__", True), ("clamp_min", False)])
def test_a_method_of_tensors_counts_where_the_host_names_it(
    name: str, counts: bool, cls: Any, host: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = CodeGuard(record_of(host))
    assert live.difference() is None
    with monkeypatch.context() as patch:
        patch.setattr(cls, name, foreign)
        found = live.difference()
        assert (found == FunctionReplaced(f"{cls.__name__}.{name}", "test_code_guard")) is counts
        assert (found is None) is not counts
    assert live.difference() is None


def test_a_class_must_not_hide_the_weights_of_its_modules(host: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    live = CodeGuard(record_of(host))
    assert live.difference() is None
    monkeypatch.setattr(torch.nn.Conv1d, "weight", property(foreign), raising=False)
    assert live.difference() == FunctionReplaced("Conv1d.weight", "test_code_guard")
    monkeypatch.undo()
    assert live.difference() is None
    monkeypatch.setattr(host.M, "inner", property(foreign), raising=False)
    assert live.difference() == FunctionReplaced("M.inner", "test_code_guard")


def test_interchangeable_functions_are_as_good(host: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    record = record_of(host)
    for python in (PYTHON, "another"):
        live = CodeGuard(record.model_copy(update={"python": python}))
        monkeypatch.setattr(host, "activation", host.slow)
        assert live.difference() is None
        monkeypatch.setattr(host, "activation", foreign)
        found = live.difference()
        assert isinstance(found, FunctionReplaced) and found.name == "model.activation"
        for other in (host.M(), 5):
            monkeypatch.setattr(host, "activation", other)
            assert live.difference() is not None, (python, other)


def test_a_method_of_another_file_is_found(host: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    module = host.M()
    assert foreign_method(module) is None
    monkeypatch.setattr(host.Base, "helper", foreign)
    found = foreign_method(module)
    assert found is not None and found.name == "Base.helper"


def forget(*packages: str) -> None:
    for name in [name for name in sys.modules if name.startswith(packages)]:
        del sys.modules[name]
    importlib.invalidate_caches()
    linecache.checkcache()


def test_a_decorated_function_of_another_release_is_the_hosts(host: ModuleType, tmp_path: Path) -> None:
    """A decorator that stands in another file of the package, as those of diffusers do."""
    record = record_of(host)
    decorators = tmp_path / "edited_host" / "decorators.py"
    decorators.write_text(
        "import functools\n"
        "def tripled(function):\n"
        "    @functools.wraps(function)\n"
        "    def wrapper(*args): return function(*args) * 3\n"
        "    return wrapper\n"
    )
    edited_host.write(tmp_path)
    source = tmp_path / "edited_host" / "model.py"
    other = source.read_text().replace("@doubled", "@tripled").replace("import math", "import math\nTRIPLED")
    source.write_text(other.replace("TRIPLED", "from .decorators import tripled"))
    forget("edited_host")
    importlib.import_module("edited_host.model")
    found = CodeGuard(record).difference()
    assert isinstance(found, OtherHostVersion) and found.name == "model.wrapped"


def test_another_release_of_a_library_is_no_custom_node(host: ModuleType, tmp_path: Path) -> None:
    """A function of a package that the host imports, as of einops: compile anew instead of eager for good."""
    (tmp_path / "edited_host" / "__init__.py").write_text("")
    library = tmp_path / "edited_library.py"
    library.write_text("def extra(x): return x + 1\n")
    source = tmp_path / "edited_host" / "model.py"
    text = source.read_text().replace("import math", "import math\nfrom edited_library import extra")
    source.write_text(text.replace("return tripled(", "return extra(parts[0]) + tripled("))
    forget("edited_host", "edited_library")
    record = record_of(importlib.import_module("edited_host.model"))
    assert CodeGuard(record).difference() is None
    library.write_text("def extra(x): return x + 22\n")
    forget("edited_host", "edited_library")
    importlib.import_module("edited_host.model")
    found = CodeGuard(record).difference()
    assert isinstance(found, OtherHostVersion) and found.name == "model.extra"
    sys.modules["edited_host.model"].extra = foreign  # type: ignore[attr-defined]
    assert isinstance(CodeGuard(record).difference(), FunctionReplaced)
    forget("edited_library")


def test_a_pack_whose_name_begins_like_the_hosts_is_foreign(host: ModuleType) -> None:
    assert is_defined_in(host.scaled, "edited_host")
    assert not is_defined_in(host.scaled, "edited")


def test_another_torch_has_functions_of_its_own(host: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that an older torch compiled: torch's own functions may be written otherwise, none may be foreign."""
    record = record_of(host)
    of_conv = "torch.nn.modules.conv:Conv1d._conv_forward"
    of_torch = {name: ("0" * 16, "0" * 16) for name in record.functions if name.startswith("torch.")}
    assert of_conv in of_torch
    changed = record.model_copy(update={"functions": {**record.functions, **of_torch}})
    assert isinstance(CodeGuard(changed).difference(), OtherHostVersion)
    older = changed.model_copy(update={"torch": "2.9"})
    live = CodeGuard(older)
    assert live.difference() is None
    monkeypatch.setattr(torch.nn.Conv1d, "_conv_forward", foreign)
    found = live.difference()
    assert isinstance(found, FunctionReplaced) and found.name == "Conv1d._conv_forward"
    monkeypatch.undo()
    assert live.difference() is None
    monkeypatch.setattr(torch.nn.Conv1d, "_conv_forward", torch.nn.Conv2d._conv_forward)  # torch's own, and not it
    assert live.difference() is not None
    monkeypatch.undo()
    of_host = next(name for name in record.functions if name.startswith("edited_host"))
    other = {**older.functions, of_host: ("0" * 16, "0" * 16)}
    assert isinstance(CodeGuard(older.model_copy(update={"functions": other})).difference(), OtherHostVersion)
