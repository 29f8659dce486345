"""What diffusers' families tell besides what every family does, and what several of them need."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import torch

from ...common import reasons
from ...common.outputs import Output
from ...common.shapes import Refused
from ...runtime import family
from ...runtime.family import Tensors, plain


class Family(family.Family):
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


class Transformer(Family):
    """A diffusion transformer of images, one at a time: kernels have work enough."""

    component = "transformer"
    chunk = 1

    def output(self, output: Output, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        from diffusers.models.modeling_outputs import Transformer2DModelOutput

        return self.as_asked(Transformer2DModelOutput, output, args, kwargs)

    def tensors(
        self, call: Mapping[str, Any], names: Sequence[str], taken: Collection[str]
    ) -> list[torch.Tensor] | Refused:
        """The arguments of these names as tensors; or why no graph serves the call.

        Args:
            taken: names of the arguments that a graph takes or that make no difference.
        """
        if "ip_adapter_image_embeds" in (call.get("joint_attention_kwargs") or {}):
            return Refused(reasons.IpAdapter())
        for name, value in call.items():
            if name not in taken and value is not None and value != {}:
                controlled = "controlnet" in name
                return Refused(reasons.ResidualInputs(name) if controlled else reasons.CallArgument(name))
        tensors = plain([call.get(name) for name in names])
        return Refused(reasons.NotPlainInputs()) if tensors is None else tensors


def own_forward(module: torch.nn.Module) -> Any:
    """The class's own forward: what stands on the instance leads back to the graph."""
    return type(module).forward


def noise(*shape: int, like: Any) -> torch.Tensor:
    """Normal numbers on the device and in the dtype of a model. The user's random numbers stay as they are.

    Constant images would magnify rounding.
    """
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(like.device, like.dtype)


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


__all__ = ["Family", "Tensors", "Transformer", "noise", "of_batch", "own_forward", "plain", "steps_of"]
