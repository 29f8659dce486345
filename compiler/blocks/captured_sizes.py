"""The sizes of a block's calls in its capture: which inputs it is made with, and what the graph says of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ...common.torch_private import expression, in_example
from ...signature.call_tree import Form, NumberForm, leaf_forms
from ...signature.rule import Rule
from ...signature.size_rules import MOST, SizeRules

_ASSERTION = "aten._assert_scalar.default"
_SLICES = {torch.ops.aten.slice.Tensor: 1, torch.ops.aten.slice_scatter.default: 2}  # and where their dimension stands


def examples(
    form: Form, sizes: SizeRules, device: torch.device
) -> tuple[tuple[torch.Tensor, ...], tuple[dict[int, Any], ...]]:
    """The inputs of a record, as the capture takes them, and which of their sizes vary."""
    shapes = sizes.recorded_sizes()
    inputs: list[torch.Tensor] = []
    dims: list[dict[int, Any]] = []
    varying = torch.export.Dim.DYNAMIC(min=1, max=MOST)
    for number, leaf in enumerate(leaf_forms(form)):
        shape = shapes.get(number, ())
        if isinstance(leaf, NumberForm):
            inputs.append(torch.empty(shape[0], 0, device=device))
        else:
            dtype: torch.dtype = getattr(torch, leaf.dtype)
            inputs.append(torch.ones(shape, dtype=dtype, device=device))
        dims.append({dim: varying for dim in range(len(shape)) if sizes.varies(number, dim)})
    return tuple(inputs), tuple(dims)


def rule_of(number: Any, values: Sequence[Any]) -> Rule | None:
    """Return the rule by which a whole number of a capture follows from the symbols, or None.

    Args:
        number: a symbolic one, or one that the block's code knows.
        values: of the symbols, symbolic or fixed by the block's code.
    """
    if not isinstance(number, torch.SymInt):
        return Rule("fixed", int(number))
    wanted = expression(number)
    symbols = [*map(expression, values)]
    points = [[(n + 2) ** 2 + 97 * (point + 1) + 13 * n * point for n in range(len(values))] for point in range(3)]
    tried = [
        {one: value for one, value in zip(symbols, point, strict=True) if not isinstance(one, int)} for point in points
    ]
    if not all(wanted.subs(point).is_Integer for point in tried):
        return None  # it depends on something else
    columns = [[point.get(one, one) for point in tried] for one in symbols]
    rule = Rule.of([int(wanted.subs(point)) for point in tried], columns)
    # The points only suggest it.
    return rule if rule is not None and (wanted - rule.value(symbols)).expand() == 0 else None


def _symbolic(program: torch.export.ExportedProgram, sizes: SizeRules) -> list[Any]:
    """The symbols as the capture has them; a whole number where the block's code fixed one."""
    names = [one for one in program.graph_signature.user_inputs if isinstance(one, str)]
    values = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    return [values[names[leaf]].shape[dim] for leaf, dim in sizes.symbols]


def slices(program: torch.export.ExportedProgram, sizes: SizeRules) -> set[tuple[int, int]]:
    """Pairs of symbols by which the graph takes slices: a bound of one, and the size that it is taken from.

    No compiler knows of two sizes which is the smaller one.
    """
    known = {
        str(expression(one)): n for n, one in enumerate(_symbolic(program, sizes)) if isinstance(one, torch.SymInt)
    }
    pairs: set[tuple[int, int]] = set()
    for node in program.graph.nodes:
        if node.op != "call_function" or node.target not in _SLICES:
            continue
        dim, *bounds = (*node.args[_SLICES[node.target] :], 0)[:3]
        upper = known.get(str(node.args[0].meta["val"].shape[dim]))
        lower = [known.get(str(one.meta["val"])) for one in bounds if isinstance(one, torch.fx.Node)]
        pairs |= {(one, upper) for one in lower if one is not None and upper is not None and one != upper}
    return pairs


def same_symbols(program: torch.export.ExportedProgram, sizes: SizeRules) -> dict[int, int]:
    """Which symbols the capture takes for an earlier one: the code needs that, or they were so in the example."""
    first: dict[str, int] = {}
    symbolic = [str(expression(one)) if isinstance(one, torch.SymInt) else "" for one in _symbolic(program, sizes)]
    earlier = {number: first.setdefault(one, number) for number, one in enumerate(symbolic) if one}
    return {number: one for number, one in earlier.items() if one != number}


def has_ones(program: torch.export.ExportedProgram) -> bool:
    """Whether a size that varies is 1 in the example, in the midst of the graph: a compiler may fix it for good."""
    values = [node.meta.get("val") for node in program.graph.nodes]
    sizes: Iterator[Any] = (size for one in values if isinstance(one, torch.Tensor) for size in one.shape)
    return any(isinstance(size, torch.SymInt) and in_example(size) == 1 for size in sizes)


def ranges(program: torch.export.ExportedProgram, sizes: SizeRules) -> list[tuple[int, int]]:
    """What the capture left of each symbol's range; calls outside are other code's."""
    ranges: list[tuple[int, int]] = []
    never_one = _never_one(program)
    for size in _symbolic(program, sizes):
        if isinstance(size, int):  # fixed by the block's code
            ranges.append((size, size))
            continue
        constraint = program.range_constraints.get(expression(size))
        low, high = (1, MOST) if constraint is None else (int(constraint.lower), min(int(constraint.upper), MOST))
        ranges.append((max(low, 2 if expression(size) in never_one else 1), high))
    return ranges


def _never_one(program: torch.export.ExportedProgram) -> set[Any]:
    """The symbols that an assertion of the graph does not let be 1: it would raise at each such call."""
    symbols: set[Any] = set()
    for node in (one for one in program.graph.nodes if str(one.target) == _ASSERTION):
        condition = getattr(node.args[0], "meta", {}).get("val")
        if isinstance(condition, torch.SymBool):
            relation = expression(condition)
            symbols |= {one for one in relation.free_symbols if _fails_at_one(relation, one)}
    return symbols


def _fails_at_one(relation: Any, symbol: Any) -> bool:
    """Whether a condition does not hold where a symbol is 1; a size of 1 may have no patches, by which it divides."""
    try:
        return str(relation.subs(symbol, 1)) == "False"
    except ZeroDivisionError:
        return True
