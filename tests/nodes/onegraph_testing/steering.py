"""What other packs add to steer a model, with seeded weights: adapters for images, wrappers, another attention."""

from __future__ import annotations

import torch

from . import t2i_adapter
from .declared import floating, integer, node
from .t2i_adapter import seeded

node("T2IAdapter", "CONTROL_NET", channels=integer(64))(t2i_adapter.made)


@node("ImageAdapter", "MODEL", model="MODEL", weight=floating(0.8))
def image_adapter(model, weight):
    """Attention to four tokens of an image beside the text's in every cross attention, as IPAdapter adds it."""
    from comfy.ldm.modules.attention import optimized_attention

    def attend(q, k, v, extra_options):
        generator = torch.Generator().manual_seed(q.shape[-1])
        tokens = torch.randn(2, 1, 4, q.shape[-1], generator=generator).to(q).expand(2, q.shape[0], 4, -1)
        heads = extra_options["n_heads"]
        return optimized_attention(q, k, v, heads) + weight * optimized_attention(q, *tokens.unbind(), heads)

    clone = model.clone()
    for name, count in (("input", 12), ("middle", 1), ("output", 12)):
        for number in range(count):
            clone.set_model_attn2_replace(attend, name, number)
    return clone


@node("AttentionOverride", "MODEL", model="MODEL", factor=floating(0.6))
def attention_override(model, factor):
    """Another attention for this model alone, by the host's own option for it."""
    clone = model.clone()
    options = clone.model_options["transformer_options"]
    options["optimized_attention_override"] = lambda attention, *args, **kwargs: factor * attention(*args, **kwargs)
    return clone


@node("Wrapper", "MODEL", model="MODEL", factor=floating(0.9))
def wrapper(model, factor):
    """A wrapper around the model's forward that changes its result."""
    from comfy.patcher_extension import WrappersMP

    clone = model.clone()
    clone.add_wrapper_with_key(
        WrappersMP.DIFFUSION_MODEL, "testing", lambda executor, *args, **kwargs: factor * executor(*args, **kwargs)
    )
    return clone


_BOX = dict.fromkeys(("left", "top", "width", "height"), floating(0.5))


@node("Gligen", "CONDITIONING", conditioning="CONDITIONING", model="MODEL", **_BOX)
def gligen(conditioning, model, left, top, width, height):
    """A text in a box by GLIGEN's layers, for a model without a text encoder."""
    import comfy.model_management
    import comfy.model_patcher
    from comfy.gligen import GatedSelfAttentionDense, Gligen, PositionNet

    unet = model.model.diffusion_model
    widths = [m.attn1.to_q.in_features for m in unet.modules() if type(m).__name__ == "BasicTransformerBlock"]
    layers = [GatedSelfAttentionDense(channels, 768, 4, channels // 4) for channels in widths]
    made = seeded(Gligen(layers, PositionNet(768, 768), 768)).requires_grad_(False)
    device = comfy.model_management.get_torch_device()
    patcher = comfy.model_patcher.ModelPatcher(made, load_device=device, offload_device=torch.device("cpu"))
    words = torch.randn(1, 768, generator=torch.Generator().manual_seed(1))
    box = tuple(int(16 * side) for side in (height, width, top, left))  # of a latent of 16 units
    return [[tokens, {**rest, "gligen": ("position", patcher, [(words, *box)])}] for tokens, rest in conditioning]
