"""What a block is called with, as a tree: tensors and whole numbers are its leaves, everything else is its form.

Two calls of one form differ in the leaves alone, so one graph may serve both; any other form is another graph's.
Objects of the model's own package are taken apart by their fields (`ModulationOut` of ComfyUI's Flux,
`CompressedTimestep` of its LTX). Options, which hold whatever other packages put there, are no part of the form: see
`option_reads`. Nor are functions, which a graph calls: see `attention`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ..common.tensor_meta import dtype_name
from .methods import called_object, methods_of

OPTIONS = "transformer_options"  # the argument, or key of an argument, that holds a model's options
_CONSTANTS = (type(None), bool, float, str)
_SEQUENCES = {"list": list, "tuple": tuple}
_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)
DTYPES = {dtype_name(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}

Leaf: TypeAlias = "torch.Tensor | int"
JSON: TypeAlias = Any


class UnknownArgumentError(TypeError):
    """An argument that no graph can stand for; its text is the type's name."""


@dataclass(frozen=True)
class TensorForm:
    """A tensor: a leaf. `dtype` without `torch.`."""

    dims: int
    dtype: str


@dataclass(frozen=True)
class NumberForm:
    """A whole number that may be another one at each call: a leaf."""


@dataclass(frozen=True)
class ConstantForm:
    """A value that is part of the form: None, a truth value, a string, a fraction or a number below one."""

    value: bool | int | float | str | None


@dataclass(frozen=True)
class SequenceForm:
    """A `list` or a `tuple`."""

    kind: str
    items: tuple[Form, ...]


@dataclass(frozen=True)
class MappingForm:
    """A dictionary with names as keys, in their order."""

    items: tuple[tuple[str, Form], ...]


@dataclass(frozen=True)
class ObjectForm:
    """An object of the model's own package, by its fields; where it is `called`, by its methods.

    `cls`: `module:name` of its class.
    """

    cls: str
    items: tuple[tuple[str, Form], ...]
    called: bool = False


@dataclass(frozen=True)
class OptionsForm:
    """The model's options: whatever they are, the form is this one."""


@dataclass(frozen=True)
class FunctionForm:
    """A function: whatever it does, the form is this one."""


Form: TypeAlias = (
    "TensorForm | NumberForm | ConstantForm | SequenceForm | MappingForm | ObjectForm | OptionsForm | FunctionForm"
)


# Forms ------------------------------------------------------------------------------------------------------


def flatten(value: Any, packages: Sequence[str] = ()) -> tuple[Form, list[Leaf]]:
    """Take a value apart.

    Args:
        packages: whose objects are taken apart by their fields.

    Returns:
        The form, and the leaves in its order.

    Raises:
        UnknownArgumentError: something in it is neither.
    """
    leaves: list[Leaf] = []
    return _form(value, leaves, tuple(packages)), leaves


def _form(value: Any, leaves: list[Leaf], packages: tuple[str, ...]) -> Form:
    kind = type(value)
    if isinstance(value, torch.Tensor):
        if not is_plain(value):
            raise UnknownArgumentError(kind.__name__)
        leaves.append(value)
        return TensorForm(value.ndim, dtype_name(value.dtype))
    if kind is int and value < 1:  # no length, as numbers are to graphs; and code asks whether there is any
        return ConstantForm(value)
    if kind is int or kind is torch.SymInt:  # the second while a graph is captured
        leaves.append(value)
        return NumberForm()
    if kind in _CONSTANTS:
        if kind is float and not math.isfinite(value):
            raise UnknownArgumentError(f"the number {value}")
        return ConstantForm(value)
    if kind in (list, tuple, torch.Size):
        items = tuple(_form(one, leaves, packages) for one in value)
        return SequenceForm("list" if kind is list else "tuple", items)
    if kind is dict:
        return MappingForm(tuple(_named(key, one, leaves, packages) for key, one in value.items()))
    if is_function(value):
        return FunctionForm()
    cls: Any = kind
    names = _fields(cls, packages)
    name = f"{kind.__module__}:{kind.__qualname__}"
    if names is None and (methods := methods_of(value, packages)):
        return ObjectForm(name, tuple((one, FunctionForm()) for one in methods), called=True)
    if names is None or not getattr(value, "__dict__", {}).keys() <= {*names}:
        more = "" if names is None else " with attributes that are no fields"
        raise UnknownArgumentError(f"{kind.__module__}.{kind.__qualname__}{more}")
    fields = ((name, _form(getattr(value, name), leaves, packages)) for name in names)
    return ObjectForm(name, tuple(fields))


def _named(key: Any, value: Any, leaves: list[Leaf], packages: tuple[str, ...]) -> tuple[str, Form]:
    if type(key) is not str:
        raise UnknownArgumentError(f"a dictionary with a key of type {type(key).__name__}")
    return key, OptionsForm() if key == OPTIONS else _form(value, leaves, packages)


def watched(value: Any, packages: Sequence[str] = ()) -> Callable[[], bool]:
    """Return a function that tells whether containers in a value hold something else by now.

    A graph changes tensors alone: it gives no list, dictionary or object that it was called with another entry.

    Raises:
        UnknownArgumentError: see `flatten`.
    """
    form, leaves = flatten(value, packages)
    functions = functions_of(form, value)

    def written() -> bool:
        try:
            now, current = flatten(value, packages)
            if now != form or functions != functions_of(form, value):
                return True
        except Exception:  # it cannot be taken apart any more
            return True
        return any(one is not other for one, other in zip(leaves, current, strict=True))

    return written


def is_function(value: Any) -> bool:
    """Whether a value is a function or a method, perhaps with some of its arguments."""
    return isinstance(value, _FUNCTIONS)


def functions_of(form: Form, value: Any) -> list[Callable[..., Any]]:
    """Return the functions in a value of a form, in its order."""
    match form:
        case FunctionForm():
            return [value]
        case SequenceForm(_, items):
            return [made for one, part in zip(items, value, strict=True) for made in functions_of(one, part)]
        case MappingForm(items):
            return [made for name, one in items for made in functions_of(one, value[name])]
        case ObjectForm(_, items):
            return [made for name, one in items for made in functions_of(one, getattr(value, name))]
    return []


def is_plain(tensor: Any) -> bool:
    """Whether a value is a tensor that holds its values itself, or stands for such a one while a graph is captured."""
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) or type(tensor).__name__ == "FakeTensor"


@functools.cache
def _fields(cls: type, packages: tuple[str, ...]) -> tuple[str, ...] | None:
    """The names by which objects of a class are taken apart; None where they are not."""
    if cls.__module__.partition(".")[0] not in packages:
        return None
    if dataclasses.is_dataclass(cls):
        return tuple(field.name for field in dataclasses.fields(cls))
    slots = [vars(base).get("__slots__") for base in cls.__mro__[:-1]]
    if not all(isinstance(names, list | tuple) for names in slots):  # some of its state is elsewhere
        return None
    return tuple(name for names in reversed(slots) for name in names)


def rebuild(
    form: Form, leaves: Iterable[Leaf], options: Any = None, functions: Iterable[Callable[..., Any]] = ()
) -> Any:
    """Put a value together again from its form and leaves; `options` and `functions` stand where the form has some."""
    return _rebuilt(form, iter(leaves), options, iter(functions))


def _rebuilt(form: Form, leaves: Iterator[Leaf], options: Any, functions: Iterator[Callable[..., Any]]) -> Any:
    match form:
        case TensorForm() | NumberForm():
            return next(leaves)
        case ConstantForm(value):
            return value
        case OptionsForm():
            return options
        case FunctionForm():
            return next(functions)
        case SequenceForm(kind, items):
            return _SEQUENCES[kind](_rebuilt(one, leaves, options, functions) for one in items)
        case MappingForm(items):
            return {name: _rebuilt(one, leaves, options, functions) for name, one in items}
        case ObjectForm(cls, items, called=True):
            return called_object(class_of(cls), [name for name, _ in items], functions)
        case ObjectForm(cls, items):
            made: Any = object.__new__(class_of(cls))
            for name, one in items:
                value = _rebuilt(one, leaves, options, functions)
                object.__setattr__(made, name, value)  # a frozen dataclass has no other way
            return made


@functools.cache
def class_of(name: str) -> type:
    """Return the class of that name, `module:name`."""
    module, _, path = name.partition(":")
    cls: Any = functools.reduce(getattr, path.split("."), importlib.import_module(module))
    assert isinstance(cls, type)
    return cls


def functions_in(form: Form) -> int:
    """How many functions values of a form have."""
    match form:
        case FunctionForm():
            return 1
        case SequenceForm(_, items):
            return sum(map(functions_in, items))
        case MappingForm(items) | ObjectForm(_, items):
            return sum(functions_in(one) for _, one in items)
    return 0


def leaf_forms(form: Form) -> list[TensorForm | NumberForm]:
    """Return the forms of the leaves, in their order."""
    match form:
        case TensorForm() | NumberForm():
            return [form]
        case SequenceForm(_, items):
            return [leaf for one in items for leaf in leaf_forms(one)]
        case MappingForm(items) | ObjectForm(_, items):
            return [leaf for _, one in items for leaf in leaf_forms(one)]
    return []


# JSON -------------------------------------------------------------------------------------------------------

_WITHOUT_PARTS: dict[str, type[NumberForm | OptionsForm | FunctionForm]] = {
    "number": NumberForm,
    "options": OptionsForm,
    "function": FunctionForm,
}


def to_json(form: Form) -> JSON:
    """Return a form as lists, strings and numbers."""
    match form:
        case TensorForm(dims, dtype):
            return ["tensor", dims, dtype]
        case NumberForm():
            return ["number"]
        case ConstantForm(value):
            return ["constant", value]
        case OptionsForm():
            return ["options"]
        case FunctionForm():
            return ["function"]
        case SequenceForm(kind, items):
            return [kind, *map(to_json, items)]
        case MappingForm(items):
            return ["mapping", *([name, to_json(one)] for name, one in items)]
        case ObjectForm(cls, items, called):
            return ["called" if called else "object", cls, *([name, to_json(one)] for name, one in items)]


def from_json(data: JSON, packages: Sequence[str] = ()) -> Form:
    """Read what `to_json` made.

    Args:
        packages: whose classes may be named.

    Raises:
        ValueError: it is no form, or names a class of another package.
    """
    try:
        kind, *rest = data
        if kind == "tensor":
            dims, dtype = rest
            if type(dims) is int and dtype in DTYPES:
                return TensorForm(dims, dtype)
        elif kind == "constant":
            (value,) = rest
            if type(value) in _CONSTANTS or (type(value) is int and value < 1):
                return ConstantForm(value)
        elif kind in _WITHOUT_PARTS and not rest:
            return _WITHOUT_PARTS[kind]()
        elif kind in _SEQUENCES:
            return SequenceForm(kind, tuple(from_json(one, packages) for one in rest))
        elif kind == "mapping":
            return MappingForm(tuple((str(name), from_json(one, packages)) for name, one in rest))
        elif kind in ("object", "called") and rest[0].partition(":")[0].partition(".")[0] in packages:
            items = tuple((str(name), from_json(one, packages)) for name, one in rest[1:])
            if kind == "object" or {one for _, one in items} == {FunctionForm()}:
                return ObjectForm(rest[0], items, kind == "called")
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise ValueError(f"no form of a call: {data!r}") from error
    raise ValueError(f"no form of a call: {data!r}")
