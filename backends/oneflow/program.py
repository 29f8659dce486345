"""A captured module as a list of ATen operations in JSON: readable, without pickle, for any sizes of its range.

Sizes stay what they are in the captured graph: `sym_size` operations and arithmetic on their results. One program can
therefore be lowered at every exact size of its range without capturing the module again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ValidationError

from ...common.errors import CompileError, in_brief
from ...common.strict import Strict
from ...common.tensor_meta import dtype_name
from ...common.torch_private import expression

PROGRAM_FILE = "program.json"
# Lowered as wholes: half the operations of their decompositions, and faster (measured on a UNet: 839 against 1531).
_WHOLE = ("linear", "silu", "gelu", "group_norm", "layer_norm", "scaled_dot_product_attention", "conv2d")
_SIZE = re.compile(r"(?:(\d+)\*)?([A-Za-z_]\w*)")

# An argument: a plain value, a list of arguments, or an object with one key: {"node": name} for another operation's
# result, {"dtype": name}, {"float": "inf"} for what JSON has no number for.
Argument = Any


class Size(Strict):
    """A size that varies: `multiple` times the value of a symbol, low..high in all."""

    symbol: str
    multiple: int
    low: int
    high: int


class Input(Strict):
    """An input in call order; a dimension is a fixed length, a `Size`, or None where any length may be tried."""

    node: str
    dims: tuple[int | Size | None, ...]
    dtype: str


class Weight(Strict):
    """A parameter or buffer that the program reads: contiguous, under its name in the captured module."""

    node: str
    name: str
    shape: tuple[int, ...]
    dtype: str


class Operation(Strict):
    """One call: `node` is the name of its result, `module` where in the captured module it comes from."""

    node: str
    op: str
    args: tuple[Argument, ...]
    kwargs: dict[str, Argument]
    module: str


class Program(Strict):
    """A module's operations in order. `output` names the result; of several results, each."""

    version: Literal[1] = 1
    inputs: tuple[Input, ...]
    weights: tuple[Weight, ...]
    operations: tuple[Operation, ...]
    output: str | tuple[str, ...]

    @property
    def results(self) -> tuple[str, ...]:
        """The names of all results in order."""
        return (self.output,) if isinstance(self.output, str) else self.output

    def write(self, folder: Path) -> None:
        (folder / PROGRAM_FILE).write_text(self.model_dump_json(), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Program:
        """Raises CompileError when the folder's program is missing or damaged."""
        try:
            return cls.model_validate_json((folder / PROGRAM_FILE).read_bytes())
        except (OSError, ValidationError) as error:
            raise CompileError(
                "The cached program of this graph cannot be read, so other sizes cannot be built from it; "
                "compile the model anew."
            ) from error

    def check_inputs(self, inputs: Sequence[torch.Tensor]) -> None:
        """Raises CompileError unless the program was captured for tensors like these."""
        if len(inputs) != len(self.inputs):
            raise CompileError(f"The program takes {len(self.inputs)} inputs, {len(inputs)} were given.")
        symbols: dict[str, int] = {}
        for spec, tensor in zip(self.inputs, inputs, strict=True):
            shape, dtype = list(tensor.shape), dtype_name(tensor.dtype)
            if dtype != spec.dtype or len(shape) != len(spec.dims):
                raise CompileError(
                    f"Input {spec.node} is {dtype} {shape}, the program takes {spec.dtype} with {len(spec.dims)} "
                    "dimensions."
                )
            for dim, size in zip(spec.dims, shape, strict=True):
                if dim is None:
                    continue
                if isinstance(dim, int):
                    fits = size == dim
                else:
                    value, rest = divmod(size, dim.multiple)
                    fits = rest == 0 and dim.low <= size <= dim.high
                    fits = symbols.setdefault(dim.symbol, value) == value and fits
                if not fits:
                    raise CompileError(
                        f"Input {spec.node} has shape {shape}, which is outside what the program was captured for; "
                        "compile the model anew at this size."
                    )


def from_exported(exported: torch.export.ExportedProgram) -> Program:
    """Make the program of a captured module, in-place operations made functional.

    Raises:
        CompileError: it holds a constant that is no weight, or an argument with no JSON form.
    """
    table = torch.export.default_decompositions()
    for op in list(table):
        if str(op).startswith("aten.") and str(op).split(".")[1] in _WHOLE:
            table.pop(op)
    try:
        exported = exported.run_decompositions(table)
    except Exception as error:
        raise CompileError(f"The captured model could not be made functional ({in_brief(error)}).") from error
    signature = exported.graph_signature
    weights = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    lifted = getattr(signature, "inputs_to_lifted_tensor_constants", {})
    inputs_, weights_, operations = [], [], []
    results: list[str] = []
    for node in exported.graph.nodes:
        if node.op == "placeholder":
            value = node.meta["val"]
            if node.name in weights:
                if node.users:
                    weights_.append(_weight(node.name, weights[node.name], value))
            elif node.name in lifted:
                raise CompileError(f"The model's code makes a constant tensor ({lifted[node.name]}) that is no weight.")
            else:
                inputs_.append(_input(node.name, value, exported.range_constraints))
        elif node.op == "call_function":
            operations.append(
                Operation(
                    node=node.name,
                    op=op_name(node.target),
                    args=tuple(_encode(a) for a in node.args),
                    kwargs={k: _encode(v) for k, v in node.kwargs.items()},
                    module=_origin(node),
                )
            )
        elif node.op == "output":
            results = [result.name for result in node.args[0]]
        else:
            raise CompileError(f"The captured model holds a {node.op} ({node.name}), which OneFlow graphs cannot.")
    output = results[0] if len(results) == 1 else tuple(results)
    return Program(inputs=tuple(inputs_), weights=tuple(weights_), operations=tuple(operations), output=output)


_OPERATION = type(torch.ops.aten.add.Tensor)


def op_name(target: Any) -> str:
    """`aten.conv2d.default`, `operator.mul`, `math.ceil`, `torch.sym_float`."""
    if isinstance(target, _OPERATION):
        return str(target)
    module = {"_operator": "operator"}.get(target.__module__, target.__module__)
    return f"{module}.{target.__name__}"


def _origin(node: torch.fx.Node) -> str:
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    if not stack or "_empty_nn_module_stack" in stack[-1][0]:  # sizes that torch.export itself asks for
        return ""
    path, kind = stack[-1]
    return f"{path or 'the model'} ({str(kind).rpartition('.')[2]})"


def _encode(value: Any) -> Argument:
    if isinstance(value, torch.fx.Node):
        return {"node": value.name}
    if isinstance(value, list | tuple):
        return [_encode(v) for v in value]
    if isinstance(value, torch.dtype):
        return {"dtype": dtype_name(value)}
    if isinstance(value, torch.device | torch.layout | torch.memory_format):
        return None  # everything is strided and on one device; contiguous is what OneFlow makes
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise CompileError(f"The captured model holds an argument of type {type(value).__name__}, which has no JSON form.")


def _weight(node: str, name: str, value: torch.Tensor) -> Weight:
    if not value.is_contiguous():
        raise CompileError(
            f"The weight {name} is not contiguous in memory, which OneFlow cannot read; use the inductor backend."
        )
    return Weight(node=node, name=name, shape=tuple(int(s) for s in value.shape), dtype=dtype_name(value.dtype))


def _input(node: str, value: torch.Tensor, ranges: Any) -> Input:
    dims: list[int | Size | None] = []
    sizes: list[Any] = list(value.shape)  # torch.SymInt where they vary
    for size in sizes:
        if isinstance(size, int):
            dims.append(size)
            continue
        symbolic = expression(size)
        match = _SIZE.fullmatch(str(symbolic))
        symbols = list(symbolic.free_symbols)
        if match is None or len(symbols) != 1 or symbols[0] not in ranges:
            dims.append(None)
            continue
        multiple, bounds = int(match[1] or 1), ranges[symbols[0]]
        low, high = multiple * int(bounds.lower), multiple * min(int(bounds.upper), 2**40)
        dims.append(Size(symbol=match[2], multiple=multiple, low=low, high=high))
    return Input(node=node, dims=tuple(dims), dtype=dtype_name(value.dtype))
