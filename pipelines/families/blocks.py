"""Every other model of diffusers whose blocks repeat: its own forward, in which its blocks run through graphs."""

from __future__ import annotations

import torch

from ...compiler.blocks.repeated import repeated_blocks
from ...compiler.composite import PLAIN
from ...runtime.blocks.requests import COMPONENT
from .. import adapters
from .family import Family


class Blocks(Family):
    """Models without a family of their own. No table of them: what their blocks take is seen in their calls."""

    component = COMPONENT

    def serves(self, module: torch.nn.Module) -> bool:
        from diffusers import ModelMixin
        from diffusers.models.autoencoders.vae import AutoencoderMixin

        if not isinstance(module, ModelMixin) or isinstance(module, AutoencoderMixin):
            return False
        blocks = [*repeated_blocks(module).values()]
        # A list of models, as of several ControlNets, is no model of blocks; levels of a UNet do not repeat.
        if any(isinstance(block, ModelMixin) for block in blocks):
            return False
        return len({_structure(block) for block in blocks}) < len(blocks)


def _structure(block: torch.nn.Module) -> tuple[type, tuple[torch.Size | None, ...]]:
    """The sizes of packed weights do not count: a GGUF file has more bits for some blocks' weights than for others'."""
    own = adapters.own_weights(block)
    return type(block), tuple(weight.shape if type(weight) in PLAIN else None for weight in own)
