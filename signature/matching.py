"""One form, again and again: code made for it that takes calls apart, and code that puts results together.

A block's call is taken apart some fifty times a step. Walking over a form takes several times as long.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from . import call_tree
from .call_tree import (
    DTYPES,
    ConstantForm,
    Form,
    FunctionForm,
    Leaf,
    MappingForm,
    NumberForm,
    ObjectForm,
    OptionsForm,
    SequenceForm,
    TensorForm,
    leaf_forms,
)
from .methods import methods_of
from .rule import LeafDim, Rule
from .size_rules import sizes_of

_BRACKETS = {"list": ("[", "]"), "tuple": ("(", ",)")}


def structured(form: Form) -> Callable[[Any], list[Leaf] | None]:
    """Return a function that gives the leaves of a value of this structure, and None for any other.

    A tensor of any dtype and number of dimensions will do: see `of_form`.
    """
    return _Matching().function(form)


def of_form(form: Form) -> Callable[[Sequence[Leaf]], bool]:
    """Return a function that tells whether leaves of that structure have the form's dtypes and dimensions, too."""
    wanted = [
        (number, DTYPES[one.dtype], one.dims)
        for number, one in enumerate(leaf_forms(form))
        if isinstance(one, TensorForm)
    ]

    def fits(leaves: Sequence[Any]) -> bool:
        return all(leaves[number].dtype is dtype and leaves[number].ndim == dims for number, dtype, dims in wanted)

    return fits


def finisher(
    form: Form, aliases: Sequence[int | Rule | None], mutated: Sequence[int], symbols: Sequence[LeafDim] = ()
) -> Callable[[Sequence[Any], Sequence[torch.Tensor]], Any]:
    """Return `CallRules.finish` of a signature with such results."""
    return _Building().finisher(form, aliases, mutated, symbols)


def has_class(value: Any, name: str) -> bool:
    """Tell whether a value's class is called so, as `module:name`: it may have been imported a second time."""
    return f"{type(value).__module__}:{type(value).__qualname__}" == name


@dataclass
class _Code:
    """Code that refers to values by names of its own: nothing of a form becomes text of it but lengths."""

    space: dict[str, Any] = field(default_factory=dict)

    def name(self, value: Any) -> str:
        variable = f"_{len(self.space)}"
        self.space[variable] = value
        return variable

    def made(self, source: str) -> Any:
        exec(source, self.space)  # noqa: S102  # of forms' own making: names are numbers
        return self.space["made"]


@dataclass
class _Matching(_Code):
    lines: list[str] = field(default_factory=list)
    leaves: list[str] = field(default_factory=list)
    variables: int = 0

    def function(self, form: Form) -> Callable[[Any], list[Leaf] | None]:
        self._check(form, self._variable())
        body = "".join(f"    {line}\n" for line in (*self.lines, f"return [{', '.join(self.leaves)}]"))
        leaves_of: Callable[[Any], list[Leaf] | None] = self.made(f"def made(v0):\n{body}")
        return leaves_of

    def _variable(self) -> str:
        self.variables += 1
        return f"v{self.variables - 1}"

    def _unless(self, condition: str) -> None:
        self.lines.append(f"if not ({condition}): return None")

    def _parts(self, forms: Sequence[Form], values: str) -> None:
        names = [self._variable() for _ in forms]
        if names:
            self.lines.append(f"{', '.join(names)}, = {values}")
        for name, one in zip(names, forms, strict=True):
            self._check(one, name)

    def _check(self, form: Form, v: str) -> None:
        match form:
            case TensorForm():
                tensor, plain = self.name(torch.Tensor), self.name(call_tree.is_plain)
                self._unless(f"type({v}) is {tensor} or {plain}({v})")
                self.leaves.append(v)
            case NumberForm():
                self._unless(f"type({v}) is {self.name(int)} and {v} > 0")
                self.leaves.append(v)
            case ConstantForm(None):
                self._unless(f"{v} is None")
            case ConstantForm(value):
                self._unless(f"type({v}) is {self.name(type(value))} and {v} == {self.name(value)}")
            case SequenceForm("list", items):
                self._unless(f"type({v}) is {self.name(list)} and len({v}) == {len(items)}")
                self._parts(items, v)
            case SequenceForm(_, items):
                kinds = f"(type({v}) is {self.name(tuple)} or type({v}) is {self.name(torch.Size)})"
                self._unless(f"{kinds} and len({v}) == {len(items)}")
                self._parts(items, v)
            case MappingForm(items):
                keys = self.name([name for name, _ in items])
                self._unless(f"type({v}) is {self.name(dict)} and [*{v}] == {keys}")
                self._parts([one for _, one in items], f"{v}.values()")
            case ObjectForm(cls, items, called):
                class_name = self.name(_class(cls))
                self._unless(f"type({v}) is {class_name} or {self.name(has_class)}({v}, {self.name(cls)})")
                if called:
                    package, names = cls.partition(":")[0].partition(".")[0], tuple(name for name, _ in items)
                    self._unless(f"{self.name(methods_of)}({v}, {self.name((package,))}) == {self.name(names)}")
                    return
                get, fields = self.name(getattr), self.name({name for name, _ in items})
                self._unless(f"{get}({v}, '__dict__', {self.name({})}).keys() <= {fields}")
                values = ", ".join(f"{get}({v}, {self.name(name)}, None)" for name, _ in items)
                self._parts([one for _, one in items], f"({values},)")
            case FunctionForm():
                self._unless(f"{self.name(call_tree.is_function)}({v})")
            case OptionsForm():
                pass


@dataclass
class _Building(_Code):
    leaves: list[str] = field(default_factory=list)

    def finisher(
        self, form: Form, aliases: Sequence[int | Rule | None], mutated: Sequence[int], symbols: Sequence[LeafDim]
    ) -> Callable[[Sequence[Any], Sequence[torch.Tensor]], Any]:
        new_names = [f"new{number}" for number, one in enumerate(aliases) if one is None]
        values = [f"value{number}" for number in mutated]
        new = iter(new_names)
        self.leaves = [
            f"{self.name(functools.partial(_number, one, symbols))}(leaves)"
            if isinstance(one, Rule)
            else next(new)
            if one is None
            else f"leaves[{one:d}]"
            for one in aliases
        ]
        names = ", ".join([*new_names, *values])
        lines = [f"{names}, = outputs" if names else "() = outputs"]
        lines += (f"leaves[{one:d}].copy_({value})" for one, value in zip(mutated, values, strict=True))
        body = "".join(f"    {line}\n" for line in (*lines, f"return {self._value(form)}"))
        finish: Callable[[Sequence[Any], Sequence[torch.Tensor]], Any] = self.made(
            f"def made(leaves, outputs):\n{body}"
        )
        return finish

    def _value(self, form: Form) -> str:
        match form:
            case TensorForm() | NumberForm():
                return self.leaves.pop(0)
            case ConstantForm(value):
                return self.name(value)
            case SequenceForm(kind, items):
                begin, end = _BRACKETS[kind]
                return f"{begin}{', '.join(map(self._value, items))}{end if items else end[-1]}"
            case MappingForm(items):
                return f"{{{', '.join(f'{self.name(key)}: {self._value(one)}' for key, one in items)}}}"
            case ObjectForm(cls, items):
                make = self.name(functools.partial(_make, cls, [name for name, _ in items]))
                return f"{make}({', '.join(self._value(one) for _, one in items)})"
        return "None"


def _number(rule: Rule, symbols: Sequence[LeafDim], leaves: Sequence[Leaf]) -> int:
    """The whole number that follows from a call's sizes."""
    sizes = sizes_of(leaves)
    return rule.value([sizes[leaf][dim] for leaf, dim in symbols])


def _make(cls: str, names: Sequence[str], *values: Any) -> Any:
    made: Any = object.__new__(call_tree.class_of(cls))
    for name, value in zip(names, values, strict=True):
        object.__setattr__(made, name, value)
    return made


def _class(name: str) -> type | None:
    """The class of that name; None where nobody has it."""
    try:
        return call_tree.class_of(name)
    except (ImportError, AttributeError, AssertionError):
        return None
