"""What other packs add to steer a model, with seeded weights: adapters for images, wrappers, another attention."""

from __future__ import annotations

import torch


def _seeded(module, seed=9, gain=1.0):
    """Give a module's weights values that do something."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, tensor in module.state_dict().items():
        fan_in = tensor[0].numel() if tensor.ndim > 1 else 1
        drawn = torch.randn(tensor.shape, generator=generator)
        state[name] = gain * drawn / fan_in**0.5 if tensor.ndim > 1 else torch.full(tensor.shape, 0.5)
    module.load_state_dict(state)
    return module


class TestImageAdapter:
    """Attention to four tokens of an image beside the text's in every cross attention, as IPAdapter adds it."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",), "weight": ("FLOAT", {"default": 0.8})}}

    RETURN_TYPES = ("MODEL",)
    FUNCTION = "patch"
    CATEGORY = "testing"

    def patch(self, model, weight):
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
        return (clone,)


class TestAttentionOverride:
    """Another attention for this model alone, by the host's own option for it."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",), "factor": ("FLOAT", {"default": 0.6})}}

    RETURN_TYPES = ("MODEL",)
    FUNCTION = "patch"
    CATEGORY = "testing"

    def patch(self, model, factor):
        clone = model.clone()
        options = clone.model_options["transformer_options"]
        options["optimized_attention_override"] = lambda attention, *args, **kwargs: factor * attention(*args, **kwargs)
        return (clone,)


class TestWrapper:
    """A wrapper around the model's forward that changes its result."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",), "factor": ("FLOAT", {"default": 0.9})}}

    RETURN_TYPES = ("MODEL",)
    FUNCTION = "patch"
    CATEGORY = "testing"

    def patch(self, model, factor):
        from comfy.patcher_extension import WrappersMP

        clone = model.clone()
        clone.add_wrapper_with_key(
            WrappersMP.DIFFUSION_MODEL, "testing", lambda executor, *args, **kwargs: factor * executor(*args, **kwargs)
        )
        return (clone,)


class _Features(torch.nn.Module):
    """What a T2I adapter adds to the UNet's second block."""

    unshuffle_amount = 8

    def __init__(self, channels):
        super().__init__()
        self.out = torch.nn.Conv2d(3, channels, 1)

    def forward(self, hint):
        return {"input": [None, self.out(torch.nn.functional.avg_pool2d(hint, 8))]}


class TestT2IAdapter:
    """The host's T2I adapter with a network of one layer."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"channels": ("INT", {"default": 64})}}

    RETURN_TYPES = ("CONTROL_NET",)
    FUNCTION = "load"
    CATEGORY = "testing"

    def load(self, channels):
        from comfy.controlnet import T2IAdapter

        return (T2IAdapter(_seeded(_Features(channels), gain=2.0), 3, 8, "nearest-exact"),)


class TestGligen:
    """A text in a box by GLIGEN's layers, for a model without a text encoder."""

    @classmethod
    def INPUT_TYPES(cls):
        side = ("FLOAT", {"default": 0.5})
        sides = dict.fromkeys(("left", "top", "width", "height"), side)
        return {"required": {"conditioning": ("CONDITIONING",), "model": ("MODEL",), **sides}}

    RETURN_TYPES = ("CONDITIONING",)
    FUNCTION = "apply"
    CATEGORY = "testing"

    def apply(self, conditioning, model, left, top, width, height):
        import comfy.model_management
        import comfy.model_patcher
        from comfy.gligen import GatedSelfAttentionDense, Gligen, PositionNet

        unet = model.model.diffusion_model
        widths = [m.attn1.to_q.in_features for m in unet.modules() if type(m).__name__ == "BasicTransformerBlock"]
        layers = [GatedSelfAttentionDense(channels, 768, 4, channels // 4) for channels in widths]
        gligen = _seeded(Gligen(layers, PositionNet(768, 768), 768)).requires_grad_(False)
        device = comfy.model_management.get_torch_device()
        patcher = comfy.model_patcher.ModelPatcher(gligen, load_device=device, offload_device=torch.device("cpu"))
        words = torch.randn(1, 768, generator=torch.Generator().manual_seed(1))
        box = tuple(int(16 * side) for side in (height, width, top, left))  # of a latent of 16 units
        made = [[tokens, {**rest, "gligen": ("position", patcher, [(words, *box)])}] for tokens, rest in conditioning]
        return (made,)


NODES = {
    "OneGraphTestImageAdapter": TestImageAdapter,
    "OneGraphTestAttentionOverride": TestAttentionOverride,
    "OneGraphTestWrapper": TestWrapper,
    "OneGraphTestT2IAdapter": TestT2IAdapter,
    "OneGraphTestGligen": TestGligen,
}
