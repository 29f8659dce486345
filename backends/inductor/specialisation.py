"""What a graph assumes of sizes. Both the capture and Inductor decide by those of the example where there is a choice,
such as whether two sizes are the same, and not all of that is checked again by the compiled graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch

from ...common.errors import CompileError, LoadError

Values = Mapping[str, int]  # of a capture's symbols, by name


def values_of(exported: torch.export.ExportedProgram, served: Sequence[Sequence[Sequence[int]]]) -> list[Values]:
    """Return the values of a capture's symbols in some calls.

    Args:
        served: the shapes of the inputs, of each call.

    Raises:
        CompileError: the capture has one symbol for sizes that differ, or a number for one that has another value.
    """
    names = [one for one in exported.graph_signature.user_inputs if isinstance(one, str)]
    tensors = {node.name: node.meta["val"] for node in exported.graph.nodes if node.op == "placeholder"}
    found: list[Values] = []
    for shapes in served:
        values: dict[str, int] = {}
        for name, shape in zip(names, shapes, strict=True):
            for symbolic, size in zip(tensors[name].shape, shape, strict=True):
                if not isinstance(symbolic, torch.SymInt):
                    same = symbolic == size
                else:
                    factor, rest = symbolic.node.expr.as_coeff_Mul()
                    same = not rest.is_Symbol or values.setdefault(rest.name, size // int(factor)) * factor == size
                if not same:
                    raise CompileError(f"its capture has {symbolic} for a size of {name} that may be {size}")
        found.append(values)
    return found


def check(module: torch.fx.GraphModule, served: Sequence[Values]) -> None:
    """See to it that all that was assumed of a compiled module's sizes, in the capture or since, holds in served calls.

    That sizes differ, from each other or from 1, nearly each graph assumes: such code is right for the same ones, too,
    where less code would do. That they are the same is what makes others wrong.

    Raises:
        CompileError: it would be wrong in one.
        LoadError: this torch does not tell what it assumes.
    """
    for env in _environments(module):
        for condition in _assumed(env):
            if any(_fails(condition, values) for values in served):
                raise CompileError(f"it would serve only calls with {condition}")


def _environments(module: torch.fx.GraphModule) -> set[Any]:
    """The shape environments of a module's placeholders; there is one, if any."""
    values = [node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder"]
    sizes = [size for one in values if isinstance(one, torch.Tensor) for size in (*one.shape, *one.stride())]
    sizes += [one for one in values if isinstance(one, torch.SymInt)]
    return {size.node.shape_env for size in sizes if isinstance(size, torch.SymInt)}


def _assumed(env: Any) -> list[Any]:
    """All conditions on symbols, as sympy has them. Raises LoadError."""
    try:
        conditions = [guard.expr for guard in env.guards]
        conditions += [one.expr for some in env.deferred_runtime_asserts.values() for one in some]
        return conditions + [sympy.Eq(symbol, other) for symbol, other in env.replacements.items()]
    except AttributeError as error:
        raise LoadError(f"This torch does not tell what it assumes of sizes ({error}).") from error


def _is_difference(condition: Any) -> bool:
    return isinstance(condition, sympy.Ne)


def _fails(condition: Any, values: Values) -> bool:
    """Whether a condition does not hold; of symbols that are no inputs' nothing is known."""
    symbols = getattr(condition, "free_symbols", ())
    if _is_difference(condition) or any(one.name not in values for one in symbols):
        return False
    return str(condition.subs({one: values[one.name] for one in symbols})) == "False"
