"""The Python functions that a capture ran, and whether the same ones are in place here and now.

A graph computes what those functions said when it was captured. Custom nodes replace them: on a class, in a module, on
one object. The compiling process, in which no custom node is loaded, records which functions of the model's packages
ran, what they and torch's modules refer to by name, and which class answers for each method. Here the record is
resolved in the live modules: in full when a graph is loaded, by identity before each call (some 0.1 ms for SDXL).

A function's digest covers its bytecode, its defaults and whatever functions it wraps, not its place in the file.
Bytecode differs between Python versions, so there is a digest of the source text for those.
"""

from __future__ import annotations

import contextlib
import cProfile
import dis
import functools
import inspect
import io
import sys
import textwrap
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from blake3 import blake3

from ..common.errors import CaptureError
from ..graph_cache.manifest import CodeRecord
from .fingerprint import Rules

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_TORCH = ("torch.nn.modules.", "torch.nn.functional")  # whose functions count, besides those of the model's packages
_EVERY_MODULE = "torch.nn.modules.module"  # of whose functions only these take part in a call:
_CALLING = ("__call__", "_wrapped_call_impl", "_call_impl", "__getattr__", "__getattribute__", "forward")
_MISSING: Any = object()
_DEPTH = 4  # functions that wrap each other
_SCALARS = (bool, int, float, str, bytes, type(None))


# Digests -----------------------------------------------------------------------------------------------------


def _constant(value: Any) -> str:
    if isinstance(value, CodeType):
        return _code_text(value)
    if isinstance(value, frozenset):
        return "{" + ",".join(sorted(map(repr, value))) + "}"  # its order differs from process to process
    return repr(value)


def _code_text(code: CodeType) -> str:
    constants = [_constant(value) for value in code.co_consts]
    return repr((code.co_code.hex(), constants, code.co_names, code.co_varnames, code.co_freevars, code.co_flags))


def _inner(function: Any) -> Iterator[Any]:
    """A function and the functions that it wraps, outermost first."""
    level = [function]
    for _ in range(_DEPTH):
        below: list[Any] = []
        for one in level:
            if isinstance(one, MethodType):
                one = one.__func__
            if isinstance(one, functools.partial):
                below.append(one.func)
            if not isinstance(one, FunctionType):
                continue
            yield one
            for cell in one.__closure__ or ():
                with contextlib.suppress(ValueError):  # an empty cell
                    if isinstance(cell.cell_contents, FunctionType | MethodType | functools.partial):
                        below.append(cell.cell_contents)
        level = below


def _plain(values: Iterable[Any]) -> str:
    return repr([value if isinstance(value, _SCALARS) else type(value).__qualname__ for value in values])


@functools.lru_cache(maxsize=4096)
def _code_digest(code: CodeType) -> str:
    return str(blake3(_code_text(code).encode()).hexdigest(length=8))


def _bytecode_digest(function: Any) -> str:
    h = blake3()
    for one in _inner(function):
        keywords = sorted((one.__kwdefaults__ or {}).items())
        h.update(f"{_code_digest(one.__code__)} {_plain(one.__defaults__ or ())}".encode())
        h.update(f" {[name for name, _ in keywords]} {_plain(value for _, value in keywords)}\n".encode())
    return str(h.hexdigest(length=8))


@functools.lru_cache(maxsize=4096)
def _source_text(code: CodeType) -> str:
    """A function's source without comments and indentation; its name where there is no source."""
    try:
        source = textwrap.dedent(inspect.getsource(code))
        tokens = [t for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type == tokenize.COMMENT]
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):
        return code.co_name
    lines = source.splitlines()
    for token in tokens:
        row, column = token.start
        lines[row - 1] = lines[row - 1][:column]
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _source_digest(function: Any) -> str:
    h = blake3()
    for one in _inner(function):
        h.update(_source_text(one.__code__).encode())
    return str(h.hexdigest(length=8))


def _plain_function(value: Any) -> Any:
    """What a class's table holds for a method, as a function."""
    if isinstance(value, staticmethod | classmethod):
        return value.__func__
    return value.fget if isinstance(value, property) else value


def _is_function(value: Any) -> bool:
    return isinstance(value, FunctionType | MethodType | functools.partial)


def _name_of(value: Any) -> str:
    return f"{getattr(value, '__module__', None)}:{getattr(value, '__qualname__', type(value).__qualname__)}"


def _describe(value: Any, digest: Callable[[Any], str]) -> str | None:
    """What a name refers to, comparable between processes; None for what is no function or class."""
    if _is_function(value):
        return f"function {digest(value)}"
    if isinstance(value, type):
        return f"class {_name_of(value)}"
    if isinstance(value, BuiltinFunctionType) or inspect.ismethoddescriptor(value):
        return f"builtin {value.__qualname__}"
    if isinstance(value, (ModuleType, Mapping, Sequence, set, *_SCALARS)):
        return None
    return f"object {type(value).__module__}.{type(value).__qualname__}" if callable(value) else None


# Recording, in the compiling process ---------------------------------------------------------------------------


@contextlib.contextmanager
def watched() -> Iterator[set[CodeType]]:
    """The code of every Python function that starts in this thread meanwhile."""
    seen: set[CodeType] = set()
    if sys.version_info >= (3, 12):
        monitoring = sys.monitoring
        tool = next(number for number in (3, 4, 2, 1) if monitoring.get_tool(number) is None)

        def started(code: CodeType, offset: int) -> Any:
            seen.add(code)
            return monitoring.DISABLE  # once is enough

        monitoring.use_tool_id(tool, "onegraph")
        monitoring.register_callback(tool, monitoring.events.PY_START, started)
        monitoring.set_events(tool, monitoring.events.PY_START)
        try:
            yield seen
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
        yield seen
    finally:
        profile.disable()
        sys.setprofile(before)
        seen.update(entry.code for entry in profile.getstats() if isinstance(entry.code, CodeType))


def _counts(module: str, roots: Sequence[str]) -> bool:
    return module.startswith(_TORCH) or module.partition(".")[0] in roots


def _counts_as_own(full: str, roots: Sequence[str]) -> bool:
    return full.partition(":")[0].partition(".")[0] in roots


def roots_of(module: torch.nn.Module, rules: Rules) -> tuple[str, ...]:
    """The packages that a model's classes come from, torch apart."""
    found = {type(child).__module__.partition(".")[0] for child in module.modules()}
    return tuple(sorted((found | set(rules.roots)) - {"torch", "builtins"}))


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _unwrapped(value: Any) -> Any:
    """The function itself below static and class methods, properties and decorators; None where there is none."""
    chain = [*_inner(_plain_function(value))]
    return chain[-1] if chain else None


def _places(module: ModuleType) -> dict[CodeType, list[str]]:
    """The names of each function of a module, by its code and that of the functions inside."""
    found: dict[CodeType, list[str]] = {}

    def walk(space: Mapping[str, Any], prefix: str, depth: int) -> None:
        for name, value in list(space.items()):
            own = isinstance(value, type) and value.__module__ == module.__name__ and value.__name__ == name
            if own and depth < _DEPTH:
                walk(vars(value), f"{prefix}{name}.", depth + 1)
            function = _unwrapped(value)
            if function is None or (depth == 0 and function.__name__ != name):
                continue  # another name for a function says which of several was chosen: see the references
            if function.__module__ == module.__name__:
                for code in _nested(function.__code__):
                    found.setdefault(code, []).append(prefix + name)

    walk(vars(module), "", 0)
    return found


def _resolved(space: Mapping[str, Any], path: Sequence[str]) -> tuple[Any, int]:
    """What a dotted path leads to, through modules and classes only, and how many of its names that took."""
    value = space.get(path[0], _MISSING)
    used = 1
    for name in path[1:]:
        if not isinstance(value, ModuleType | type):
            break
        found = vars(value).get(name, _MISSING)
        if found is _MISSING:
            break
        value, used = found, used + 1
    return value, used


def _referred(code: CodeType) -> Iterator[tuple[str, ...]]:
    """Dotted paths that start at a global name, in the code and the functions inside."""
    for one in _nested(code):
        path: list[str] = []
        for instruction in dis.get_instructions(one):
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                if path:
                    yield tuple(path)
                path = [instruction.argval]
            elif path and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                path.append(instruction.argval)
            elif path and instruction.opname not in ("CACHE", "PUSH_NULL", "EXTENDED_ARG"):
                yield tuple(path)
                path = []
        if path:
            yield tuple(path)


def _own_functions(module: ModuleType) -> list[str]:
    """Digests of all functions that a module itself defines at its top."""
    values = [value for value in vars(module).values() if isinstance(value, FunctionType)]
    return sorted({_bytecode_digest(value) for value in values if value.__module__ == module.__name__})


def record(seen: Iterable[CodeType], module: torch.nn.Module, rules: Rules) -> CodeRecord:
    """What must be the same where the graph is used.

    Args:
        seen: the code of all functions that ran during the capture, from `watched`.
        module: what was captured.

    Raises:
        CaptureError: none of the model's own functions was found again by the file that it stands in, so nobody could
            tell later whether they are still the same.
    """
    roots = roots_of(module, rules)
    by_file: dict[str, ModuleType] = {}
    for name, one in list(sys.modules.items()):
        if _counts(name, roots) and getattr(one, "__file__", None) and one.__name__ == name:
            by_file[str(one.__file__)] = one
    names_in = functools.cache(_places)
    ran: dict[str, tuple[ModuleType, str]] = {}
    for code in seen:
        owner = by_file.get(code.co_filename)
        if owner is None:
            continue
        for place in names_in(owner).get(code, ()):
            if owner.__name__ != _EVERY_MODULE or place.rpartition(".")[2] in _CALLING:
                ran[f"{owner.__name__}:{place}"] = owner, place
    functions: dict[str, tuple[str, str]] = {}
    references: dict[str, str] = {}
    for full, (owner, place) in sorted(ran.items()):
        value, _ = _resolved(vars(owner), place.split("."))
        function, shown = _unwrapped(value), _plain_function(value)
        if function is None:
            continue
        functions[full] = _bytecode_digest(shown), _source_digest(shown)
        for path in _referred(function.__code__):
            target, used = _resolved(function.__globals__, path)
            name = f"{function.__module__}:{'.'.join(path[:used])}"
            if target is _MISSING or name in references or path[0] not in function.__globals__:
                continue
            if str(getattr(target, "__module__", "")).partition(".")[0] in sys.stdlib_module_names:
                continue  # logging and the like
            if name in rules.interchangeable and isinstance(target, FunctionType):
                references[name] = "one of " + " ".join(_own_functions(sys.modules[target.__module__]))
                continue
            text = _describe(target, _bytecode_digest)
            if text is not None:
                if text.startswith("function "):
                    text += f" {_source_digest(target)}"
                references[name] = text
    if roots and not any(_counts_as_own(full, roots) for full in functions):
        raise CaptureError("The functions that the model runs could not be recorded; it runs eager instead.")
    names = sorted({full.rpartition(".")[2] for full in functions if "." in full.partition(":")[2]} | {*_CALLING})
    methods: dict[str, str] = {}
    for cls in sorted({type(child) for child in module.modules()}, key=_name_of):
        for name in names:
            definer = next((base for base in cls.__mro__ if name in vars(base)), None)
            if definer is not None:
                methods[f"{_name_of(cls)}.{name}"] = _name_of(definer)
    return CodeRecord(python=PYTHON, functions=functions, references=references, methods=methods)


# Comparing, where the graph is used --------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """A function that is not the one that the graph was captured from.

    Attributes:
        name: of the function, as users know it: `ResBlock._forward`, `openaimodel.timestep_embedding`.
        replaced_by: the custom node that put another one there; empty when the host itself has another version of it.
        replaced: whether something was put there at run time.
    """

    name: str
    replaced: bool
    replaced_by: str = ""

    @property
    def reason(self) -> str:
        if not self.replaced:
            return f"this ComfyUI has another version of {self.name} than the graph was compiled from"
        return f"another custom node replaced {self.name}" + (f" ({self.replaced_by})" if self.replaced_by else "")


def is_of(function: Any, package: str) -> bool:
    """Whether a function stands in a file of the package, whatever it says of itself."""
    chain = [*_inner(function)]
    if not chain or not str(chain[0].__module__).startswith(package):
        return False
    home = sys.modules.get(chain[0].__module__)
    return chain[0].__code__.co_filename == getattr(home, "__file__", None)


def foreign_method(module: torch.nn.Module) -> Difference | None:
    """A method of a model's class that stands in another file than the class: put there at run time."""
    for cls in {base for child in module.modules() for base in type(child).__mro__}:
        home = getattr(sys.modules.get(cls.__module__), "__file__", None)
        if cls in (object, torch.nn.Module) or home is None:
            continue
        for name, value in list(vars(cls).items()):
            function = _plain_function(value)
            chain = [*_inner(function)] if isinstance(function, FunctionType) else []
            files = {one.__code__.co_filename for one in chain}
            known = home in files or any(file.startswith("<") for file in files)
            if chain and not known and not is_of(function, cls.__module__.partition(".")[0]):
                return Difference(f"{cls.__name__}.{name}", True, custom_node(function))
    return None


def custom_node(function: Any) -> str:
    """The custom node pack that a function comes from, or the last part of its module's name."""
    chain = [*_inner(function)]
    if not chain:
        return ""
    parts = chain[0].__code__.co_filename.replace("\\", "/").split("/")
    if "custom_nodes" in parts[:-1]:
        return parts[parts.index("custom_nodes") + 1].removesuffix(".py")
    return parts[-1].removesuffix(".py") if parts[-1] != "__init__.py" else "".join(parts[-2:-1])


def short_name(full: str) -> str:
    """`comfy.ldm.modules.attention:CrossAttention.forward` as users know it."""
    module, _, path = full.partition(":")
    return path if "." in path else f"{module.rpartition('.')[2]}.{path}"


@dataclass(frozen=True)
class _Slot:
    """Where a name stands that leads to a function."""

    space: Mapping[str, Any]
    name: str
    full: str  # the function for whose sake it is watched


class LiveCode:
    """A record against the modules of this process.

    Args:
        record: from the graph's manifest.
    """

    def __init__(self, record: CodeRecord) -> None:
        self._record = record
        self._digest = _bytecode_digest if record.python == PYTHON else _source_digest
        self._which = 0 if record.python == PYTHON else 1
        self._packages = {name.partition(":")[0].partition(".")[0] for name in record.functions}
        self._slots: list[_Slot] = []
        self._spaces: list[Mapping[str, Any]] = []
        self._names: list[str] = []
        self._values: list[int] = []
        self._held: list[Any] = []  # what the record was compared with, so that nothing else gets its identity
        self._codes: list[tuple[FunctionType, CodeType]] = []
        self._difference: Difference | None = None

    def difference(self) -> Difference | None:
        """The first function that differs, or None. Cheap as long as nothing was touched since it was last asked."""
        if not self._slots or not self._untouched():
            self._difference = self._compare()
            if self._difference is not None:
                self._held = []  # a custom node's function may hold a model
        return self._difference

    def _untouched(self) -> bool:
        found = [id(space.get(name, _MISSING)) for space, name in zip(self._spaces, self._names, strict=True)]
        return found == self._values and all(function.__code__ is code for function, code in self._codes)

    def _compare(self) -> Difference | None:
        self._slots, self._codes = [], []
        try:
            return self._first_difference()
        finally:
            self._spaces = [slot.space for slot in self._slots]
            self._names = [slot.name for slot in self._slots]
            self._held = [slot.space.get(slot.name, _MISSING) for slot in self._slots]
            self._values = list(map(id, self._held))

    def _first_difference(self) -> Difference | None:
        """All names are watched, whichever differs: a difference may go away again."""
        found: list[Difference] = []
        for full, digests in self._record.functions.items():
            value = _plain_function(self._find(full))
            self._judge(found, full, value, f"function {digests[self._which]}")
        for full, text in self._record.references.items():
            value = self._find(full)
            if text.startswith("function "):
                self._judge(found, full, value, f"function {text.split(' ')[1 + self._which]}")
            elif text.startswith("one of "):
                if not self._is_one_of(text.split(" ")[2:], full, value):
                    found.append(self._of(full, value))
            elif _describe(value, self._digest) != text:
                found.append(self._of(full, value))
        for full, definer in self._record.methods.items():
            found += self._moved(full, definer)
        return min(found, key=lambda one: not one.replaced) if found else None

    def _is_one_of(self, digests: Sequence[str], full: str, value: Any) -> bool:
        """Whether a name stands for any of several functions of the host; for another Python by its file alone."""
        if not _is_function(value):
            return False
        return _bytecode_digest(value) in digests if self._which == 0 else is_of(value, full.partition(".")[0])

    def _judge(self, found: list[Difference], full: str, value: Any, wanted: str) -> None:
        if isinstance(value, FunctionType):
            self._codes.append((value, value.__code__))
        if not _is_function(value) or _describe(value, self._digest) != wanted:
            found.append(self._of(full, value))

    def _of(self, full: str, value: Any) -> Difference:
        """A difference: put there at run time, or the host's own in another version?"""
        value = _plain_function(value)
        chain = [*_inner(value)] if _is_function(value) else []
        if value is _MISSING or not chain:
            return Difference(short_name(full), replaced=value is not _MISSING)
        if any(is_of(value, package) for package in self._packages):
            return Difference(short_name(full), replaced=False)
        return Difference(short_name(full), True, custom_node(value))

    def _find(self, full: str) -> Any:
        """What a recorded name leads to now; every step is watched."""
        module_name, _, path = full.partition(":")
        module = sys.modules.get(module_name)
        if module is None:
            return _MISSING
        space: Mapping[str, Any] = vars(module)
        value: Any = _MISSING
        for name in path.split("."):
            self._slots.append(_Slot(space, name, full))
            value = space.get(name, _MISSING)
            if value is _MISSING:
                return _MISSING
            if isinstance(value, ModuleType | type):
                space = vars(value)
        return value

    def _moved(self, full: str, definer: str) -> Iterator[Difference]:
        """Whether another class answers for a method now. Its function is compared where that class is."""
        owner, _, name = full.rpartition(".")
        module_name, _, path = owner.partition(":")
        module = sys.modules.get(module_name)
        cls = _resolved(vars(module), path.split("."))[0] if module is not None else None
        if not isinstance(cls, type):
            return
        for base in cls.__mro__:
            self._slots.append(_Slot(vars(base), name, full))
            if name in vars(base):
                if _name_of(base) != definer:
                    yield self._of(f"{_name_of(cls)}.{name}", vars(base)[name])
                return
