"""Record the Python functions that a capture runs, so that another process can tell whether it has the same ones.

A graph computes what those functions were when it was captured. Custom nodes replace them: on a class, in a module, on
one object. The compiling process, in which no custom node is loaded, records which functions of the model's packages
ran, what they and torch's modules refer to by name, and which class defines each method.
`runtime.guards.code_guard` compares the record with the modules of the user's process.
"""

from __future__ import annotations

import contextlib
import cProfile
import dis
import enum
import functools
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeAlias

import torch

from ...common.code_digest import (
    PYTHON,
    bytecode_digest,
    describe_target,
    is_function,
    nested,
    package_of,
    qualified_name,
    source_digest,
    underlying_function,
    unwrap_chain,
)
from ...common.config_text import describe
from ...common.errors import CaptureError
from ...common.torch_private import tables, version
from ...graph_cache.manifest import CodeRecord
from ..blocks.attention import StandIn
from .fingerprint import Rules, names_in, python_modules

_TORCH = ("torch.nn.modules.", "torch.nn.functional")  # whose functions count, besides those of the model's packages
_EVERY_MODULE = "torch.nn.modules.module"  # of whose functions only these take part in a call:
_CALLING = ("__call__", "_wrapped_call_impl", "_call_impl", "__getattr__", "__getattribute__", "forward")
MISSING: Any = object()  # what `resolve` returns for a name that leads nowhere
_VALUES = (bool, int, float, complex, str, bytes, range, tuple, frozenset, type(None), torch.dtype, enum.Enum)
_OF_MODELS = (int, float, complex, str, tuple, torch.dtype)
_MAX_NESTING = 4  # of classes
Ran: TypeAlias = set[tuple[str, CodeType]]  # with the file of each: of two files, equal code counts as one to Python


@contextlib.contextmanager
def watched(seen: Ran) -> Iterator[None]:
    """Add the code of every Python function that starts in this thread while the context lasts."""
    if sys.version_info >= (3, 12):
        monitoring = sys.monitoring
        tool = next(number for number in (3, 4, 2, 1) if monitoring.get_tool(number) is None)

        def started(code: CodeType, offset: int) -> Any:
            seen.add((code.co_filename, code))
            return monitoring.DISABLE  # once is enough

        monitoring.use_tool_id(tool, "onegraph")
        monitoring.register_callback(tool, monitoring.events.PY_START, started)
        monitoring.set_events(tool, monitoring.events.PY_START)
        try:
            yield
        finally:
            monitoring.set_events(tool, 0)
            monitoring.free_tool_id(tool)
            monitoring.restart_events()
        return

    # Written in C: a trace function in Python takes longer than the capture itself.
    profile = cProfile.Profile(subcalls=False, builtins=False)
    before = sys.getprofile()
    profile.enable()
    try:
        yield
    finally:
        profile.disable()
        sys.setprofile(before)
        codes = (entry.code for entry in profile.getstats())
        seen.update((code.co_filename, code) for code in codes if isinstance(code, CodeType))


def _counts(module: str, roots: Sequence[str]) -> bool:
    return module.startswith(_TORCH) or module.partition(".")[0] in roots


def _roots_of(module: torch.nn.Module, rules: Rules) -> tuple[str, ...]:
    """Return the packages that a model's classes come from, torch and this pack apart."""
    packages = {type(child).__module__.partition(".")[0] for child in module.modules()}
    return tuple(sorted((packages | set(rules.roots)) - {"torch", "builtins", __name__.partition(".")[0]}))


def _unwrapped(value: Any) -> Any:
    """Return the function below static and class methods, properties and decorators, or None."""
    chain = [*unwrap_chain(underlying_function(value))]
    return chain[-1] if chain else None


def _paths_of_code(module: ModuleType) -> dict[CodeType, list[str]]:
    """Map the code of a module's functions, and of functions inside them, to their dotted paths."""
    paths: dict[CodeType, list[str]] = {}

    def walk(space: Mapping[str, Any], prefix: str, depth: int) -> None:
        for name, value in list(space.items()):
            defined_here = isinstance(value, type) and value.__module__ == module.__name__ and value.__name__ == name
            if defined_here and depth < _MAX_NESTING:
                walk(vars(value), f"{prefix}{name}.", depth + 1)
            function = _unwrapped(value)
            if function is None or (depth == 0 and function.__name__ != name):
                continue  # another name for a function says which of several was chosen: see the references
            if function.__module__ == module.__name__:
                for code in nested(function.__code__):
                    paths.setdefault(code, []).append(prefix + name)

    walk(vars(module), "", 0)
    return paths


def resolve(space: Mapping[str, Any], path: Sequence[str]) -> tuple[Any, int]:
    """Follow a dotted path through modules and classes.

    Returns:
        What it leads to, or `MISSING`, and how many of its names that took.
    """
    value = space.get(path[0], MISSING)
    used = 1
    for name in path[1:]:
        if not isinstance(value, ModuleType | type):
            break
        attribute = vars(value).get(name, MISSING)
        if attribute is MISSING:
            break
        value, used = attribute, used + 1
    return value, used


@functools.cache
def global_references(code: CodeType) -> list[tuple[str, ...]]:
    """List dotted paths that start at a global name, in the code and the functions inside."""
    found: list[tuple[str, ...]] = []
    for one in nested(code):
        path: list[str] = []
        for instruction in dis.get_instructions(one):
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                if path:
                    found.append(tuple(path))
                path = [instruction.argval]
            elif path and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                path.append(instruction.argval)
            elif path and instruction.opname not in ("CACHE", "PUSH_NULL", "EXTENDED_ARG"):
                found.append(tuple(path))
                path = []
        if path:
            found.append(tuple(path))
    return found


def _own_functions(module: ModuleType) -> list[str]:
    """Return the digests of all functions that a module itself defines at its top level."""
    values = [value for value in vars(module).values() if isinstance(value, FunctionType)]
    return sorted({bytecode_digest(value) for value in values if value.__module__ == module.__name__})


def _functions_that_ran(seen: Ran, roots: Sequence[str]) -> dict[str, tuple[ModuleType, str]]:
    """Map `module:path` of each function that counts to its module and path, sorted."""
    by_file: dict[str, ModuleType] = {}
    for name, module in list(sys.modules.items()):
        if _counts(name, roots) and getattr(module, "__file__", None) and module.__name__ == name:
            by_file[str(module.__file__)] = module
    paths_of_code = functools.cache(_paths_of_code)
    ran: dict[str, tuple[ModuleType, str]] = {}
    for file, code in seen:
        owner = by_file.get(file)
        if owner is None:
            continue
        for path in paths_of_code(owner).get(code, ()):
            if owner.__name__ != _EVERY_MODULE or path.rpartition(".")[2] in _CALLING:
                ran[f"{owner.__name__}:{path}"] = owner, path
    return dict(sorted(ran.items()))


def _describe_references(
    function: FunctionType, rules: Rules, models: Collection[str], references: dict[str, str]
) -> None:
    """Add what a function's global names refer to to `references`, by `module:path`.

    Args:
        models: Python modules that define the model's classes. Numbers and strings there are the model's, while those
            of others, and what is true or false, tell of the machine or of the moment.
    """
    for path in global_references(function.__code__):
        target, used = resolve(function.__globals__, path)
        name = f"{function.__module__}:{'.'.join(path[:used])}"
        if target is MISSING or name in references or path[0] not in function.__globals__:
            continue
        if isinstance(target, StandIn):
            continue  # the graph calls whatever the name refers to
        of_python = str(getattr(target, "__module__", "")).partition(".")[0] in sys.stdlib_module_names
        if of_python and not isinstance(target, functools.partial):
            continue  # logging and the like
        if name in rules.interchangeable and isinstance(target, FunctionType):
            words = [*_own_functions(sys.modules[target.__module__]), *(f"-{one}" for one in sorted(rules.beside))]
            references[name] = "one of " + " ".join(words)
            continue
        text = describe_target(target, bytecode_digest)
        if text is None and used == 1 and function.__module__ in models and type(target) in _OF_MODELS:
            text = describe_value(target)
        if text is not None:
            if text.startswith("function "):
                text += f" {source_digest(target)} {package_of(target)}"
            references[name] = text


def _describe_choices(name: str, rules: Rules, references: dict[str, str]) -> None:
    """Add what the name refers to in each package that a library looks it up in when it is called."""
    for module_name, module in list(sys.modules.items()):
        target = vars(module).get(name) if module_name.rpartition(".")[0] in rules.chosen_among else None
        if is_function(target):
            text = describe_target(target, bytecode_digest)
            references[f"{module_name}:{name}"] = f"{text} {source_digest(target)} {package_of(target)}"


def _defining_classes(module: torch.nn.Module, names: Iterable[str]) -> dict[str, str]:
    """Map `module:Class.method` to the class that defines the method, for the classes of a model's modules.

    So for the names of their weights and children, which no class may define: then the text is empty.
    """
    held: dict[type, set[str]] = {}
    for child in module.modules():
        table_names = (name for table in tables(child) for name in table if name.isidentifier())
        held.setdefault(type(child), set()).update(table_names)
    methods: dict[str, str] = {}
    for cls in sorted(held, key=qualified_name):
        for name in sorted({*names, *held[cls]}):
            definer = next((base for base in cls.__mro__ if name in vars(base)), None)
            if definer is not None or name in held[cls]:
                methods[f"{qualified_name(cls)}.{name}"] = qualified_name(definer) if definer is not None else ""
    return methods


def describe_value(value: Any) -> str | None:
    """Return the text of a plain value that cannot change in place, or None."""
    text = describe(value) if isinstance(value, _VALUES) else None
    return None if text is None else f"value {text}"


def _class_values(module: torch.nn.Module, names: Collection[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the plain values that the classes of a model's modules have under some names: class, name and text."""
    for cls in {base for child in module.modules() for base in type(child).__mro__}:
        if cls.__module__.partition(".")[0] in ("torch", "builtins") or "<" in cls.__qualname__:
            continue
        for name, value in list(vars(cls).items()):
            text = describe_value(value) if name in names and not name.startswith("__") else None
            if text is not None:
                yield qualified_name(cls), name, text


def record(seen: Ran, module: torch.nn.Module, rules: Rules) -> CodeRecord:
    """Record what must be the same wherever the graph is used.

    Args:
        seen: the code of all functions that ran during the capture, from `watched`.
        module: what was captured.

    Raises:
        CaptureError: none of the model's own functions was found again by the file that it stands in, so nobody could
            tell later whether they are still the same.
    """
    roots = _roots_of(module, rules)
    models = {name for name in python_modules(module) if name.partition(".")[0] != "torch"}
    functions: dict[str, tuple[str, str]] = {}
    references: dict[str, str] = {}
    names: set[str] = set()  # in the code of the model's packages
    for full, (owner, path) in _functions_that_ran(seen, roots).items():
        value, _ = resolve(vars(owner), path.split("."))
        function, outermost = _unwrapped(value), underlying_function(value)
        if function is not None:
            functions[full] = bytecode_digest(outermost), source_digest(outermost)
            names |= set() if owner.__name__.startswith(_TORCH) else {*names_in(function.__code__)}
            _describe_references(function, rules, models, references)
            _describe_choices(path, rules, references)
    if roots and not any(full.partition(":")[0].partition(".")[0] in roots for full in functions):
        raise CaptureError("The functions that the model runs could not be recorded; it runs uncompiled instead.")
    methods = {full.rpartition(".")[2] for full in functions if "." in full.partition(":")[2]}
    for cls, name, text in sorted(_class_values(module, names)):
        references[f"{cls}.{name}"] = text
        methods.add(name)  # a class that is derived from it may have a value of its own later
    return CodeRecord(
        python=PYTHON,
        torch=".".join(map(str, version())),
        functions=functions,
        references=references,
        methods=_defining_classes(module, sorted(methods | {*_CALLING})),
    )
