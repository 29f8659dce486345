"""What a family of modules tells about its calls."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch

from ...common import reasons
from ...common.outputs import Output
from ...common.reasons import Reason
from ...common.shapes import Refused, ShapeRange, TensorSpec

Shapes = Literal["any size", "exact"]
Inputs = Mapping[str, torch.Tensor]  # by name, in a graph's order


@dataclass(frozen=True)
class Ranged:
    """A shape range with its label, and the sizes of the call at hand by dimension name."""

    shapes: ShapeRange
    label: str
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class Arguments:
    """What a module is called with."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)


class Family(Protocol):
    """One kind of module that can be compiled.

    Attributes:
        component: its name in keys.
        method: of the module, that calls are taken by.
        chunk: elements of a batch that a graph takes at once; 0: all.
        each_call_is_a_run: whether a call stands for itself, as a decode does, or is one step of many.
        checks_finite: whether results that are not finite must not leave.
    """

    @property
    def component(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def chunk(self) -> int: ...
    @property
    def each_call_is_a_run(self) -> bool: ...
    @property
    def checks_finite(self) -> bool: ...

    def serves(self, module: torch.nn.Module) -> bool:
        """Whether this is one of its modules: exactly of a class that is known."""

    def unit(self, module: torch.nn.Module) -> int:
        """Pixels of an image per unit of the inputs' height and width."""

    def config_refusal(self, module: torch.nn.Module) -> Reason | None:
        """Why no graph serves any call of a module that is configured like this, or None."""

    def inputs(self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Inputs | Refused:
        """The tensors that a graph takes for a call; or why no graph does."""

    def ranged(self, module: torch.nn.Module, inputs: Inputs, shapes: Shapes) -> Ranged:
        """The range that a graph for this call should have."""

    def run(self, module: torch.nn.Module, inputs: Inputs) -> Output:
        """The module's own method as a function of a graph's inputs."""

    def prepare_capture(self, module: torch.nn.Module) -> None:
        """In the compiling process: turn off what asks for sizes and makes no difference."""

    def output(self, output: Output, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A graph's output as the module returns it, for a call with these arguments."""

    def only_restores(self) -> bool:
        """Whether the call under way, which called this from the method, must not compile, like a tile of an image."""

    def usual_call(self, pipe: Any, module: torch.nn.Module) -> Arguments:
        """A call as the pipeline makes it at its usual size, with noise: constant images magnify rounding."""


def noise(*shape: int, like: Any) -> torch.Tensor:
    """Normal numbers on the device and in the dtype of a model. The user's random numbers stay as they are."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(like.device, like.dtype)


def dtype_of(tensor: torch.Tensor) -> str:
    """A tensor's dtype as specs name it."""
    return str(tensor.dtype).removeprefix("torch.")


def spec_of(name: str, tensor: torch.Tensor, *dims: int | str) -> TensorSpec:
    """The spec of an input with these dimensions."""
    return TensorSpec(name, dims, dtype_of(tensor))


def arguments(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name."""
    return {**dict(zip(names, args, strict=False)), **kwargs}


def transformer_refusal(call: Mapping[str, Any], taken: Collection[str]) -> Reason | None:
    """Why no graph of a diffusion transformer serves a call with these arguments, or None.

    Args:
        taken: names of the arguments that a graph takes or that make no difference.
    """
    if "ip_adapter_image_embeds" in (call.get("joint_attention_kwargs") or {}):
        return reasons.IpAdapter()
    for name, value in call.items():
        if name not in taken and value is not None and value != {}:
            return reasons.ResidualInputs(name) if "controlnet" in name else reasons.CallArgument(name)
    return None


def plain(values: Sequence[Any]) -> list[torch.Tensor] | None:
    """The values as tensors; None where one of them is something else, a tensor of a library's own class for one."""
    found = [value for value in values if type(value) is torch.Tensor]
    return found if len(found) == len(values) else None


def of_batch(tensor: torch.Tensor, batch: int) -> torch.Tensor:
    """The tensor for each element of a batch, where it is given once for all of them and the model broadcasts it."""
    return tensor.expand(batch, *tensor.shape[1:]) if tensor.shape[0] == 1 else tensor


def steps_of(timestep: Any, sample: torch.Tensor) -> torch.Tensor | None:
    """A call's timesteps, one for each element of the sample's batch: [B]; None where they are something else.

    A single number is as good as a tensor of it, for UNets compute with float32 whatever they are given.
    """
    if isinstance(timestep, bool) or not isinstance(timestep, int | float | torch.Tensor):
        return None
    if isinstance(timestep, torch.Tensor) and (timestep.ndim > 1 or timestep.numel() not in (1, sample.shape[0])):
        return None
    return torch.as_tensor(timestep, device=sample.device).reshape(-1).expand(sample.shape[0]).float()
