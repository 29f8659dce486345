"""Digest a module's architecture: what compiled code depends on besides shapes and functions.

One graph serves all checkpoints with the same digest. Two modules that differ in anything that could change the code (a
head count, which no weight shows, or a padding mode) have different digests. The functions that the modules call are
not part of it: a graph records those that it was captured from (`code_record`).
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from blake3 import blake3

from ...common.config_text import describe
from ..composite_weights import NONE, PLAIN, Composites

# Every module has these; they hold its weights, children and hooks, or say what it is used for.
OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))


@dataclass(frozen=True)
class Rules:
    """What a host's modules hold that is no architecture of theirs.

    Attributes:
        placement: tells whether an attribute of that name places a module's weights and computes nothing, or holds what
            a view has among the arguments of its calls (`views.is_kept`).
        interchangeable: attributes, and global names as `module:name`, that hold one of several functions of the
            host which compute the same. A graph has its own.
        beside: names of modules that these functions ask how to compute: what is in them changes no result.
        options: settings of the host that change what its modules compute, e.g. `upcast=True`.
        roots: packages whose functions the modules call, besides those that define the modules.
        chosen_among: packages whose packages have functions of the same names, of which a library looks one up and
            calls it.
        intercepted: gives the methods of the model itself, not of its children, that the client takes calls by. It
            knows what stands there, and calls the class's own.
        numbers: attributes by which modules of one kind are numbered. As long as the code in the Python modules of the
            model's classes only asks whether they equal certain numbers, the answers are architecture, and they are
            not.
        describe: the text of an attribute's value where that is configuration, else None. Empty: the same as if the
            attribute were not there.
        composites: weights that consist of several plain tensors.
    """

    placement: Callable[[str], bool] = lambda name: False
    interchangeable: frozenset[str] = frozenset()
    beside: frozenset[str] = frozenset()
    options: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    chosen_among: frozenset[str] = frozenset()
    intercepted: Callable[[torch.nn.Module], frozenset[str]] = lambda module: frozenset()
    numbers: frozenset[str] = frozenset()
    describe: Callable[[Any], str | None] = describe
    composites: Composites = NONE


@dataclass(frozen=True)
class Attribute:
    """One attribute that belongs to the architecture, with its value as text."""

    name: str
    text: str


def names_in(code: CodeType) -> Iterator[str]:
    """Yield the names and strings in a function's code and in the functions inside."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)
        elif isinstance(constant, str):
            yield constant


@functools.cache
def _names_of(module_name: str) -> frozenset[str]:
    """Return all names and strings in the code of a Python module's functions and methods."""
    names: set[str] = set()

    def walk(space: Any, depth: int) -> None:
        for value in list(space.values()):
            value = getattr(value, "__func__", getattr(value, "fget", value))
            if isinstance(value, FunctionType) and value.__module__ == module_name:
                names.update(names_in(inspect.unwrap(value).__code__))
            elif isinstance(value, type) and value.__module__ == module_name and depth < 3:
                walk(vars(value), depth + 1)

    walk(vars(sys.modules[module_name]) if module_name in sys.modules else {}, 0)
    return frozenset(names)


@functools.cache
def _only_compared(module_name: str, names: frozenset[str]) -> dict[str, frozenset[int]]:
    """Return which of these attributes a Python module's code does nothing with but set them and ask whether they equal
    whole numbers, and these numbers."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module_name]))
    except (OSError, KeyError, TypeError, SyntaxError):  # nobody can tell
        return {}
    compared: dict[str, set[int]] = {name: set() for name in names}
    harmless: set[ast.expr] = set()
    changed = {node.target for node in ast.walk(tree) if isinstance(node, ast.AugAssign)}
    for node in ast.walk(tree):
        match node:
            case ast.Compare(
                ast.Attribute(attr=name) as read, [ast.Eq() | ast.NotEq()], [ast.Constant(int() as number)]
            ):
                compared.get(name, set()).add(number)
                harmless.add(read)
            case ast.Attribute(ctx=ast.Store()) if node not in changed:
                harmless.add(node)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) if node not in harmless:
                compared.pop(name, None)
            case ast.Constant(str() as name):  # of `getattr`, perhaps
                compared.pop(name, None)
    return {name: frozenset(numbers) for name, numbers in compared.items()}


def referenced_names(module: torch.nn.Module) -> frozenset[str]:
    """Return the names of attributes that the code of a model's classes can read.

    An attribute that a custom node left behind on a module, and that no such code names, changes nothing.
    """
    return frozenset[str]().union(*map(_names_of, python_modules(module)))


def compared_numbers(module: torch.nn.Module, rules: Rules) -> dict[str, frozenset[int]]:
    """Return of which attributes it matters only whether they equal whole numbers, and these numbers: see `Rules`."""
    modules = {name for name in python_modules(module) if not name.startswith("torch.")} if rules.numbers else ()
    by_module = [_only_compared(name, rules.numbers) for name in modules]
    common = rules.numbers.intersection(*by_module) if by_module else ()
    return {name: frozenset[int]().union(*(one[name] for one in by_module)) for name in common}


def python_modules(module: torch.nn.Module) -> set[str]:
    """Return the names of the Python modules that define a model's classes."""
    classes = {base for child in module.modules() for base in type(child).__mro__}
    return {cls.__module__ for cls in classes if cls not in (object, torch.nn.Module)}


def attributes(
    module: torch.nn.Module, referenced: frozenset[str], compared: Mapping[str, frozenset[int]], rules: Rules
) -> Iterator[Attribute]:
    """Yield the attributes of one module (not of its children) that belong to its architecture, in order.

    Args:
        referenced: from `referenced_names`, of the whole model.
        compared: from `compared_numbers`, of the whole model.
    """
    for name, value in sorted(vars(module).items()):
        if name in OF_EVERY_MODULE or name not in referenced or name in rules.interchangeable or rules.placement(name):
            continue
        if is_own_method(module, name, value):
            continue
        if type(value) is int and name in compared and value not in compared[name]:
            continue  # it equals none of the numbers that it is compared with
        text = rules.describe(value)
        if isinstance(value, MethodType) and isinstance(value.__self__, torch.nn.Module):
            paths = (path for path, one in module.named_modules() if one is value.__self__)
            text = f"{text} of {next(paths, 'another module')}"  # whose weights it reads
        if text:
            yield Attribute(name, text)


def is_own_method(module: torch.nn.Module, name: str, value: Any) -> bool:
    """Tell whether an instance attribute is the class's own method, bound to the module: it changes nothing."""
    function = getattr(value, "__func__", None)
    return (
        function is not None and value.__self__ is module and function is inspect.getattr_static(type(module), name, 0)
    )


def digest(module: torch.nn.Module, rules: Rules | None = None) -> str:
    """Digest a module's classes, configuration and weights' metadata: 64 hex digits."""
    rules = rules or Rules()
    referenced, compared = referenced_names(module), compared_numbers(module, rules)
    h = blake3()
    for option in rules.options:
        h.update(f"\noption {option}".encode())
    for name, child in module.named_modules():
        cls = type(child)
        h.update(f"\nmodule {name} {cls.__module__}.{cls.__qualname__}".encode())
        for attribute in attributes(child, referenced, compared, rules):
            h.update(f"\n {attribute.name}={attribute.text}".encode())
    # By name: not all that fill a module register its weights in one order.
    for name, tensor in sorted([*module.named_parameters(), *module.named_buffers()], key=lambda one: one[0]):
        h.update(f"\ntensor {name} {list(tensor.shape)} {list(tensor.stride())} {tensor.dtype}".encode())
        parts = rules.composites.parts(tensor) if type(tensor) not in PLAIN else None
        if parts is not None:
            h.update(f"\n {parts.metadata()}".encode())
    return h.hexdigest()
