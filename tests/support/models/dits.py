"""Small diffusion transformers of ComfyUI's own classes, with seeded weights, and their sampling."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

WIDTH = 48  # of text features
Conds = Callable[[torch.Generator, Sequence[int]], dict[str, Any]]  # from the latent's batch, height and width


def _none(generator: torch.Generator, sizes: Sequence[int]) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Dit:
    """A family.

    Attributes:
        config: name of the host's class for such models.
        unet: what the diffusion model is made with.
        latent: channels, and frames where there are such.
        audio: channels and sides of a second latent.
        conds: what a prompt's conditioning has besides the text.
        beside: shapes of the file's weights that the model has besides its diffusion model, by their names.
    """

    config: str
    unet: Mapping[str, Any]
    latent: tuple[int, ...] = (16,)
    audio: tuple[int, ...] = ()
    width: int = WIDTH
    conds: Conds = _none
    after: Callable[[Any], None] = field(default=lambda module: None)
    beside: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def _tensor(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator)


def _pooled(width: int) -> Conds:
    return lambda generator, sizes: {"pooled_output": _tensor(generator, 1, width), "guidance": 3.5}


def _references(count: int, channels: int, *frames: int, method: str = "", pooled: int = 0) -> Conds:
    def made(generator: torch.Generator, sizes: Sequence[int]) -> dict[str, Any]:
        _, height, width = sizes
        shapes = [(1, channels, *frames, height + 4 * n, width - 2 * n) for n in range(count)]
        found: dict[str, Any] = {"reference_latents": [_tensor(generator, *shape) for shape in shapes]}
        found |= {"reference_latents_method": method} if method else {}
        return found | (_pooled(pooled)(generator, sizes) if pooled else {})

    return made


def _clip_vision(generator: torch.Generator, sizes: Sequence[int]) -> dict[str, Any]:
    """What CLIP sees in a picture, as Wan's first frames have it besides the text."""
    return {"clip_vision_output": SimpleNamespace(penultimate_hidden_states=_tensor(generator, 1, 257, 1280))}


def _first_frame(generator: torch.Generator, sizes: Sequence[int]) -> dict[str, Any]:
    """MiniMax's first frame, whose tokens have a timestep of their own."""
    frame = {"resolved_frame_index": 0, "latent": _tensor(generator, 1, 24, 1, *sizes[1:])}
    return {"minimax_keyframes": [frame], "minimax_frame_count": 9}


def _without_adapter(module: Any) -> None:
    module.llm_adapter = None  # blocks of the text encoder's side, which run once for each prompt


def _frequencies(module: Any) -> None:
    module.rope.inv_freq.copy_(1.0 / 10000 ** (torch.arange(16) / 16))


_FLUX = {
    "image_model": "flux", "in_channels": 16, "out_channels": 16, "vec_in_dim": 24, "context_in_dim": WIDTH,
    "hidden_size": 128, "mlp_ratio": 4.0, "num_heads": 4, "depth": 2, "depth_single_blocks": 3,
    "axes_dim": [8, 12, 12], "theta": 10000, "patch_size": 2, "qkv_bias": True, "guidance_embed": True,
    "txt_ids_dims": [],
}  # fmt: skip
_QWEN = {
    "image_model": "qwen_image", "patch_size": 2, "in_channels": 64, "out_channels": 16, "num_layers": 3,
    "attention_head_dim": 32, "num_attention_heads": 4, "joint_attention_dim": WIDTH, "axes_dims_rope": (8, 12, 12),
}  # fmt: skip
_WAN = {
    "image_model": "wan2.1", "model_type": "t2v", "patch_size": (1, 2, 2), "in_dim": 16, "dim": 128, "ffn_dim": 256,
    "freq_dim": 64, "text_dim": WIDTH, "out_dim": 16, "num_heads": 4, "num_layers": 3,
}  # fmt: skip

_MINIMAX = {
    "image_model": "minimax_h3", "hidden_size": 128, "num_layers": 3, "token_refiner_num_layers": 2,
    "num_attention_heads": 2, "attention_head_dim": 128, "ffn_hidden_size": 256, "text_dim": WIDTH,
    "timestep_input_dim": 32, "time_embed_hidden_size": 64, "time_embed_dim": 64,
}  # fmt: skip
_EMBEDDER = {"target": "torch.nn.Linear", "params": {"in_features": WIDTH, "out_features": 256}}

DITS: dict[str, Dit] = {
    "flux": Dit("Flux", _FLUX, conds=_pooled(24)),
    "flux schnell": Dit("FluxSchnell", {**_FLUX, "guidance_embed": False}, conds=_pooled(24)),
    "flux kontext": Dit("Flux", _FLUX, conds=_references(1, 16, pooled=24)),
    "flux fill": Dit("FluxInpaint", {**_FLUX, "in_channels": 96}, conds=_pooled(24)),
    "flux 2": Dit(
        "Flux2",
        {**_FLUX, "image_model": "flux2", "in_channels": 128, "out_channels": 128, "vec_in_dim": None, "mlp_ratio": 3.0,
         "axes_dim": [8, 8, 8, 8], "theta": 2000, "patch_size": 1, "qkv_bias": False, "txt_ids_dims": [3],
         "global_modulation": True, "mlp_silu_act": True, "ops_bias": False, "default_ref_method": "index",
         "ref_index_scale": 10.0},
        latent=(128,),
    ),
    "z-image": Dit(
        "ZImage",
        {"image_model": "lumina2", "patch_size": 2, "in_channels": 16, "dim": 256, "n_layers": 3, "n_refiner_layers": 2,
         "n_heads": 4, "n_kv_heads": 4, "qk_norm": True, "cap_feat_dim": WIDTH, "axes_dims": [16, 24, 24],
         "axes_lens": [64, 64, 64], "rope_theta": 256.0, "ffn_dim_multiplier": 8 / 3, "z_image_modulation": True,
         "time_scale": 1000.0, "pad_tokens_multiple": 32},
    ),
    "qwen-image": Dit("QwenImage", _QWEN, (16, 1)),
    "qwen-image-edit": Dit("QwenImage", _QWEN, (16, 1), conds=_references(1, 16, 1)),
    "qwen-image-edit, two": Dit("QwenImage", _QWEN, (16, 1), conds=_references(2, 16, 1)),
    "qwen-image-edit 2511": Dit("QwenImage", _QWEN, (16, 1), conds=_references(1, 16, 1, method="index_timestep_zero")),
    "wan 2.1 t2v": Dit("WAN21_T2V", _WAN, (16, 3)),
    "wan 2.1 i2v": Dit("WAN21_I2V", {**_WAN, "model_type": "i2v", "in_dim": 36}, (16, 3)),
    "wan 2.1 i2v, clip vision": Dit(
        "WAN21_I2V", {**_WAN, "model_type": "i2v", "in_dim": 36}, (16, 3), conds=_clip_vision
    ),
    "wan 2.2 5B": Dit("WAN22_T2V", {**_WAN, "in_dim": 48, "out_dim": 48}, (48, 3)),
    "krea 2": Dit(
        "Krea2",
        {"image_model": "krea2", "features": 128, "tdim": 64, "txtdim": 32, "heads": 4, "kvheads": 2, "multiplier": 2,
         "layers": 3, "patch": 2, "channels": 16, "txtlayers": 3, "txtheads": 2, "txtkvheads": 2,
         "default_ref_method": "index"},
        (16, 1), width=96,
    ),
    "minimax h3": Dit("MiniMaxH3", _MINIMAX, (24, 3), (32, 2, 13), after=_frequencies),
    "minimax h3 i2v": Dit("MiniMaxH3", _MINIMAX, (24, 3), (32, 2, 13), conds=_first_frame, after=_frequencies),
    "ltx 2": Dit(
        "LTXAV",
        {"image_model": "ltxav", "in_channels": 128, "audio_in_channels": 128, "cross_attention_dim": 128,
         "audio_cross_attention_dim": 64, "attention_head_dim": 32, "audio_attention_head_dim": 16,
         "num_attention_heads": 4, "audio_num_attention_heads": 4, "caption_channels": WIDTH, "num_layers": 3,
         "connector_num_layers": 1, "connector_num_attention_heads": 2, "connector_attention_head_dim": WIDTH // 2},
        (128, 3), (8, 9, 16), width=2 * WIDTH,
    ),
    "anima": Dit(
        "Anima",
        {"image_model": "anima", "max_img_h": 240, "max_img_w": 240, "max_frames": 128, "in_channels": 16,
         "out_channels": 16, "patch_spatial": 2, "patch_temporal": 1, "concat_padding_mask": True,
         "model_channels": 128, "num_blocks": 3, "num_heads": 4, "crossattn_emb_channels": 1024,
         "pos_emb_cls": "rope3d", "pos_emb_learnable": True, "pos_emb_interpolation": "crop", "use_adaln_lora": True,
         "adaln_lora_dim": 32, "rope_h_extrapolation_ratio": 4.0, "rope_w_extrapolation_ratio": 4.0,
         "rope_enable_fps_modulation": False},
        (16, 1), width=1024, after=_without_adapter,
    ),
    "chroma": Dit(
        "Chroma",
        {**_FLUX, "image_model": "chroma", "in_channels": 64, "out_channels": 64, "in_dim": 64, "out_dim": 128,
         "hidden_dim": 64, "n_layers": 2, "vec_in_dim": None, "guidance_embed": None},
    ),
    "hunyuan video 1.5": Dit(
        "HunyuanVideo15",
        {"image_model": "hunyuan_video", "in_channels": 65, "out_channels": 32, "vec_in_dim": None,
         "context_in_dim": WIDTH, "hidden_size": 128, "mlp_ratio": 4.0, "num_heads": 4, "depth": 3,
         "depth_single_blocks": 0, "axes_dim": [8, 12, 12], "theta": 256, "patch_size": [1, 1, 1], "qkv_bias": True,
         "guidance_embed": False, "byt5": True, "meanflow": False, "use_cond_type_embedding": True,
         "vision_in_dim": 40, "meanflow_sum": True},
        (32, 3), conds=_pooled(24),
    ),
    "sd 3.5": Dit(
        "SD3",
        {"input_size": None, "patch_size": 2, "in_channels": 16, "depth": 4, "adm_in_channels": 24, "qk_norm": "rms",
         "pos_embed_max_size": 64, "num_patches": 4096, "x_block_self_attn_layers": [0, 1],
         "context_embedder_config": _EMBEDDER},
        conds=_pooled(24),
    ),
}  # fmt: skip


control: Any = None  # a ControlNet that steers every sampling, while it is set


def seeded(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Give a module weights as trained ones are: matrices of 0.7/sqrt(fan in), norms near 1, biases near 0."""
    weights = [*module.named_parameters(), *module.named_buffers()]
    device = weights[0][1].device
    generator = torch.Generator(device).manual_seed(seed)
    for name, one in weights:
        if not one.numel() or not one.is_floating_point() or "inv_freq" in name or "dim_" in name:
            continue
        if name == "pos_embedder.seq":
            continue
        drawn = torch.randn(one.shape, generator=generator, device=device)
        if one.ndim > 1:
            one.data.copy_(drawn * 0.7 / math.sqrt(one[0].numel()))
        else:
            one.data.copy_(0.05 * drawn + (1.0 if name.endswith(("weight", "scale")) else 0.0))
    return module


def load(
    of: str | Dit, seed: int = 0, dtype: torch.dtype = torch.float32, device: torch.device | None = None, **unet: Any
) -> Any:
    """A MODEL of a family, or of one by its name; `unet` overrides its sizes."""
    import comfy.model_management
    import comfy.model_patcher
    import comfy.supported_models

    dit, cpu = DITS[of] if isinstance(of, str) else of, torch.device("cpu")
    chosen = {key: value for key, value in {**dit.unet, **unet}.items() if (key, value) != ("guidance_embed", None)}
    config = getattr(comfy.supported_models, dit.config)({**chosen, "dtype": dtype})
    config.unet_config.update(chosen)  # where the class has sizes of its own
    generator = torch.Generator().manual_seed(seed)
    beside = {name: _tensor(generator, *shape) * 0.1 for name, shape in dit.beside.items()}
    model = config.get_model(beside, "", device or cpu)
    dit.after(model.diffusion_model)
    seeded(model.diffusion_model, seed)
    load_device = comfy.model_management.get_torch_device()
    return comfy.model_patcher.ModelPatcher(model, load_device=load_device, offload_device=device or cpu)


def sample(
    model: Any, name: str, height: int = 16, width: int = 24, *, tokens: int = 9, cfg: float = 1.0, **given: Any
) -> torch.Tensor:
    """Latents from ComfyUI's own sampling; sizes in their units. Several latents come one after the other."""
    from ..scenes.sampling import Sampling

    lengths = (tokens, tokens + 4)
    return Sampling(name, model, height=height, width=width, tokens=lengths, cfg=cfg, **given).run()
