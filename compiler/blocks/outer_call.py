"""A model's own call, repeated at other sizes in the compiling process: it shows how the sizes of block calls vary.

Nobody has to know a model's arguments for that. The first tensor of three or more dimensions says which batch, height
and width the call has; lengths of text are second dimensions of others. What cannot be called so is left as it was, and
a block graph then serves fewer sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from ...common.log import logger
from ...signature import call_tree
from ...signature.call_tree import JSON, OPTIONS, Form, TensorForm, flatten, leaf_forms
from ...signature.parameters import as_call, options_of, parameters_of
from . import readings, text_calls
from .other_sizes import AS_IT_IS, NewSizes, Scale, Varying
from .records import Mark, Recording

log = logger("compiler")

_PLAIN = (bool, int, float, str)
_LEFT_OUT = ("control", "output_buffer")  # residuals are added between blocks, videos written after them
_MOST_VALUES = 1 << 16  # of a tensor of whole numbers, whose values may decide what a model does
# Values of timesteps in further calls, None those of the call: a model may have a row for each distinct timestep, and
# streams have distinct ones in the midst of a sampling that share one at its ends.
_TIMES = (None, 500.0, 1.0)
# Batch, text, frames, height and width of further calls. Their products and sums differ, so that no rule holds by
# accident; patches of two by two fit into them.
_SIZES = ((3, 29, 3, 24, 40), (1, 7, 2, 16, 28), (4, 50, 4, 36, 20))

_VARIED = Varying()


class ModelCall(NamedTuple):
    """A call of a model that shows its blocks' calls, and the scale of further ones."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    method: str = "forward"
    scale: Scale = AS_IT_IS


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
    scale: Scale = AS_IT_IS

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
        form, scale = call_tree.from_json(data["form"]), Scale(*data["scale"])
        return cls(form, tuple(data["leaves"]), data["options"], data["method"], scale)

    def others(
        self, device: torch.device, varying: Varying
    ) -> Iterator[list[Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]]]:
        """Yield further calls: for each the ways to make it as positional and named arguments, most telling first."""
        for of_call, time in zip(_SIZES, _TIMES, strict=True):
            described = zip(leaf_forms(self.form), self.leaves, strict=True)
            leaves = [_tensor(form, one, time, device) for form, one in described]
            named = call_tree.rebuild(self.form, leaves, {**self.options})
            sizes = NewSizes(*of_call).scaled(self.scale)
            texts = self.scale.texts
            ways = text_calls.ways(named, sizes) if texts else readings.ways(named, sizes, varying)
            yield [functools.partial(_called, way) for way in ways]


def _called(way: Callable[[], Mapping[str, Any]]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return as_call(way())


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
