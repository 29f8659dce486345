"""What diffusers' families tell besides what every family does, and what several of them need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from ...common.outputs import Output
from ...runtime import family
from ...runtime.family import Tensors, plain


class PipeFamily(family.Family):
    """One kind of diffusers' modules. `like` of an example is the pipeline.

    Attributes:
        method: of the module, that calls are taken by.
        each_call_is_a_run: whether a call stands for itself, as a decode does, or is one step of many.
        checks_finite: whether results that are not finite must not leave.
    """

    method: ClassVar[str] = "forward"
    each_call_is_a_run: ClassVar[bool] = False
    checks_finite: ClassVar[bool] = False

    def output(self, output: Output, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A graph's output as the module returns it, for a call with these arguments."""
        return output

    def only_restores(self) -> bool:
        """Whether the call under way, which called this from the method, must not compile, like a tile of an image."""
        return False

    def as_asked(self, result: Any, output: Output, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The output as `return_dict` asks for it: in diffusers' class `result`, or in a tuple."""
        as_dict = family.by_name(self.arguments, args, kwargs).get("return_dict", True)
        return result(sample=output) if as_dict else (output,)


def own_forward(module: torch.nn.Module) -> Any:
    """The class's own forward: what stands on the instance leads back to the graph."""
    return type(module).forward


def noise(*shape: int, like: Any) -> torch.Tensor:
    """Normal numbers on the device and in the dtype of a model. The user's random numbers stay as they are.

    Constant images would magnify rounding.
    """
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(like.device, like.dtype)


def steps_of(timestep: Any, sample: torch.Tensor) -> torch.Tensor | None:
    """A call's timesteps, one for each element of the sample's batch: [B]; None where they are something else.

    A single number is as good as a tensor of it, for UNets compute with float32 whatever they are given.
    """
    if isinstance(timestep, bool) or not isinstance(timestep, int | float | torch.Tensor):
        return None
    if isinstance(timestep, torch.Tensor) and (timestep.ndim > 1 or timestep.numel() not in (1, sample.shape[0])):
        return None
    return torch.as_tensor(timestep, device=sample.device).reshape(-1).expand(sample.shape[0]).float()


__all__ = ["PipeFamily", "Tensors", "noise", "own_forward", "plain", "steps_of"]
