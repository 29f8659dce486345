"""Attention that a graph does not contain: an operation that calls the function of the call's own process.

Users choose attention functions (`--use-sage-attention`, an override in the model's options), and some models call
their blocks with one. A graph that was captured with such a call has `onegraph::attend` in its place. When it runs,
`onegraph::attend` looks up by name what the block's own code would have called, or takes the function that the block
was called with, and calls it with the arguments that the block would have given and the call's own options.

The function may write to the tensors that it is given: the operation says so, and the compiler copies what is needed
later. It may keep them, and return one that it has kept: such a graph is compiled to write to no memory twice. What it
returns must have the shape and the dtype that the graph was captured for.
"""

from __future__ import annotations

import contextlib
import functools
import json
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from ...backends import OPERATIONS
from ...common.log import logger
from ...signature import call_tree
from ...signature.call_tree import OPTIONS, Form, NumberForm, UnknownArgumentError, flatten, leaf_forms, rebuild
from ...signature.functions import Function, fold
from ...signature.option_reads import RecordedOptions

log = logger("compiler")


_SCHEMA = "attend(Tensor(a!)[] tensors, str function, str call, SymInt[] numbers, SymInt[] shape) -> Tensor"
_PLAIN = (bool, int, float, str)
_ARGUMENT = "argument:"  # begin of a name, before the number of a function among those that the block is called with


class Attending(Protocol):
    """What attends while a graph runs; see `onegraph::attend` for the arguments."""

    def attend(
        self, tensors: list[torch.Tensor], function: str, call: str, numbers: Sequence[int], shape: Sequence[int]
    ) -> torch.Tensor: ...


_attending: ContextVar[Attending | None] = ContextVar("onegraph_attending", default=None)


@contextlib.contextmanager
def attending(by: Attending) -> Iterator[None]:
    """Have the graphs that this thread calls attend by it, while this lasts."""
    before = _attending.set(by)
    try:
        yield
    finally:
        _attending.reset(before)


def is_attending() -> bool:
    """Whether this thread is in the midst of a graph that may call functions, or in one of these functions."""
    return _attending.get() is not None


def _attend(
    tensors: list[torch.Tensor], function: str, call: str, numbers: Sequence[int] | None, shape: Sequence[int] | None
) -> torch.Tensor:
    by = _attending.get()
    if by is None:  # zeros would be a wrong image
        raise RuntimeError("a graph that calls an attention function was run outside of a block's call")
    return by.attend(tensors, function, call, numbers or (), shape or ())  # compiled code has None for an empty list


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
        log.warning(
            "another copy of OneGraph is loaded: this one runs blocks uncompiled where users choose an attention"
        )
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
    block: torch.nn.Module
    calls: int = 0
    order: torch.Tensor | None = None

    def put(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Sequence[Any] | None
    ) -> torch.Tensor | None:
        """Put a call of the function of that name into what is captured. `shape`: None: it returns nothing."""
        places = dict(enumerate(args)) | {key: value for key, value in kwargs.items() if key != OPTIONS}
        paths = {str(place): path for place, value in places.items() if (path := _path(self.block, value))}
        without = [None if str(place) in paths else value for place, value in enumerate(args)]
        named = {key: None if key in paths else value for key, value in kwargs.items() if key != OPTIONS}
        form, leaves = flatten((without, named), self.packages)
        if call_tree.functions_in(form):
            raise UnknownArgumentError("a function that is given another one")
        described = {"form": call_tree.to_json(form), "options": _described(kwargs, self), "attributes": paths}
        call = json.dumps(described | ({"returns": None} if shape is None else {}))
        numbers = [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if self.order is None:
            self.order = tensors[0].new_zeros(1)
        # One more tensor, which each call writes to, keeps them in eager's order: a function may count its calls.
        operation = getattr(torch.ops, OPERATIONS).attend
        made: torch.Tensor = operation([*tensors, self.order], name, call, numbers, [0] if shape is None else [*shape])
        return None if shape is None else made

    def before(self, outputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the same outputs, which no compiler computes without the calls.

        Raises:
            UnknownArgumentError: no output can depend on them.
        """
        number = next((n for n, one in enumerate(outputs) if one.is_floating_point()), None)
        if number is None or self.order is None:
            raise UnknownArgumentError("a function whose result it does not use")
        tied = outputs[number] + self.order.to(outputs[number].dtype)  # zeros, as nobody but the compiler knows
        return (*outputs[:number], tied, *outputs[number + 1 :])


def last_is_unused(program: torch.export.ExportedProgram) -> bool:
    """Whether no code of a graph uses what the last call returns: a compiler would leave it out."""
    operation = getattr(torch.ops, OPERATIONS).attend.default
    calls = [node for node in program.graph.nodes if node.target is operation]
    return bool(calls) and not calls[-1].users


_capture: ContextVar[_Captured | None] = ContextVar("onegraph_captured_attention", default=None)


@contextlib.contextmanager
def capturing(options: RecordedOptions, packages: Sequence[str], block: torch.nn.Module) -> Iterator[_Captured]:
    """While this lasts, stand-ins put the operation into what is captured."""
    captured = _Captured(options, tuple(packages), block)
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
        capture.calls += 1
        other_kwargs = {name: value for name, value in kwargs.items() if name != OPTIONS}
        return capture.put(self.name, args, kwargs, self.shape(*args, **other_kwargs))


def argument_stand_ins(count: int, shape: Callable[[int], Sequence[Any] | None]) -> list[Function]:
    """Return what stands in place of the functions that a block is called with.

    Args:
        shape: gives the shape of the next result, for the number of the function; None: it returns nothing.
    """

    def of(number: int) -> Function:
        def stand_in(*args: Any, **kwargs: Any) -> torch.Tensor | None:
            capture = _capture.get()
            assert capture is not None  # it is captured
            return capture.put(f"{_ARGUMENT}{number}", args, kwargs, shape(number))

        return stand_in

    return [of(number) for number in range(count)]


def _path(block: torch.nn.Module, value: Any) -> str | None:
    """The path of an attribute of a block or of a module in it, by its value; None where it is none of them."""
    if value is None or isinstance(value, (torch.Tensor, torch.SymInt, *_PLAIN, list, tuple, dict)):
        return None
    for path, module in block.named_modules():
        for name, one in vars(module).items():
            if one is value:
                return f"{path}.{name}" if path else name
        if module is value:
            return path
    return None


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
        block: with the attributes that they may be given.
        functions: those that the block was called with; None: what they are given is folded.
        error: what a function raised.
    """

    options: Any
    packages: tuple[str, ...]
    block: torch.nn.Module | None = None
    functions: Sequence[Function] | None = ()
    error: BaseException | None = field(default=None, init=False)

    def attend(
        self, tensors: list[torch.Tensor], function: str, call: str, numbers: Sequence[int], shape: Sequence[int]
    ) -> torch.Tensor:
        """Call the function of that name; the last tensor is for the calls' order only.

        What it raises is kept in `error`, for no graph passes it on whole.
        """
        if self.functions is None and function.startswith(_ARGUMENT):
            return fold(tensors[:-1], shape)
        form, is_number, options, additions, attributes, returns = _parsed(call, self.packages)
        of_tensors, of_numbers = iter(tensors), iter(numbers)
        leaves = [int(next(of_numbers)) if one else next(of_tensors) for one in is_number]
        args, kwargs = rebuild(form, leaves)
        for place, path in attributes.items():
            value = operator.attrgetter(path)(self.block)
            if place.isdecimal():
                args[int(place)] = value
            else:
                kwargs[place] = value
        if options == "call's":
            kwargs[OPTIONS] = {**self.options, **additions} if additions else self.options
        elif options is not None:
            kwargs[OPTIONS] = None if options == "none" else {}
        memory = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        like = tensors[0].dtype, tensors[0].device
        try:
            result = self._function(function)(*args, **kwargs)
            if returns:
                _check(result, tuple(shape), *like)
            elif result is not None:
                raise OtherResultError(f"a {type(result).__name__}")
            else:
                return tensors[0].new_empty(shape)
        except BaseException as error:
            self.error = error
            raise
        # As compiled code expects it, which writes to no tensor of a function's.
        result = result.resolve_neg().contiguous()
        return result.clone() if result.data_ptr() % 16 or result.untyped_storage().data_ptr() in memory else result

    def _function(self, name: str) -> Function:
        """What a name refers to now."""
        if name.startswith(_ARGUMENT):
            return (self.functions or ())[int(name.removeprefix(_ARGUMENT))]
        module, _, attribute = name.partition(":")
        function: Function = getattr(sys.modules[module], attribute)
        return function


def _check(result: Any, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    if type(result) not in (torch.Tensor, torch.nn.Parameter):
        raise OtherResultError(f"a {type(result).__name__}")
    if (tuple(result.shape), result.dtype, result.device) != (shape, dtype, device):
        raise OtherResultError(f"{list(result.shape)} {str(result.dtype).removeprefix('torch.')} on {result.device}")


@functools.lru_cache(maxsize=256)
def _parsed(
    call: str, packages: tuple[str, ...]
) -> tuple[Form, list[bool], str | None, dict[str, Any], dict[str, str], bool]:
    data = json.loads(call)
    form = call_tree.from_json(data["form"], packages)
    options, additions = data["options"] or (None, {})
    is_number = [isinstance(one, NumberForm) for one in leaf_forms(form)]
    return form, is_number, options, additions, data.get("attributes", {}), "returns" not in data
