"""Which sizes a graph takes for the same. Both the capture and Inductor decide that by the example where there is a
choice, and not all of it is checked again by the compiled graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from ...common.errors import CompileError, LoadError
from ...common.torch_private import expression

_ASSERTION = "aten._assert_scalar.default"


@dataclass(frozen=True)
class Served:
    """Calls that a graph shall serve, as its capture has them.

    Attributes:
        values: of the symbols by name, of each call.
        asserted: conditions that the graph checks itself.
    """

    values: Sequence[dict[str, int]] = ()
    asserted: Sequence[str] = ()

    @classmethod
    def of(cls, exported: torch.export.ExportedProgram, calls: Sequence[Sequence[Sequence[int]]]) -> Served:
        """Describe calls by the shapes of their inputs.

        Raises:
            CompileError: the capture has one symbol for sizes that differ there, or a number for one of another value.
        """
        names = [one for one in exported.graph_signature.user_inputs if isinstance(one, str)]
        tensors = {node.name: node.meta["val"] for node in exported.graph.nodes if node.op == "placeholder"}
        values_of_calls: list[dict[str, int]] = []
        for shapes in calls:
            sizes = [
                (sympy.sympify(expression(symbolic)), size, name)
                for name, shape in zip(names, shapes, strict=True)
                for symbolic, size in zip(tensors[name].shape, shape, strict=True)
            ]
            values: dict[str, int] = {}
            for one, size, _ in sizes:
                factor, rest = one.as_coeff_Mul()
                if rest.is_Symbol:
                    values.setdefault(rest.name, size // int(factor))
            for one, size, name in sizes:
                bound = {symbol: values[symbol.name] for symbol in one.free_symbols if symbol.name in values}
                if len(bound) == len(one.free_symbols) and one.subs(bound) != size:
                    raise CompileError(f"its capture has {one} for a size of {name} that may be {size}")
            values_of_calls.append(values)
        asserting = (node.args[0] for node in exported.graph.nodes if str(node.target) == _ASSERTION)
        conditions = (getattr(one, "meta", {}).get("val") for one in asserting)
        return cls(values_of_calls, [str(expression(one)) for one in conditions if isinstance(one, torch.SymBool)])


ANY = Served()  # nothing is known of them


def check(module: torch.fx.GraphModule, served: Served) -> None:
    """See to it that sizes which were taken for the same, in a compiled module's capture or since, are so in all calls.

    That sizes differ, from each other or from 1, nearly each graph assumes: such code is right for the same ones, too,
    where less code would do. Which of two is larger is not looked at.

    Raises:
        CompileError: it would be wrong in one.
        LoadError: this torch does not tell what it assumes.
    """
    for env in _environments(module):
        for condition in _assumed(env):
            if str(condition) not in served.asserted and any(_fails(condition, values) for values in served.values):
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


def _fails(condition: Any, values: dict[str, int]) -> bool:
    """Whether sizes are not the same that it says are; of symbols that are no inputs' nothing is known."""
    symbols = getattr(condition, "free_symbols", ())
    if not isinstance(condition, sympy.Eq) or any(one.name not in values for one in symbols):
        return False
    return str(condition.subs({one: values[one.name] for one in symbols})) == "False"
