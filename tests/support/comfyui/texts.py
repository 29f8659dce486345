"""Small text models of ComfyUI's own classes with seeded weights, as ComfyUI's own CLIP object holds them."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

VOCABULARY = 512
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@dataclass(frozen=True)
class SmallText:
    """A small text model.

    Attributes:
        cls: `module:name` of its class, or what makes it.
        config: what it is made with.
        windows: of its blocks, where attention does not reach back to all tokens; None: those of its class.
        generates, encodes: whether the host makes texts with it, and encodes prompts.
        tokenizer: of the host's, `module:name`, and the name of its tokens; empty: tokens are numbers, see `tokens`.
        loops: how many of its blocks compute a prompt by a loop, which no graph does.
        wrapper: the host's class around it, if it is no common one.
    """

    cls: str | Callable[..., Any]
    config: Mapping[str, Any] = field(default_factory=lambda: _SIZES)
    windows: Sequence[Any] = ()
    generates: bool = True
    tokenizer: tuple[str, str] = ("", "text")
    wrapper: str = ""
    loops: int = 0
    encodes: bool = True


_T5 = {
    "num_layers": 3, "d_model": 64, "d_kv": 16, "num_heads": 4, "d_ff": 96, "dense_act_fn": "gelu_pytorch_tanh",
    "is_gated_act": True, "vocab_size": VOCABULARY,
}  # fmt: skip
_CLIP = {
    "num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96,
    "hidden_act": "quick_gelu", "eos_token_id": 511, "max_position_embeddings": 77, "vocab_size": VOCABULARY,
}  # fmt: skip


def _gemma4(config: dict[str, Any], dtype: Any, device: Any, operations: Any) -> Any:
    from comfy.text_encoders import gemma4

    vision = {**gemma4.GEMMA4_VISION_CONFIG, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
    small = {
        "head_dim": 16, "global_head_dim": 32, "sliding_attention": [60, 60, False], "audio_config": None,
        "vision_config": {**vision, "num_attention_heads": 4, "head_dim": 16},
    }  # fmt: skip

    def sizes(**config: Any) -> Any:  # of its configuration, some stand on the class alone
        made = gemma4.Gemma4Config(**config)
        vars(made).update(small)
        return made

    about = {"hidden_size": config["hidden_size"], "audio_config": None}
    maker = type("Sizes", (), {**about, "__new__": lambda cls, **given: sizes(**given)})
    return gemma4._make_variant(maker)(config, dtype, device, operations)


_QWEN35 = {
    **_SIZES, "num_hidden_layers": 4, "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "mrope_section": [2, 1, 1],
    "layer_types": ["linear_attention", "full_attention"] * 2,
}  # fmt: skip
_GEMMA4 = {**_SIZES, "num_hidden_layers": 6, "num_kv_shared_layers": 3, "hidden_size_per_layer_input": 8}
_LLAMA = "comfy.text_encoders.llama"
TEXTS = {
    "qwen 3": SmallText(f"{_LLAMA}:Qwen3_4B"),
    "qwen 3 with words": SmallText(
        f"{_LLAMA}:Qwen3_4B",
        {**_SIZES, "vocab_size": 151936},
        tokenizer=("comfy.text_encoders.z_image:ZImageTokenizer", "qwen3_4b"),
    ),
    "ministral 3": SmallText(f"{_LLAMA}:Ministral3_3B"),
    "gemma 2": SmallText(f"{_LLAMA}:Gemma2_2B"),
    "gemma 3": SmallText(f"{_LLAMA}:Gemma3_4B", windows=(60, False, 60)),
    "gemma 4": SmallText(
        _gemma4,
        _GEMMA4,
        windows=(60, 60, False) * 2,
        wrapper="comfy.text_encoders.gemma4:Gemma4Model",
        encodes=False,
    ),
    "qwen 3.5": SmallText("comfy.text_encoders.qwen35:Qwen35", _QWEN35, loops=2),
    "qwen 2.5": SmallText(f"{_LLAMA}:Qwen25_3B", generates=False),
    "t5": SmallText("comfy.text_encoders.t5:T5", {**_T5, "model_type": "t5"}, generates=False),
    "umt5": SmallText("comfy.text_encoders.t5:T5", {**_T5, "model_type": "umt5"}, generates=False),
    "clip": SmallText("comfy.clip_model:CLIPTextModel", _CLIP, generates=False),
}


def load(name: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """ComfyUI's CLIP with a small model."""
    return loaded(TEXTS[name], dtype, seed)


def loaded(small: SmallText, dtype: torch.dtype, seed: int = 0) -> Any:
    """ComfyUI's CLIP with a model."""
    import comfy.sd
    from comfy import sd1_clip

    tokenizer, key = small.tokenizer

    def transformer(config: dict[str, Any], dtype: Any, device: Any, operations: Any) -> Any:
        cls = _class(small.cls) if isinstance(small.cls, str) else small.cls
        made = cls({**small.config}, dtype, device, operations)
        for layer, window in zip(made.model.layers if small.windows else (), small.windows, strict=True):
            layer.sliding_attention = window
        return made

    model = functools.partial(
        sd1_clip.SDClipModel, textmodel_json_config={}, model_class=transformer, special_tokens={"pad": 0},
        layer="hidden", layer_idx=-2, layer_norm_hidden_state=False, enable_attention_masks=True,
        return_attention_masks=True,
    )  # fmt: skip
    if small.wrapper:
        model = type("Small", (_class(small.wrapper),), {"model_class": staticmethod(transformer)})
    clip = functools.partial(sd1_clip.SD1ClipModel, name=key, clip_model=model)
    words = _class(tokenizer) if tokenizer else lambda **kwargs: SimpleNamespace()
    target = SimpleNamespace(params={}, clip=clip, tokenizer=words)
    made = comfy.sd.CLIP(target, model_options={"dtype": dtype})
    device = made.patcher.load_device
    generator = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for weight in made.cond_stage_model.parameters():
            drawn = torch.randn(weight.shape, generator=generator, device=device)
            weight.copy_(drawn * weight.shape[-1] ** -0.5 if weight.ndim > 1 else 1 + 0.1 * drawn)
        for name, buffer in made.cond_stage_model.named_buffers():
            if name.endswith(".layer_scalar"):
                buffer.fill_(0.9)
    return made


def _class(name: str) -> Any:
    module, _, cls = name.partition(":")
    return getattr(importlib.import_module(module), cls)


def tokens(count: int, seed: int = 1, chunks: int = 1) -> Any:
    """A prompt as ComfyUI's tokenizers give it, in chunks of so many tokens."""
    drawn = torch.randint(1, VOCABULARY - 1, (chunks, count), generator=torch.Generator().manual_seed(seed))
    return {"text": [[(one, 1.0) for one in chunk] for chunk in drawn.tolist()]}
