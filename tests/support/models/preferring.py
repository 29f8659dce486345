"""A small diffusion transformer whose layers may prefer an attention function, as those of newer hosts do."""

from __future__ import annotations

from typing import Any

import torch
from comfy.ldm.modules import attention
from comfy.ldm.modules.attention import optimized_attention

HEADS = 2
calls: list[tuple[int, ...]] = []  # shapes of what `eightfold` was given


def eightfold(q: Any, k: Any, v: Any, heads: int, **kwargs: Any) -> Any:
    """Attention whose result no other has."""
    calls.append(tuple(q.shape))
    kwargs.pop("transformer_options", None)
    return attention.attention_pytorch(q, k, v, heads, **kwargs) * 8.0


class Block(torch.nn.Module):
    def __init__(self, width: int, operations: Any, **settings: Any) -> None:
        super().__init__()
        self.comfy_attention = attention.ComfyAttention()
        self.norm = operations.LayerNorm(width, elementwise_affine=False, **settings)
        self.qkv = operations.Linear(width, 3 * width, **settings)
        self.out = operations.Linear(width, width, **settings)
        self.wide = operations.Linear(width, 4 * width, **settings)
        self.narrow = operations.Linear(2 * width, width, **settings)

    def forward(self, x: Any, shift: Any, transformer_options: Any = {}) -> Any:  # noqa: B006
        q, k, v = self.qkv(self.norm(x) + shift).chunk(3, dim=-1)
        found = optimized_attention(
            q, k, v, HEADS, preferred_attention=self.comfy_attention, transformer_options=transformer_options
        )
        x = x + self.out(found) * shift.sigmoid()
        gate, wide = self.wide(self.norm(x) * (1 + shift.tanh())).chunk(2, dim=-1)
        return x + self.narrow(torch.nn.functional.silu(gate) * wide) * shift.cos()


class Model(torch.nn.Module):
    """Latents [batch, 4, height, width] -> the same."""

    def __init__(
        self, width: int = 32, depth: int = 3, dtype: Any = None, device: Any = None, operations: Any = None, **_: Any
    ) -> None:
        super().__init__()
        self.dtype = dtype
        settings = {"dtype": dtype, "device": device}
        self.enter = operations.Linear(4, width, **settings)
        self.blocks = torch.nn.ModuleList([Block(width, operations, **settings) for _ in range(depth)])
        self.leave = operations.Linear(width, 4, **settings)

    def forward(
        self,
        x: Any,
        timesteps: Any,
        context: Any = None,
        transformer_options: Any = {},  # noqa: B006
        **kwargs: Any,
    ) -> Any:
        batch, _, height, width = x.shape
        tokens = self.enter(x.flatten(2).transpose(1, 2))
        shift = timesteps[:, None, None].to(tokens) * context.mean(dim=(1, 2), keepdim=True)
        for block in self.blocks:
            tokens = block(tokens, shift, transformer_options)
        return self.leave(tokens).transpose(1, 2).reshape(batch, 4, height, width)


class Asking(Model):
    """Asks whoever samples it for memory, as Qwen-Image 2.1 does before it keeps keys and values of a prompt."""

    current_patcher: Any = None

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(width=48, **kwargs)  # graphs of its own

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        if self.current_patcher.get_free_memory(x.device) > 0:
            return super().forward(x, *args, **kwargs)
        raise RuntimeError("no memory is free")


def load(seed: int = 0, unet_model: type[Model] = Model) -> Any:
    """A MODEL of it."""
    import comfy.model_base
    import comfy.model_management
    import comfy.model_patcher
    import comfy.supported_models_base

    from . import dits

    config = comfy.supported_models_base.BASE({"dtype": torch.float32})
    cpu = torch.device("cpu")
    model = comfy.model_base.BaseModel(config, comfy.model_base.ModelType.FLOW, device=cpu, unet_model=unet_model)
    dits.seeded(model.diffusion_model, seed)
    device = comfy.model_management.get_torch_device()
    return comfy.model_patcher.ModelPatcher(model, load_device=device, offload_device=cpu)
