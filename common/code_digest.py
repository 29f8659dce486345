"""What a Python function computes, as digests that are equal in every process.

A digest covers a function's bytecode, its defaults, the plain values that it closes over, the functions that it wraps,
the arguments that are bound to them, and the Python module in which each looks up its names, not its place in the file.
Bytecode differs between Python versions, so there is a digest of the source for those.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from blake3 import blake3

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_MAX_WRAPPERS = 4  # functions that wrap each other
_UNSAID = ("annotation", "returns", "type_comment", "type_params", "kind", "ctx")  # fields of syntax trees
_SCALARS = (bool, int, float, str, bytes, type(None))


def _constant(value: Any) -> str:
    if isinstance(value, CodeType):
        return _code_text(value)
    if isinstance(value, frozenset):
        return "{" + ",".join(sorted(map(repr, value))) + "}"  # its order differs from process to process
    return repr(value)


def _code_text(code: CodeType) -> str:
    constants = [_constant(value) for value in code.co_consts]
    return repr((code.co_code.hex(), constants, code.co_names, code.co_varnames, code.co_freevars, code.co_flags))


def nested(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code and that of the functions that it makes."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested(constant)


def _links(function: Any) -> Iterator[Any]:
    """Yield a function and what it wraps, outermost first, with the objects that bind arguments to these."""
    level = [function]
    for _ in range(_MAX_WRAPPERS):
        below: list[Any] = []
        for one in level:
            yield one
            if isinstance(one, MethodType):
                one = one.__func__
                yield one
            if isinstance(one, functools.partial):
                below.append(one.func)
            if isinstance(one, FunctionType):
                below += [value for value in cells(one) if is_function(value)]
        level = below


def unwrap_chain(function: Any) -> Iterator[FunctionType]:
    """Yield a function and the functions that it wraps, outermost first."""
    return (one for one in _links(function) if isinstance(one, FunctionType))


def binds_arguments(function: Any) -> bool:
    """Tell whether it, or what it wraps, is called with arguments that are bound to it, and not with those given."""
    return any(_bound(one) for one in _links(function))


def _bound(one: Any) -> str:
    """What an object binds to a function: its arguments, or that it is an object's method; empty where it does not."""
    if isinstance(one, MethodType):
        return f"method of {type(one.__self__).__qualname__}"
    if not isinstance(one, functools.partial) or not (one.args or one.keywords):
        return ""
    keywords = sorted(one.keywords.items())
    return f"partial {_plain(one.args)} {[name for name, _ in keywords]} {_plain(value for _, value in keywords)}"


def _plain(values: Iterable[Any]) -> str:
    return repr([value if isinstance(value, _SCALARS) else type(value).__qualname__ for value in values])


def home_of(function: FunctionType) -> str:
    """Return the Python module in whose names a function looks up its own, whatever it claims to be from."""
    return str(function.__globals__.get("__name__"))


def package_of(function: Any) -> str:
    """Return the top-level package of a function, or of the decorator that wraps it; empty where nobody can tell."""
    outermost = next(unwrap_chain(function), None)
    return "" if outermost is None else home_of(outermost).partition(".")[0]


def is_at_home(function: Any) -> bool:
    """Tell whether a function and those that it wraps look up their names in modules of this process, not in a copy."""
    return all(
        one.__globals__ is getattr(sys.modules.get(home_of(one)), "__dict__", None) for one in unwrap_chain(function)
    )


def cells(function: FunctionType) -> tuple[Any, ...]:
    """Return what a function closes over; what an empty cell holds is left out."""
    contents: list[Any] = []
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):
            contents.append(cell.cell_contents)
    return tuple(contents)


def _defaults(function: FunctionType) -> str:
    """Return what a function has besides its code: its module, its defaults and the values that it closes over."""
    keywords = sorted((function.__kwdefaults__ or {}).items())
    values = [function.__defaults__ or (), [value for _, value in keywords], cells(function)]
    return f"{home_of(function)} {[name for name, _ in keywords]} {[_plain(one) for one in values]}"


@functools.lru_cache(maxsize=4096)
def _code_digest(code: CodeType) -> str:
    return str(blake3(_code_text(code).encode()).hexdigest(length=8))


def bytecode_digest(function: Any) -> str:
    """Digest bytecode and defaults: 16 hex digits that hold for this version of Python."""
    return _digest(function, _code_digest)


def _digest(function: Any, text_of: Callable[[CodeType], str]) -> str:
    h = blake3()
    for one in _links(function):
        text = f"{text_of(one.__code__)} {_defaults(one)}" if isinstance(one, FunctionType) else _bound(one)
        if text:
            h.update(f"{text}\n".encode())
    return str(h.hexdigest(length=8))


@functools.lru_cache(maxsize=4096)
def _source_text(code: CodeType) -> str:
    """Return what a function's source says to Python, and nothing that it says to readers and type checkers; its name
    where there is no source, and the text where that is no statement, as a lambda's.
    """
    try:
        source = textwrap.dedent(inspect.getsource(code))
    except (OSError, TypeError):
        return code.co_name
    try:
        return _meaning(ast.parse(source))
    except (SyntaxError, ValueError, RecursionError):
        return "\n".join(line.rstrip() for line in source.splitlines() if line.strip())


def _meaning(node: Any) -> str:
    """The syntax tree as text that is equal for all versions of Python, which add fields and print them in other ways.

    Annotations and docstrings are left out, which libraries change without a change of what is computed.
    """
    if isinstance(node, list):
        return f"[{','.join(map(_meaning, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.AnnAssign):
        node = ast.Assign([node.target], node.value) if node.value is not None else ast.Pass()
    fields = {name: value for name, value in ast.iter_fields(node) if name not in _UNSAID and value not in (None, [])}
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(node, clean=False):
        fields["body"] = node.body[1:]
    return f"{type(node).__name__}({','.join(f'{name}={_meaning(value)}' for name, value in fields.items())})"


def source_digest(function: Any) -> str:
    """Digest what the source says: 16 hex digits that hold for every version of Python."""
    return _digest(function, _source_text)


def underlying_function(value: Any) -> Any:
    """Return the function behind an entry of a class's `__dict__`."""
    if isinstance(value, staticmethod | classmethod):
        return value.__func__
    return value.fget if isinstance(value, property) else value


def is_function(value: Any) -> bool:
    """Tell whether a value is Python code that can be called and digested."""
    return isinstance(value, FunctionType | MethodType | functools.partial)


def qualified_name(value: Any) -> str:
    """Return `module:path` of a class or function."""
    return f"{getattr(value, '__module__', None)}:{getattr(value, '__qualname__', type(value).__qualname__)}"


def describe_target(value: Any, digest: Callable[[Any], str]) -> str | None:
    """Describe what a name refers to, equal in every process; None for what is no function or class.

    Args:
        digest: `bytecode_digest` or `source_digest`.
    """
    if is_function(value):
        return f"function {digest(value)}"
    if isinstance(value, type):
        return f"class {qualified_name(value)}"
    if isinstance(value, BuiltinFunctionType) or inspect.ismethoddescriptor(value):
        return f"builtin {value.__qualname__}"
    if isinstance(value, (ModuleType, Mapping, Sequence, set, *_SCALARS)):
        return None
    return f"object {type(value).__module__}.{type(value).__qualname__}" if callable(value) else None
