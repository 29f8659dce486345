"""Every other model of diffusers whose blocks repeat: its own forward, in which its blocks run through graphs."""

from __future__ import annotations

import itertools

import torch

from ...compiler.blocks.repeated import repeated_blocks
from ...compiler.composite_weights import PLAIN
from ...runtime.calls.requests import COMPONENT
from .. import adapters
from .family import PipeFamily

# Where UNets and their encoders are defined. Levels of some are alike, but few and large, and no test tried them.
_UNETS = (
    "diffusers.models.unets",
    "diffusers.models.controlnets.controlnet_sparsectrl",
    "diffusers.models.controlnets.controlnet_xs",
    "diffusers.pipelines.audioldm2",
)


class Blocks(PipeFamily):
    """Models without a family of their own. No table of them: what their blocks take is seen in their calls."""

    component = COMPONENT

    def serves(self, module: torch.nn.Module) -> bool:
        from diffusers import ModelMixin
        from diffusers.models.autoencoders.vae import AutoencoderMixin

        if not isinstance(module, ModelMixin) or isinstance(module, AutoencoderMixin):
            return False
        if any(cls.__module__.startswith(_UNETS) for cls in type(module).__mro__):
            return False
        blocks = [*repeated_blocks(module).values()]
        # A list of models, as of several ControlNets, is no model of blocks.
        if any(isinstance(block, ModelMixin) for block in blocks):
            return False
        return any(_are_alike(*two) for two in itertools.combinations(map(_structure, blocks), 2))


_Structure = tuple[type, list["torch.Size | None"]]


def _structure(block: torch.nn.Module) -> _Structure:
    """A block's class and the sizes of its weights; None of those that are packed."""
    weights = adapters.own_weights(block)
    return type(block), [weight.shape if type(weight) in PLAIN else None for weight in weights]


def _are_alike(one: _Structure, other: _Structure) -> bool:
    """The sizes of packed weights do not count: a GGUF file has more bits for some blocks' weights than for others'."""
    same = one[0] is other[0] and len(one[1]) == len(other[1])
    return same and all(a == b or None in (a, b) for a, b in zip(one[1], other[1], strict=True))
