"""Modules of a block that see one argument alone, as the modulation of a diffusion transformer sees the timestep's
embedding: what they return can be an argument of the block's graph, which then does without their weights.

They are found by watching a call: a module that is called once, with nothing but one of the block's own arguments, and
returns little for the weights that it has. Among a block's arguments by name, `GIVEN` holds their results by
`module(argument)`; a call with them is of another form, and so of another graph, than one without.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from .call_tree import JSON, Form, MappingForm, UnknownArgumentError, flatten, functions_in

GIVEN = "()given"
_LEAST_SHARE = 0.05  # of a block's weights, from which a module is worth it
_LEAST_RATIO = 64  # weights for each value that it takes or returns


class Given(NamedTuple):
    """A module of a block by its path, and the name of the argument that it sees."""

    module: str
    argument: str

    def __str__(self) -> str:
        return f"{self.module}({self.argument})"

    @classmethod
    def of(cls, text: str) -> Given:
        """Read what `str` made."""
        module, _, argument = text.partition("(")
        return cls(module, argument.removesuffix(")"))


def given_in(form: Form) -> tuple[Given, ...]:
    """Return the modules whose results are among a block's arguments of some form."""
    found = next((one for name, one in form.items if name == GIVEN), None) if isinstance(form, MappingForm) else None
    return tuple(Given.of(name) for name, _ in found.items) if isinstance(found, MappingForm) else ()


def given_in_json(form: JSON) -> tuple[Given, ...]:
    """The same of a form as `call_tree.to_json` wrote it."""
    found: JSON = next((one for name, one in form[1:] if name == GIVEN), ["mapping"])
    return tuple(Given.of(item[0]) for item in found[1:])


@contextlib.contextmanager
def giving(block: torch.nn.Module, named: Mapping[str, Any]) -> Iterator[None]:
    """Have the modules of a block whose results are among its arguments return these, while this lasts.

    Raises:
        UnknownArgumentError: in the block's call: one of them was called with something else than the argument.
    """
    results = named.get(GIVEN, {})
    with contextlib.ExitStack() as lasting:
        for text, result in results.items():
            one = Given.of(text)
            lasting.enter_context(_replaced(block.get_submodule(one.module), _returning(one, named, result)))
        yield


def _returning(one: Given, named: Mapping[str, Any], result: Any) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        if kwargs or len(args) != 1 or args[0] is not named[one.argument]:
            raise UnknownArgumentError(f"its {one.module} sees something else than {one.argument}")
        return result

    return forward


@contextlib.contextmanager
def _replaced(module: torch.nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Have a module do something else when it is called."""
    own = vars(module)
    before = own.get("forward")
    own["forward"] = forward
    try:
        yield
    finally:
        if before is None:
            del own["forward"]
        else:
            own["forward"] = before


@dataclass
class Watched:
    """What modules of a block did in one call of it.

    Attributes:
        results: of those that were called with an argument of the block alone.
    """

    results: dict[Given, Any] = field(default_factory=dict)
    _others: set[str] = field(default_factory=set)  # that are called otherwise, or more than once

    def _note(self, path: str, named: Mapping[str, Any], args: Sequence[Any], kwargs: Any, result: Any) -> None:
        argument = next((name for name, value in named.items() if args and value is args[0]), None)
        known = any(one.module == path for one in self.results)
        if known or argument is None or kwargs or len(args) != 1 or path in self._others:
            self._others.add(path)
            self.results = {one: value for one, value in self.results.items() if one.module != path}
        else:
            self.results[Given(path, argument)] = result


@contextlib.contextmanager
def watching(
    block: torch.nn.Module, named: Mapping[str, Any], packages: Sequence[str], paths: Sequence[str] | None = None
) -> Iterator[Watched]:
    """Watch a call of a block with these arguments.

    Args:
        packages: whose objects are taken apart by their fields.
        paths: of the modules to watch; None: of all, of which those that are worth it are told.
    """
    found = Watched()
    with contextlib.ExitStack() as lasting:
        for path, module in block.named_modules() if paths is None else [(p, block.get_submodule(p)) for p in paths]:
            if path and "forward" not in vars(module) and next(module.parameters(), None) is not None:
                lasting.enter_context(_replaced(module, _noting(found, path, module, named)))
        yield found
    if paths is None:
        found.results = _worth_it(block, named, found.results, packages)


def _noting(found: Watched, path: str, module: torch.nn.Module, named: Mapping[str, Any]) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        result = type(module).forward(module, *args, **kwargs)
        found._note(path, named, args, kwargs, result)
        return result

    return forward


def _worth_it(
    block: torch.nn.Module, named: Mapping[str, Any], results: Mapping[Given, Any], packages: Sequence[str]
) -> dict[Given, Any]:
    """Those of some results whose modules have many weights; of modules in each other the outermost."""
    whole = _weights(block)
    worth: dict[Given, Any] = {}
    for one, result in results.items():
        argument, weights = named[one.argument], _weights(block.get_submodule(one.module))
        if not isinstance(argument, torch.Tensor) or weights < _LEAST_SHARE * whole:
            continue
        try:
            form, leaves = flatten(result, packages)
        except UnknownArgumentError:
            continue
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        values = argument.numel() + sum(leaf.numel() for leaf in tensors)
        if tensors and len(tensors) == len(leaves) and not functions_in(form) and values * _LEAST_RATIO <= weights:
            worth[one] = result
    paths = [one.module for one in worth]
    inner = {path for path in paths for outer in paths if path.startswith(f"{outer}.")}
    return {one: result for one, result in worth.items() if one.module not in inner}


def _weights(module: torch.nn.Module) -> int:
    return sum(one.numel() for one in module.parameters())
