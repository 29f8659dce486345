"""Export a module as one graph with named dimensions."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from ..common.errors import CaptureError, in_brief
from ..common.shapes import ShapeRange


def example_inputs(
    shapes: ShapeRange, example_sizes: Mapping[str, int], device: torch.device
) -> tuple[torch.Tensor, ...]:
    """Return zeros inside the range, with the example sizes where they fit.

    Sizes of 1 become 2 where the range allows it: a compiler may take 1 for a broadcast and fix it for good.
    """

    def size(name: str) -> int:
        dim = shapes.dim(name)
        wanted = example_sizes.get(name, dim.low)
        if dim.refusal(wanted) is not None:
            wanted = dim.low
        if wanted == 1 and dim.high >= 2 * dim.multiple:
            wanted = 2 * dim.multiple
        return wanted

    return tuple(
        torch.zeros(
            [d if isinstance(d, int) else size(d) for d in spec.dims], dtype=getattr(torch, spec.dtype), device=device
        )
        for spec in shapes.inputs
    )


def dynamic_shapes(shapes: ShapeRange) -> list[dict[int, Any]]:
    """Return the range as torch.export takes it: per input, dimension index -> (multiple of a) named Dim."""
    dims: dict[str, Any] = {}
    for d in shapes.dims:
        if not d.exact:
            base = torch.export.Dim(d.name, min=d.low // d.multiple, max=d.high // d.multiple)
            dims[d.name] = base if d.multiple == 1 else d.multiple * base
    return [{i: dims[d] for i, d in enumerate(spec.dims) if d in dims} for spec in shapes.inputs]


def _by_parameter(module: torch.nn.Module, given: list[dict[int, Any]]) -> tuple[Any, ...]:
    """The inputs' dimensions as the parameters of a module's forward take them: those of `*inputs` belong together."""
    kinds = [parameter.kind for parameter in inspect.signature(module.forward).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        return tuple(given)
    first = kinds.index(inspect.Parameter.VAR_POSITIONAL)
    return *given[:first], tuple(given[first:])


def capture(
    module: torch.nn.Module,
    shapes: ShapeRange,
    example_sizes: Mapping[str, int],
    device: torch.device,
) -> torch.export.ExportedProgram:
    """Export a module for every call of the range.

    Args:
        module: takes the range's inputs, one by one or as `*inputs`, and returns one tensor.
        example_sizes: sizes that the compiler tunes for, by dimension name.

    Raises:
        CaptureError: the module's code branches on a size or a value, so that one graph cannot serve the whole range;
            or it returns something else than one tensor.
    """
    inputs = example_inputs(shapes, example_sizes, device)
    given = _by_parameter(module, dynamic_shapes(shapes))
    try:
        with torch.no_grad():
            exported = torch.export.export(module, inputs, strict=False, dynamic_shapes=given)
    except Exception as error:
        raise CaptureError(
            f"The model could not be captured as one graph ({in_brief(error)}); it runs eager instead."
        ) from error
    if len(exported.graph_signature.user_outputs) != 1:
        raise CaptureError("The model returns more than one tensor, which no graph here serves; it runs eager instead.")
    lifted = [n for n in exported.constants if n not in dict(module.named_buffers())]
    if lifted:
        raise CaptureError(
            f"The model's code makes a constant tensor ({lifted[0]}) that is no weight; it runs eager instead."
        )
    return exported
