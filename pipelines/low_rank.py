"""A layer with LoRA adapters as graphs compute it: weights and strengths are data, names and libraries do not count.

`adapters` puts it in the place of PEFT's layers in what is compiled. Its own module, for compiling processes import it
without PEFT.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


class LowRankLayer(torch.nn.Module):
    """base(x) + sum of scale[i] * up[i](down[i](x)), as PEFT's layers for linear and convolution layers compute it.

    Args:
        base: the model's own layer.
        pairs: down and up of each active adapter, in order.
        scales: float32 [adapters]; others change them in place.
    """

    scales: torch.Tensor

    def __init__(
        self,
        base: torch.nn.Module,
        pairs: Sequence[tuple[torch.nn.Module, torch.nn.Module]],
        scales: torch.Tensor,
    ) -> None:
        super().__init__()
        self.base_layer = base
        self.down = torch.nn.ModuleList(down for down, _ in pairs)
        self.up = torch.nn.ModuleList(up for _, up in pairs)
        self.register_buffer("scales", scales)
        self.train(base.training)

    @property
    def weight(self) -> torch.Tensor:
        """The model's own, which code around a layer asks for its dtype."""
        weight = self.base_layer.weight
        assert isinstance(weight, torch.Tensor)
        return weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.base_layer(x)
        dtype = result.dtype
        for index, (down, up) in enumerate(zip(self.down, self.up, strict=True)):
            x = x.to(down.weight.dtype)  # type: ignore[arg-type]
            result = result + up(down(x)) * self.scales[index]
        return result.to(dtype)
