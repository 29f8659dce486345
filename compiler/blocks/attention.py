"""Attention that a graph does not contain: an operation that calls the function of the call's own process.

Users choose attention functions (`--use-sage-attention`, an override in the model's options). A graph that was captured
with such a call has `onegraph::attend` in its place. When it runs, `onegraph::attend` looks up by name what the block's
own code would have called, and calls it with the arguments that the block would have given and the call's own options.

The function may write to the tensors that it is given: the operation says so, and the compiler copies what is needed
later. It may keep them, and return one that it has kept: such a graph is compiled to write to no memory twice. What it
returns must have the shape and the dtype that the graph was captured for.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

import torch

from ...backends import OPERATIONS
from . import call_tree
from .call_tree import OPTIONS, Form, NumberForm, UnknownArgumentError, flatten, leaf_forms, rebuild
from .option_reads import RecordedOptions

log = logging.getLogger("onegraph.compiler")

Attention: TypeAlias = Literal["captured", "called"]  # as part of the graph, or as an operation that calls a function

_SCHEMA = "attend(Tensor(a!)[] tensors, str function, str call, SymInt[] numbers, SymInt[] shape) -> Tensor"
_PLAIN = (bool, int, float, str)


class Attending(Protocol):
    """What attends while a graph runs; see `onegraph::attend` for the arguments."""

    def attend(
        self, tensors: list[torch.Tensor], function: str, call: str, numbers: Sequence[int], shape: Sequence[int]
    ) -> torch.Tensor: ...


_attending: ContextVar[Attending | None] = ContextVar("onegraph_attending", default=None)


@contextlib.contextmanager
def attending(by: Attending) -> Iterator[None]:
    """While this lasts, this thread's graphs attend by it."""
    before = _attending.set(by)
    try:
        yield
    finally:
        _attending.reset(before)


def is_attending() -> bool:
    """Whether this thread is in the midst of a graph that may call functions, or in one of these functions."""
    return _attending.get() is not None


def _attend(
    tensors: list[torch.Tensor], function: str, call: str, numbers: Sequence[int], shape: Sequence[int]
) -> torch.Tensor:
    by = _attending.get()
    if by is None:  # zeros would be a wrong image
        raise RuntimeError("a graph that calls an attention function was run outside of a block's call")
    return by.attend(tensors, function, call, numbers, shape)


def _fake(tensors: list[torch.Tensor], function: str, call: str, numbers: Any, shape: Any) -> torch.Tensor:
    return tensors[0].new_empty(shape)


def _register() -> torch.library.Library | None:
    """Tell torch's dispatcher of the operation; None where another copy of this package has done so before."""
    try:
        library = torch.library.Library(OPERATIONS, "FRAGMENT")
        exact = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
        library.define(_SCHEMA, tags=(exact,))
        library.impl("attend", _attend, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{OPERATIONS}::attend", _fake, lib=library)
        return library
    except RuntimeError:
        log.warning("another copy of OneGraph is loaded: this one runs blocks eager where users choose an attention")
        return None


_library = _register()


def can_be_called() -> bool:
    """Whether graphs of this process can call attention functions."""
    return _library is not None


class Zeros:
    """Attends where only the rest of a graph is tried out."""

    def attend(
        self, tensors: list[torch.Tensor], function: str, call: str, numbers: Sequence[int], shape: Sequence[int]
    ) -> torch.Tensor:
        return tensors[0].new_zeros(shape)


# Capture ----------------------------------------------------------------------------------------------------


@dataclass
class _Captured:
    """The calls that one capture has met."""

    options: RecordedOptions
    packages: tuple[str, ...]
    calls: int = 0
    order: torch.Tensor | None = None


_capture: ContextVar[_Captured | None] = ContextVar("onegraph_captured_attention", default=None)


@contextlib.contextmanager
def capturing(options: RecordedOptions, packages: Sequence[str]) -> Iterator[_Captured]:
    """While this lasts, stand-ins put the operation into what is captured."""
    captured = _Captured(options, tuple(packages))
    before = _capture.set(captured)
    try:
        yield captured
    finally:
        _capture.reset(before)


@dataclass(frozen=True, eq=False)
class StandIn:
    """Stands in place of an attention function in the compiling process.

    Attributes:
        name: of the function, as `module:name`: how a block's code refers to it.
        function: what computes the same outside of a capture.
        shape: of the result, from the arguments.
    """

    name: str
    function: Callable[..., Any]
    shape: Callable[..., Sequence[Any]]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        capture = _capture.get()
        if capture is None:
            return self.function(*args, **kwargs)
        other_kwargs = {name: value for name, value in kwargs.items() if name != OPTIONS}
        form, leaves = flatten((args, other_kwargs), capture.packages)
        options = _described(kwargs, capture)
        call = json.dumps({"form": call_tree.to_json(form), "options": options})
        numbers = [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        capture.calls += 1
        if capture.order is None:
            capture.order = tensors[0].new_zeros(1)
        # One more tensor, which each call writes to, keeps them in eager's order: a function may count its calls.
        operation = getattr(torch.ops, OPERATIONS).attend
        return operation([*tensors, capture.order], self.name, call, numbers, [*self.shape(*args, **other_kwargs)])


def _described(kwargs: Mapping[str, Any], capture: _Captured) -> Any:
    """Which options a call gives: None, or what they are and what the block itself has put into them."""
    if OPTIONS not in kwargs:
        return None
    options = kwargs[OPTIONS]
    if options is None or (type(options) is dict and not options):
        return ["none" if options is None else "empty", {}]
    if not isinstance(options, RecordedOptions) or not options.is_copy_of(capture.options):
        raise UnknownArgumentError("an attention function with options of the block's own")
    additions = options.additions()
    if not all(type(value) in _PLAIN for value in additions.values()):
        raise UnknownArgumentError("an attention function with options that are no plain values")
    return ["call's", additions]


# A call -----------------------------------------------------------------------------------------------------


class OtherResultError(RuntimeError):
    """An attention function returned what its graph has no use for; its text says what."""


@dataclass
class Call:
    """Attends during one call of a block: by the functions that the block's own code would call.

    Attributes:
        options: the model's, of this call.
        packages: whose objects the functions may be given.
        error: what a function raised.
    """

    options: Any
    packages: tuple[str, ...]
    error: BaseException | None = field(default=None, init=False)

    def attend(
        self, tensors: list[torch.Tensor], function: str, call: str, numbers: Sequence[int], shape: Sequence[int]
    ) -> torch.Tensor:
        """Call the function of that name; the last tensor is for the calls' order only.

        What it raises is kept in `error`, for no graph passes it on whole.
        """
        form, is_number, options, additions = _parsed(call, self.packages)
        of_tensors, of_numbers = iter(tensors), iter(numbers)
        leaves = [int(next(of_numbers)) if one else next(of_tensors) for one in is_number]
        args, kwargs = rebuild(form, leaves)
        if options == "call's":
            kwargs[OPTIONS] = {**self.options, **additions} if additions else self.options
        elif options is not None:
            kwargs[OPTIONS] = None if options == "none" else {}
        memory = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        like = tensors[0].dtype, tensors[0].device
        try:
            result = _function(function)(*args, **kwargs)
            _check(result, tuple(shape), *like)
        except BaseException as error:
            self.error = error
            raise
        # As compiled code expects it, which writes to no tensor of a function's.
        result = result.resolve_neg().contiguous()
        return result.clone() if result.data_ptr() % 16 or result.untyped_storage().data_ptr() in memory else result


def _check(result: Any, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    if type(result) not in (torch.Tensor, torch.nn.Parameter):
        raise OtherResultError(f"a {type(result).__name__}")
    if (tuple(result.shape), result.dtype, result.device) != (shape, dtype, device):
        raise OtherResultError(f"{list(result.shape)} {str(result.dtype).removeprefix('torch.')} on {result.device}")


@functools.lru_cache(maxsize=256)
def _parsed(call: str, packages: tuple[str, ...]) -> tuple[Form, list[bool], str | None, dict[str, Any]]:
    data = json.loads(call)
    form = call_tree.from_json(data["form"], packages)
    options, additions = data["options"] or (None, {})
    return form, [isinstance(one, NumberForm) for one in leaf_forms(form)], options, additions


def _function(name: str) -> Callable[..., Any]:
    """What a name of a module refers to now."""
    module, _, attribute = name.partition(":")
    function: Any = getattr(sys.modules[module], attribute)
    return function
