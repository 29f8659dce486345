"""What one more family costs: this file. A small model, as a ComfyUI model and as any module, and what it tells.

Importing it registers the family, in the processes that compile it, too.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import torch

from onegraph.pipelines import families as pipe_families
from onegraph.runtime.family import Arguments, Axis, Family, Input, Tensors

WIDTH = 2048  # of the context


class Net(torch.nn.Module):
    """x [B,4,H,W], timesteps [B], context [B,T,2048] -> [B,4,H,W]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.inner = torch.nn.Conv2d(4, 16, 3, padding=1)
        self.mix = torch.nn.Linear(WIDTH, 16)
        self.out = torch.nn.Conv2d(16, 4, 1)
        self.requires_grad_(False)

    def _forward(self, x: torch.Tensor, timesteps: torch.Tensor, context: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        h = self.inner(x) + self.mix(context).mean(1)[:, :, None, None]
        return x + self.out(torch.nn.functional.silu(h)) * torch.cos(timesteps / 1000)[:, None, None, None]

    forward = _forward


class HostNet(Net):
    """The same, called as ComfyUI's models are: through a chain of wrappers."""

    dtype = torch.float32

    def forward(self, x: Any, timesteps: Any, context: Any = None, **kwargs: Any) -> Any:
        from comfy.patcher_extension import WrapperExecutor, WrappersMP, get_all_wrappers

        wrappers = get_all_wrappers(WrappersMP.DIFFUSION_MODEL, kwargs["transformer_options"])
        chain = WrapperExecutor.new_class_executor(self._forward, self, wrappers)
        return chain.execute(x, timesteps, context, **kwargs)


class Toy(Family):
    component = "toy"
    arguments = ("x", "timesteps", "context")
    neutral = frozenset({"transformer_options", "y", "control"})
    chunk = 4

    def serves(self, module: torch.nn.Module) -> bool:
        return type(module) in (Net, HostNet)

    def inputs(self, module: torch.nn.Module, given: Tensors) -> Sequence[Input]:
        return (
            Input("x", ("batch", None, "height", "width")),
            Input("timesteps", ("batch",)),
            Input("context", ("batch", "tokens", None)),
        )

    def axes(self, module: torch.nn.Module, given: Tensors) -> tuple[Sequence[Axis], str]:
        sides = (Axis(name, 4, 64, pixels=8) for name in ("height", "width"))
        return [Axis("batch", 1, 4), *sides, Axis("tokens", 2, 512, text="{} tokens")], "any size 32-512"

    def run(self, module: torch.nn.Module, given: Tensors) -> torch.Tensor:
        net: Any = module
        result: torch.Tensor = net._forward(**given)
        return result

    def example(self, module: torch.nn.Module, like: Any) -> Arguments:
        return Arguments((torch.zeros(2, 4, 16, 16), torch.zeros(2), torch.zeros(2, 77, WIDTH)))


class PipeToy(Toy, pipe_families.PipeFamily):
    """As a module that `compile_module` takes."""


pipe_families.register(PipeToy())

if importlib.util.find_spec("comfy") is not None:
    from onegraph.host import families as host_families

    class HostToy(Toy, host_families.HostFamily):
        """As ComfyUI's model."""

        supported = "toys"
        entry = "_forward"

    host_families.register(HostToy())
