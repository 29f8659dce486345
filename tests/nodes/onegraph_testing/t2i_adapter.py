"""A T2I adapter of one layer, for nodes and for tests in process."""

from __future__ import annotations

import torch


def seeded(module, seed=9, gain=1.0):
    """Give a module's weights values that do something."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, tensor in module.state_dict().items():
        fan_in = tensor[0].numel() if tensor.ndim > 1 else 1
        drawn = torch.randn(tensor.shape, generator=generator)
        state[name] = gain * drawn / fan_in**0.5 if tensor.ndim > 1 else torch.full(tensor.shape, 0.5)
    module.load_state_dict(state)
    return module


class _Features(torch.nn.Module):
    """What a T2I adapter adds to the UNet's second block."""

    unshuffle_amount = 8

    def __init__(self, channels):
        super().__init__()
        self.out = torch.nn.Conv2d(3, channels, 1)

    def forward(self, hint):
        return {"input": [None, self.out(torch.nn.functional.avg_pool2d(hint, 8))]}


def made(channels):
    """The host's T2I adapter with a network of one layer."""
    from comfy.controlnet import T2IAdapter

    return T2IAdapter(seeded(_Features(channels), gain=2.0), 3, 8, "nearest-exact")
