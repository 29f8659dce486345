"""Export a module as one graph with named dimensions."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..common.errors import CaptureError, in_brief
from ..signature.call_tree import UnknownArgumentError
from ..signature.declared import Dim, ShapeRange
from ..signature.option_reads import UnreadableOptionsError
from ..signature.rule import Rule
from .composite_weights import PLAIN

# Functions that ask nothing of a tensor's numbers. A property, such as its dtype, is read by `__get__`.
_OF_ITS_FORM = frozenset({
    "__get__", "__len__", "__hash__", "dim", "ndimension", "size", "stride", "storage_offset", "numel", "nelement",
    "element_size", "get_device", "is_contiguous", "is_floating_point", "is_complex", "is_tensor", "is_inference",
    "to", "type_as", "expand_as", "view_as", "reshape_as", "new_empty", "new_zeros", "new_ones", "new_full",
    "result_type", "promote_types", "can_cast", "finfo", "iinfo",
})  # fmt: skip


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

    lengths = shapes.shapes({dim.name: size(dim.name) for dim in shapes.dims})
    return tuple(
        torch.zeros(shape, dtype=getattr(torch, spec.dtype), device=device)
        for shape, spec in zip(lengths, shapes.inputs, strict=True)
    )


def dynamic_shapes(shapes: ShapeRange) -> list[dict[int, Any]]:
    """Return the range as torch.export takes it: per input, dimension index -> (multiple of a) named Dim."""
    named: dict[str, Any] = {}
    dimensions: list[dict[int, Any]] = [{} for _ in shapes.inputs]
    for (leaf, number), rule in shapes.rules.rules.items():
        dim = shapes.dims[rule.symbols[0]] if rule.symbols else None
        if dim is not None and not dim.exact:
            dimensions[leaf][number] = _exported(rule, dim, named)
    return dimensions


def _exported(rule: Rule, dim: Dim, named: dict[str, Any]) -> Any:
    """Return what follows from a dimension as torch.export takes it.

    It knows multiples of a dimension. A fraction that is none of the dimension's unit is one of its own to it.

    Args:
        named: the named Dims so far, to which others are added.
    """
    over = rule.number if rule.kind == "fraction" else 1
    units, rest = divmod(dim.multiple * (rule.number if rule.kind == "multiple" else 1), over)
    name, low, high = dim.name, dim.low // dim.multiple, dim.high // dim.multiple
    if rest:
        units, name, low, high = 1, f"{dim.name}_{over}", -(-dim.low // over), -(-dim.high // over)
    if name not in named:
        named[name] = torch.export.Dim(name, min=low, max=high)
    return named[name] if units == 1 else units * named[name]


def outputs(exported: torch.export.ExportedProgram) -> int:
    """Return how many tensors a captured module returns; 0 where it also returns something else, or nothing."""
    results = exported.graph.output_node().args[0]
    plain = all(isinstance(getattr(node, "meta", {}).get("val"), torch.Tensor) for node in results)
    return len(results) if plain else 0


def _by_parameter(module: torch.nn.Module, dimensions: list[dict[int, Any]]) -> tuple[Any, ...]:
    """The inputs' dimensions as the parameters of a module's forward take them: those of `*inputs` belong together."""
    kinds = [parameter.kind for parameter in inspect.signature(module.forward).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        return tuple(dimensions)
    first = kinds.index(inspect.Parameter.VAR_POSITIONAL)
    return *dimensions[:first], tuple(dimensions[first:])


def capture(
    module: torch.nn.Module,
    shapes: ShapeRange,
    example_sizes: Mapping[str, int],
    device: torch.device,
) -> torch.export.ExportedProgram:
    """Export a module for every call of the range.

    Args:
        module: takes the inputs, one by one or as `*inputs`, and returns a tensor, or several in tuples or lists.
        example_sizes: sizes that the compiler tunes for, by dimension name.

    Raises:
        CaptureError: the module's code branches on a size or a value, so that one graph cannot serve the whole range;
            or it returns something else than tensors.
    """
    inputs = example_inputs(shapes, example_sizes, device)
    program = exported(module, inputs, _by_parameter(module, dynamic_shapes(shapes)), "model")
    if not outputs(program):
        raise CaptureError(
            "The model returns something else than tensors, which no graph serves; it runs uncompiled instead."
        )
    return program


def exported(
    module: torch.nn.Module,
    inputs: tuple[torch.Tensor, ...],
    dimensions: tuple[Any, ...],
    what: str,
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    **settings: Any,
) -> torch.export.ExportedProgram:
    """Export a module by torch, a model or a block.

    Args:
        dimensions: `dynamic_shapes` of torch.export.
        what: the module is called in sentences.
        around: what lasts while it is exported.
        settings: further ones of torch.export.

    Raises:
        CaptureError: its code branches on a size or a value, makes constants or reads them, or draws random numbers.
        UnreadableOptionsError, UnknownArgumentError: it does what no graph can stand for.
    """
    strangers = _StrangersRead()
    try:
        with torch.no_grad(), around(), strangers.calls_of(module):
            program = torch.export.export(module, inputs, strict=False, dynamic_shapes=dimensions, **settings)
    except (UnreadableOptionsError, UnknownArgumentError):
        raise
    except Exception as error:
        raise CaptureError(
            f"The {what} could not be captured as one graph ({in_brief(error)}); it runs uncompiled instead."
        ) from error
    lifted = [name for name in program.constants if name not in dict(module.named_buffers())]
    if lifted:
        raise CaptureError(
            f"The {what}'s code makes a constant tensor ({lifted[0]}) that is no weight; it runs uncompiled instead."
        )
    if strangers.by:
        raise CaptureError(
            f"The {what}'s code reads a tensor that is no weight (in {strangers.by}); it runs uncompiled instead."
        )
    if drawing := next(_random_operations(program), None):
        # Others than eager's; and those that come after it would be others, too.
        raise CaptureError(f"The {what} draws random numbers ({drawing}); it runs uncompiled instead.")
    return program


class _StrangersRead(TorchFunctionMode):
    """Notes which function a module's code calls with a tensor that is neither an input nor a weight.

    A graph would have such a tensor's numbers in it for good: those of the zeros that the compiling process has in its
    place. Where it is computed with, export tells; what is read of it as Python's numbers, or as a size, only this. In
    place of inputs and weights, export has tensors of its own.

    Attributes:
        by: the first such function, or empty.
    """

    by = ""
    _called = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", str(func))
        if self._called and not self.by and name not in _OF_ITS_FORM:
            self.by = name if any(map(_is_stranger, (*args, *(kwargs or {}).values()))) else ""
        return func(*args, **(kwargs or {}))

    @contextlib.contextmanager
    def calls_of(self, module: torch.nn.Module) -> Iterator[None]:
        """Look at the calls of a module, and at nothing that export does around them, while this lasts."""

        def mark(called: bool) -> None:
            self._called = called

        # The hooks enter no mode: while torch exports, none is called after an error.
        hooks = (
            module.register_forward_pre_hook(lambda *_: mark(True)),
            module.register_forward_hook(lambda *_: mark(False)),
        )
        try:
            with self:
                yield
        finally:
            for hook in hooks:
                hook.remove()


def _is_stranger(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_is_stranger, value))
    if isinstance(value, slice):
        return any(map(_is_stranger, (value.start, value.stop, value.step)))
    return type(value) in PLAIN


def _random_operations(program: torch.export.ExportedProgram) -> Iterator[str]:
    """The names of a graph's operations that draw random numbers."""
    graphs = [one for one in program.graph_module.modules() if isinstance(one, torch.fx.GraphModule)]
    for node in (node for one in graphs for node in one.graph.nodes):
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) and not _drops_nothing(node, program):
            yield str(node.target)


def _drops_nothing(node: torch.fx.Node, program: torch.export.ExportedProgram) -> bool:
    """Whether an operation is a dropout, or attention with one, that is off: torch draws nothing for it then.

    Modules may be in training mode: ComfyUI leaves its ControlNets so, whose dropouts have a probability of 0.
    """
    arguments = node.normalized_arguments(program.graph_module, normalize_to_only_use_kwargs=True)
    given = arguments.kwargs if arguments else {}
    if "attention" in str(node.target):
        return given.get("dropout_p") == 0.0
    return "dropout" in str(node.target) and (given.get("p") == 0.0 or given.get("train") is False)
