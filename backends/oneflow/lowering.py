"""The walk over a program: every operation's lowering in order, and refusals that name the operation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...common.errors import CompileError, in_brief
from . import layers, operations  # noqa: F401  they fill the table
from .library import SHARED_DTYPES, Library
from .program import Argument, Operation, Program
from .table import TABLE, Ops

_INSTEAD = "use the inductor backend or run uncompiled"


def check(program: Program) -> None:
    """Raises CompileError when an operation or a dtype of the program has no lowering on any device."""
    for operation in program.operations:
        if TABLE.get(operation.op) is None:
            raise CompileError(f"OneFlow graphs have no {operation.op}{_where(operation)}; {_INSTEAD}.")
    dtypes = {i.node: i.dtype for i in program.inputs} | {w.node: w.dtype for w in program.weights}
    for node, dtype in dtypes.items():
        if dtype not in SHARED_DTYPES:
            raise CompileError(f"OneFlow cannot share {dtype} tensors like {node} with torch; {_INSTEAD}.")


def _where(operation: Operation) -> str:
    return f", which {operation.module} uses" if operation.module else ""


def walk(program: Program, values: dict[str, Any], ops: Ops) -> list[Any]:
    """Call every operation's lowering in order; the results. `values` holds inputs and weights by node name."""
    for operation in program.operations:
        function = TABLE.get(operation.op)
        assert function is not None
        try:
            args = [_decode(a, values, ops.library) for a in operation.args]
            kwargs = {k: _decode(v, values, ops.library) for k, v in operation.kwargs.items()}
            value = function(ops, *args, **kwargs)
        except Exception as error:
            raise CompileError(
                f"OneFlow could not take {operation.op}{_where(operation)} ({in_brief(error)}); {_INSTEAD}."
            ) from error
        refused = ops.refuse_half(value)
        if refused is not None:
            raise CompileError(f"{refused}, {operation.op}{_where(operation)} needs one; {_INSTEAD}.")
        values[operation.node] = value
    return [values[name] for name in program.results]


def _decode(argument: Argument, values: Mapping[str, Any], library: Library) -> Any:
    if isinstance(argument, list | tuple):
        return [_decode(a, values, library) for a in argument]
    if isinstance(argument, dict):
        ((kind, value),) = argument.items()
        return values[value] if kind == "node" else library.dtype(value) if kind == "dtype" else float(value)
    return argument
