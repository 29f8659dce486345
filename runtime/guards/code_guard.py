"""Compare the functions of this process with those that a graph was captured from.

Custom nodes replace functions of the host: on a class, in a module, on one object. A graph's manifest records which
functions its capture ran (`compiler.code.code_record`). Here the record is resolved in the live modules: in full when a
graph is loaded, by identity at calls that are checked in full (some 0.1 ms for SDXL).
"""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any, TypeAlias

import torch

from ...common.code_digest import (
    PYTHON,
    binds_arguments,
    bytecode_digest,
    cells,
    describe_target,
    home_of,
    is_at_home,
    is_function,
    qualified_name,
    source_digest,
    underlying_function,
    unwrap_chain,
)
from ...common.reasons import FunctionReplaced, OtherHostVersion
from ...common.torch_private import version
from ...compiler.code.code_record import MISSING, describe_value, resolve
from ...compiler.code.fingerprint import names_in
from ...graph_cache.manifest import CodeRecord, Manifest
from .named_functions import foreign_below
from .watched_names import WatchedNames

# A function that is not the one that the graph was captured from. One that was replaced at run time may be put back,
# another version of the host stays.
Difference: TypeAlias = FunctionReplaced | OtherHostVersion


def is_defined_in(function: Any, package: str) -> bool:
    """Tell whether a function stands in a file of the package, whatever its `__module__` claims.

    What it wraps must be the package's, too, or torch's; so must what wraps it.
    """
    chain = [*unwrap_chain(function)]
    return bool(chain) and _is_of(chain[0], package) and all(_is_of(one, package, "torch") for one in chain)


def _is_of(function: FunctionType, *packages: str) -> bool:
    home = home_of(function)
    if home.partition(".")[0] not in packages:
        return False
    return function.__code__.co_filename == getattr(sys.modules.get(home), "__file__", None)


def is_what_its_name_says(cls: type) -> bool:
    """Tell whether no other class has the name of this one, as a subclass that poses as what it is derived from."""
    if "<" in cls.__qualname__ or cls.__module__ not in sys.modules:
        return True  # of a function, or of nobody
    target, _ = resolve(vars(sys.modules[cls.__module__]), cls.__qualname__.split("."))
    return target is cls or not isinstance(target, type) or qualified_name(target) != qualified_name(cls)


def foreign_method(module: torch.nn.Module) -> FunctionReplaced | None:
    """Find a method of a model's class that stands in another file than the class: put there at run time."""
    for cls in {base for child in module.modules() for base in type(child).__mro__}:
        home = getattr(sys.modules.get(cls.__module__), "__file__", None)
        if cls in (object, torch.nn.Module) or home is None:
            continue
        for name, value in list(vars(cls).items()):
            function = underlying_function(value)
            chain = [*unwrap_chain(function)] if isinstance(function, FunctionType) else []
            files = {one.__code__.co_filename for one in chain}
            at_home = home in files or any(file.startswith("<") for file in files)
            if chain and not at_home and not is_defined_in(function, cls.__module__.partition(".")[0]):
                return FunctionReplaced(f"{cls.__name__}.{name}", custom_node(function))
    return None


def is_own_method(cls: type, name: str) -> bool:
    """Tell whether a class's method, and all that it wraps, stands in the package of the class."""
    owner = next((base for base in cls.__mro__ if name in vars(base)), None)
    if owner is None:
        return False
    return is_defined_in(underlying_function(vars(owner)[name]), owner.__module__.partition(".")[0])


def custom_node(function: Any) -> str:
    """Name the custom node pack that a function comes from, else its file or folder; empty where nobody can tell."""
    chain = [*unwrap_chain(function)]
    if not chain:
        return ""
    parts = chain[0].__code__.co_filename.replace("\\", "/").split("/")
    if "custom_nodes" in parts[:-1]:
        return parts[parts.index("custom_nodes") + 1].removesuffix(".py")
    return parts[-1].removesuffix(".py") if parts[-1] != "__init__.py" else "".join(parts[-2:-1])


def short_name(full: str) -> str:
    """Shorten `comfy.ldm.modules.attention:CrossAttention.forward` to what users know: `CrossAttention.forward`."""
    module, _, path = full.partition(":")
    return path if "." in path else f"{module.rpartition('.')[2]}.{path}"


_ALIASES = {"Module.__call__": "Module._wrapped_call_impl"}  # names that torch gives functions of other names
_OPERATORS = [
    *("__getitem__", "__setitem__", "__neg__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"),
    *("__iter__", "unbind"),  # by which code unpacks
    *(
        f"__{side}{name}__"
        for side in ("", "r", "i")
        for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
    ),
]  # of tensors, which code does not name


_CHANGEABLE = operator.attrgetter("__code__", "__defaults__", "__kwdefaults__")


def _parts(functions: Sequence[FunctionType], closures: Sequence[FunctionType]) -> list[Any]:
    """List what may be changed in functions themselves. `closures`: those that close over something."""
    values = [*itertools.chain.from_iterable(map(_CHANGEABLE, functions))]
    for named in filter(None, values[2::3]):
        values += (*named, *named.values())
    for function in closures:
        values += cells(function)
    return values


class CodeGuard:
    """Compare a record with the modules of this process, again and again.

    Args:
        record: from the graph's manifest.
    """

    def __init__(self, record: CodeRecord) -> None:
        self._record = record
        self._digest = bytecode_digest if record.python == PYTHON else source_digest
        self._which_digest = 0 if record.python == PYTHON else 1
        self._is_of_this_torch = record.torch in ("", ".".join(map(str, version())))
        self._packages = {name.partition(":")[0].partition(".")[0] for name in record.functions}
        self._names = WatchedNames()
        self._functions: list[FunctionType] = []  # the host's own, which may be changed in place
        self._closures: list[FunctionType] = []
        self._parts: list[Any] = []  # what makes these functions up
        self._part_ids: list[int] = []
        self._difference: Difference | None = None
        self._moment: object = None

    def difference(self, moment: object = None) -> Difference | None:
        """Return a function that differs, one that was replaced at run time first, or None.

        Cheap as long as nothing was touched since the last call.

        Args:
            moment: for which what is in functions themselves is compared once, and what names refer to each time.
        """
        same = self._names.same()
        if same and (moment is None or moment is not self._moment):
            self._moment = moment
            same = list(map(id, _parts(self._functions, self._closures))) == self._part_ids
        if not same:
            self._difference = self._compare()
            if self._difference is not None:
                self._names.release()
        return self._difference

    def _compare(self) -> Difference | None:
        self._names, self._functions = WatchedNames(), []
        try:
            return self._first_difference()
        finally:
            self._names.note()
            self._functions = [*dict.fromkeys(self._functions)]
            self._closures = [function for function in self._functions if function.__closure__]
            self._parts = _parts(self._functions, self._closures)
            self._part_ids = list(map(id, self._parts))

    def _first_difference(self) -> Difference | None:
        # All names are watched, whichever differs: a difference may go away again.
        differences: list[Difference] = []
        for full, digests in self._record.functions.items():
            value = underlying_function(self._names.find(full))
            self._compare_function(differences, full, value, f"function {digests[self._which_digest]}")
        for full, text in self._record.references.items():
            value = self._names.find(full)
            if text.startswith("function "):
                digest, package = text.split(" ")[1 + self._which_digest], text.split(" ")[3]
                self._compare_function(differences, full, value, f"function {digest}", package)
            elif text.startswith("one of "):
                words = text.split(" ")[2:]
                if self._is_one_of(words, full, value):  # it may be another one than was captured
                    below = foreign_below(value, self._names, [one[1:] for one in words if one.startswith("-")])
                    differences += (FunctionReplaced(short_name(name), custom_node(one)) for name, one in below)
                else:
                    differences.append(self._difference_of(full, value))
            elif text.startswith("value "):
                if describe_value(value) != text:
                    differences.append(OtherHostVersion(short_name(full)))
            elif describe_target(value, self._digest) != text:
                differences.append(self._difference_of(full, value))
        for full, definer in self._record.methods.items():
            differences += self._definer_differences(full, definer)
        differences += self._tensor_differences()
        return min(differences, key=lambda one: not isinstance(one, FunctionReplaced)) if differences else None

    def _is_one_of(self, digests: Sequence[str], full: str, value: Any) -> bool:
        """Tell whether a name refers to one of several functions of the host; for another Python by its file alone."""
        if not is_function(value) or binds_arguments(value):
            return False
        if self._which_digest == 1:
            return is_defined_in(value, full.partition(".")[0])
        return bytecode_digest(value) in digests and is_at_home(value)

    def _compare_function(
        self, differences: list[Difference], full: str, value: Any, wanted: str, package: str = ""
    ) -> None:
        """Add a difference where a function is another one. `package`: that it came from, besides the model's own."""
        self._functions += (one for one in unwrap_chain(value) if is_at_home(one))
        if is_function(value) and is_at_home(value):
            # What a torch promises, another one keeps: its own function of that name computes the same, however it is
            # written. Another one of torch's in its place was put there.
            path = full.partition(":")[2]
            is_it = getattr(value, "__qualname__", "") in (path, path.rpartition(".")[2], _ALIASES.get(path))
            another = not self._is_of_this_torch and is_it and is_defined_in(value, "torch")
            if another or describe_target(value, self._digest) == wanted:
                return
        differences.append(self._difference_of(full, value, package))

    def _difference_of(self, full: str, value: Any, library: str = "") -> Difference:
        """Tell a function that was put there at run time from the host's own in another version."""
        value = underlying_function(value)
        if value is MISSING or any(is_defined_in(value, package) for package in {*self._packages, library}):
            return OtherHostVersion(short_name(full))
        return FunctionReplaced(short_name(full), custom_node(value))

    def _tensor_differences(self) -> Iterator[Difference]:
        """Yield a difference for each method of tensors that the recorded functions name and somebody replaced."""
        names = {*_OPERATORS, *(name for function in self._functions for name in names_in(function.__code__))}
        for cls in (torch.Tensor, torch.nn.Parameter):
            for name in sorted(names):
                value = underlying_function(self._names.watch(cls, name))
                if is_function(value) and not is_defined_in(value, "torch"):
                    yield FunctionReplaced(f"{cls.__name__}.{name}", custom_node(value))

    def _definer_differences(self, full: str, definer: str) -> Iterator[Difference]:
        """Yield a difference where another class defines a name now; a method's function is compared there.

        A weight's name must stay undefined: what a class defines comes before what a module holds.
        """
        owner, _, name = full.rpartition(".")
        module_name, _, path = owner.partition(":")
        module = sys.modules.get(module_name)
        cls = resolve(vars(module), path.split("."))[0] if module is not None else None
        if not isinstance(cls, type):
            return
        for base in cls.__mro__:
            value = self._names.watch(base, name)
            if value is not MISSING:
                if qualified_name(base) != definer and not self._is_recorded_value(f"{definer}.{name}", value):
                    yield self._difference_of(f"{qualified_name(cls)}.{name}", value)
                return

    def _is_recorded_value(self, full: str, value: Any) -> bool:
        """Tell whether a class has a plain value of its own that is what the recorded one is."""
        text = self._record.references.get(full, "")
        return text.startswith("value ") and describe_value(value) == text


def difference(manifest: Manifest) -> Difference | None:
    """Say what differs between the functions in place and those that a graph was captured from."""
    return CodeGuard(manifest.code).difference() if manifest.code is not None else None


class Differences:
    """The same of one manifest after another.

    Attributes:
        replaced: the first that was put there at run time, and may be taken away again; None: there is none so far.
    """

    def __init__(self) -> None:
        self.replaced: FunctionReplaced | None = None

    def __call__(self, manifest: Manifest) -> Difference | None:
        reason = difference(manifest)
        if isinstance(reason, FunctionReplaced):
            self.replaced = self.replaced or reason
        return reason
