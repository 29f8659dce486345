"""A model's own call, repeated at other sizes in the compiling process: it shows how the sizes of block calls vary.

Nobody has to know a model's arguments for that. The first tensor of three or more dimensions says which batch, height
and width the call has; lengths of text are second dimensions of others. What cannot be called so is left as it was, and
a block graph then serves fewer sizes.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import torch

from ...common.log import logger
from ...signature import call_tree
from ...signature.call_tree import JSON, OPTIONS, Form, TensorForm, flatten, leaf_forms
from ...signature.parameters import as_call, options_of, parameters_of
from . import other_sizes, text_calls
from .records import Mark, Recording

log = logger("compiler")

_Sides: TypeAlias = Literal["all", "longest", "first", "none"]
_PLAIN = (bool, int, float, str)
_LEFT_OUT = ("control", "output_buffer")  # residuals are added between blocks, videos written after them
_PICTURE = 8  # pixels of a picture that steers a model, for each latent unit
_MOST_VALUES = 1 << 16  # of a tensor of whole numbers, whose values may decide what a model does
# Values of timesteps in further calls, None those of the call: a model may have a row for each distinct timestep, and
# streams have distinct ones in the midst of a sampling that share one at its ends.
_TIMES = (None, 500.0, 1.0)
_VIDEO = 5  # dimensions
# Batch, text, frames, height and width of further calls. Their products and sums differ, so that no rule holds by
# accident; patches of two by two fit into them.
_SIZES = ((3, 29, 3, 24, 40), (1, 7, 2, 16, 28), (4, 50, 4, 36, 20))


class ModelCall(NamedTuple):
    """A call of a model that shows its blocks' calls, and the scale of further ones."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    method: str = "forward"
    scale: other_sizes.Scale = other_sizes.AS_IT_IS


class Varying(NamedTuple):
    """Whether further calls may have other batches, and videos other frames, than the call."""

    batches: other_sizes.Batches = "varied"
    frames: other_sizes.Frames = "varied"


_VARIED = Varying()


@dataclass(frozen=True)
class OuterCall:
    """What a model is called with.

    Attributes:
        form: of the arguments by name.
        leaves: sizes of tensors (with the values of those of whole numbers, and of timesteps), and numbers.
        options: plain values among the model's options, and dictionaries of such.
        method: of the model, that is called.
        scale: of further calls.
    """

    form: Form
    leaves: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    method: str = "forward"
    scale: other_sizes.Scale = other_sizes.AS_IT_IS

    @classmethod
    def of(cls, model: torch.nn.Module, call: ModelCall) -> OuterCall:
        """Describe a call of a model. What no graph could stand for is left out.

        Raises:
            TypeError: the model cannot be called so.
        """
        model_class: Any = type(model)
        named = parameters_of(model_class, call.method).bind(call.args, call.kwargs)
        form, leaves = flatten({name: _simple(name, value) for name, value in named.items()})
        options = options_of(named)
        nested = (
            {name: one for name, one in options.items() if _is_plain_dict(one)} if isinstance(options, dict) else {}
        )
        return cls(form, tuple(map(_described, leaves)), plain_options(options) | nested, call.method, call.scale)

    def to_json(self) -> JSON:
        """Return everything, JSON-ready."""
        return {**vars(self), "form": call_tree.to_json(self.form)}

    @classmethod
    def from_json(cls, data: JSON) -> OuterCall:
        """Read what `to_json` made, which comes from this process' own parent."""
        form, scale = call_tree.from_json(data["form"]), other_sizes.Scale(*data["scale"])
        return cls(form, tuple(data["leaves"]), data["options"], data["method"], scale)

    def others(
        self, device: torch.device, varying: Varying = _VARIED
    ) -> Iterator[list[Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]]]:
        """Yield further calls: for each the ways to make it as positional and named arguments, most telling first."""
        for of_call, time in zip(_SIZES, _TIMES, strict=True):
            described = zip(leaf_forms(self.form), self.leaves, strict=True)
            leaves = [_tensor(form, one, time, device) for form, one in described]
            main = next((one for one in leaves if isinstance(one, torch.Tensor) and one.ndim >= 3), None)
            if main is None:
                return
            sizes = other_sizes.NewSizes(*of_call).scaled(self.scale)
            if varying.frames == "kept" and main.ndim == _VIDEO:
                sizes = replace(sizes, frames=main.shape[2])
            ways = [
                _Resized(main, sizes, which, batched)
                for batched, which in itertools.product(other_sizes.BATCHED[varying.batches], get_args(_Sides))
            ]
            named = call_tree.rebuild(self.form, leaves, {**self.options})
            if self.scale.texts:
                yield [functools.partial(_called, way) for way in text_calls.ways(named, sizes)]
                continue
            others, listed = other_sizes.ways(named, sizes, varying.batches)
            usual = [functools.partial(self._call, way, leaves) for way in ways]
            more = [functools.partial(_called, way) for way in others]
            yield [*more, *usual] if listed else [*usual, *more]

    def _call(self, resized: _Resized, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        tokens = {one.shape[1] for one in leaves if isinstance(one, torch.Tensor) and one.ndim == 3}
        made = [resized(one, tokens) if isinstance(one, torch.Tensor) else one for one in leaves]
        sides = {
            was: now
            for one, other in zip(leaves, made, strict=True)
            if isinstance(one, torch.Tensor) and one.ndim > 3
            for was, now in zip(one.shape[2:], other.shape[2:], strict=True)
            if was > 2
        }  # which numbers beside an image tell, too
        made = [sides.get(one, one) if type(one) is int else one for one in made]
        return as_call(call_tree.rebuild(self.form, made, {**self.options}))


def _called(way: Callable[[], Mapping[str, Any]]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return as_call(way())


@dataclass(frozen=True)
class _Resized:
    """Tensors of a call at another size.

    Attributes:
        main: of which the sizes are.
        sides: which change of other tensors of four and more dimensions.
        batched: whether the batch does.
    """

    main: torch.Tensor
    sizes: other_sizes.NewSizes
    sides: _Sides
    batched: bool

    def __call__(self, tensor: torch.Tensor, tokens: set[int]) -> torch.Tensor:
        shape = [*tensor.shape]
        if shape and shape[0] == self.main.shape[0] and self.batched:
            shape[0] = self.sizes.batch
        if tensor.ndim > 3:
            for dim in self._changing(tensor):
                shape[dim] = self._side(tensor, dim)
        elif tensor is self.main:
            shape[1] = self.sizes.height * self.sizes.width // 4
        elif tensor.ndim == 3 or (tensor.ndim == 2 and shape[1] in tokens):
            shape[1] = self.sizes.tokens if shape[1] > 1 else shape[1]
        elif tensor.ndim == 2 and self.main.ndim == _VIDEO and shape[1] == self.main.shape[2] > 1:
            shape[1] = self.sizes.frames  # a timestep for each
        for dim, size in enumerate(shape):
            if size != tensor.shape[dim]:
                tensor = tensor.index_select(dim, torch.arange(size, device=tensor.device) % tensor.shape[dim])
        return tensor

    def _changing(self, tensor: torch.Tensor) -> list[int]:
        """The sides that change of a tensor of four or more dimensions."""
        sides = [*range(max(2, tensor.ndim - 3), tensor.ndim)]
        if self.sides == "all" or tensor.shape[-2:] == self.main.shape[-2:]:  # the same picture, or one frame of it
            return sides
        if self.sides == "longest":
            return [max(sides, key=lambda dim: tensor.shape[dim])]
        return sides[:1] if self.sides == "first" else []

    def _side(self, tensor: torch.Tensor, dim: int) -> int:
        """The size of a side: as much of the main tensor's as it is now, else one of its own."""
        size, from_end = tensor.shape[dim], tensor.ndim - dim
        sizes = self.sizes
        wanted = (sizes.width, sizes.height, sizes.frames)[from_end - 1] if from_end <= 3 else size
        if size == 1:
            return 1
        if tensor.ndim >= self.main.ndim >= from_end + 2:
            main = self.main.shape[-from_end]
            if size in (main, _PICTURE * main):
                return wanted * (size // main)
            if 2 * size == main:  # a pose at half the resolution
                return wanted // 2
            if from_end == 3 and abs(size - main) == 1:  # frames with one of a reference before them, or without it
                return wanted + size - main
        return max(2, wanted + (4 if from_end == 1 else -4))


def repeat(
    model: torch.nn.Module,
    call: OuterCall,
    device: torch.device,
    recorded: Recording,
    varying: Varying = _VARIED,
    times: int = 1,
) -> int:
    """Call a model at other sizes.

    Args:
        times: how often at each size: a model that keeps something for its next call makes that one in another way.
        recorded: what these calls show. What those show that fail counts only where none went well.

    Returns:
        How many of the calls went well.
    """
    made, preferred = 0, 0
    failed: list[tuple[Mark, Mark]] = []
    for ways in call.others(device, varying):
        for number in sorted(range(len(ways)), key=lambda one: one != preferred):
            before = recorded.mark()
            try:
                for _ in range(times):
                    args, kwargs = ways[number]()
                    getattr(type(model), call.method)(model, *args, **kwargs)
            except Exception as error:
                log.debug("no call at other sizes: %s", error)
                failed.append((before, recorded.mark()))
                continue
            made, preferred = made + 1, number
            break
    if made:
        for span in reversed(failed):
            recorded.forget(*span)
    return made


def plain_options(options: Any) -> dict[str, Any]:
    """Return the plain values among a model's options: what a capture may read of them."""
    return {name: one for name, one in options.items() if type(one) in _PLAIN} if isinstance(options, dict) else {}


def _is_plain_dict(value: Any) -> bool:
    """Whether it is settings of a node's, such as where a model shall keep what it needs again."""
    return type(value) is dict and value != {} and {*map(type, value), *map(type, value.values())} <= {*_PLAIN}


def _simple(name: str, value: Any) -> Any:
    """A value without what no process could be given."""
    if name in _LEFT_OUT:
        return None
    if name == OPTIONS or isinstance(value, torch.Tensor) or value is None or type(value) in _PLAIN:
        return value
    if type(value) in (list, tuple):
        return type(value)(_simple("", one) for one in value)
    if type(value) is dict:
        return {str(key): _simple(str(key), one) for key, one in value.items()}
    return None


def _described(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return int(leaf)
    values = _is_time(leaf.ndim, leaf.dtype) or not (leaf.is_floating_point() or leaf.is_complex())
    values = values and leaf.numel() <= _MOST_VALUES
    return [[*leaf.shape], leaf.tolist() if values else None]


def _is_time(dims: int, dtype: torch.dtype) -> bool:
    return dims == 1 and dtype.is_floating_point


def _tensor(form: Any, leaf: Any, time: float | None, device: torch.device) -> Any:
    if not isinstance(form, TensorForm):
        return leaf
    shape, values = leaf
    dtype = call_tree.DTYPES[form.dtype]
    if time is not None and _is_time(form.dims, dtype):
        return torch.full(shape, time, dtype=dtype, device=device)
    if values is not None:
        return torch.tensor(values, dtype=dtype, device=device).reshape(shape)
    return torch.ones(shape, dtype=dtype, device=device)
