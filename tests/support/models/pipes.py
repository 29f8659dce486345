"""Small diffusers pipelines with random weights, built here: no hub, no network."""

from __future__ import annotations

import gc
import inspect
import os
from pathlib import Path
from typing import Any

import torch

os.environ["HF_HUB_OFFLINE"] = "1"

SIDE = 64  # pixels of the usual image
# Of a UNet that attends in its middle alone, which compiles in half the time.
MIDDLE = {"down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2}


def unet(seed: int = 0, *, xl: bool = False, ids: int = 6, **config: Any) -> Any:
    """A UNet of two levels; with `xl` it takes a pooled text embedding and so many sizes besides."""
    from diffusers import UNet2DConditionModel

    torch.manual_seed(seed)
    extra: dict[str, Any] = {}
    blocks = {
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("UpBlock2D", "UpBlock2D"),
    }
    if xl:
        extra = {
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 8,
            "projection_class_embeddings_input_dim": 32 + ids * 8,
            "transformer_layers_per_block": 1,
            "use_linear_projection": True,
        }
    made = UNet2DConditionModel(
        block_out_channels=(32, 64),
        layers_per_block=1,
        sample_size=32,
        in_channels=4,
        out_channels=4,
        cross_attention_dim=64 if xl else 32,
        attention_head_dim=8,
        norm_num_groups=16,
        **{**blocks, **extra, **config},
    )
    return made.eval()


def vae(seed: int = 0, **config: Any) -> Any:
    """An AutoencoderKL with 4 latent channels, an eighth of the image's size."""
    from diffusers import AutoencoderKL

    torch.manual_seed(seed)
    made = AutoencoderKL(
        block_out_channels=(32, 32, 32, 64),
        in_channels=3,
        out_channels=3,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        latent_channels=4,
        sample_size=SIDE,
        **config,
    )
    return made.eval()


def tiny_vae(seed: int = 0) -> Any:
    """An AutoencoderTiny of the same sizes."""
    from diffusers import AutoencoderTiny

    torch.manual_seed(seed)
    blocks = {"encoder_block_out_channels": (16,) * 4, "decoder_block_out_channels": (16,) * 4}
    counts = {"num_encoder_blocks": (1,) * 4, "num_decoder_blocks": (1,) * 4}
    return AutoencoderTiny(**blocks, **counts).eval()


def resident_bytes() -> int:
    """Bytes of this process that are in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def text_encoder(seed: int = 0, *, projected: bool = False) -> Any:
    """A CLIP text model of width 32."""
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    torch.manual_seed(seed)
    config = CLIPTextConfig(
        bos_token_id=0,
        eos_token_id=2,
        hidden_size=32,
        intermediate_size=37,
        num_attention_heads=4,
        num_hidden_layers=2,
        pad_token_id=1,
        vocab_size=1000,
        projection_dim=32,
    )
    return (CLIPTextModelWithProjection if projected else CLIPTextModel)(config).eval()


def scheduler() -> Any:
    from diffusers import DDIMScheduler

    return DDIMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        clip_sample=False,
        set_alpha_to_one=False,
        steps_offset=1,
    )


def pipe_of(cls: Any, **parts: Any) -> Any:
    """A pipeline of these parts, without others that its class names and without a bar of its progress."""
    named = inspect.signature(cls.__init__).parameters.values()
    needed = [one.name for one in named if one.default is one.empty and one.name != "self"]
    pipe = cls(**{**dict.fromkeys(needed), **parts})
    pipe.set_progress_bar_config(disable=True)
    return pipe


def sd(seed: int = 0, **parts: Any) -> Any:
    """A StableDiffusionPipeline. It has no tokenizer: prompts are given as embeddings, see `embeddings`."""
    from diffusers import StableDiffusionPipeline

    given = {"unet": unet(seed), "vae": vae(seed), "scheduler": scheduler(), **parts}
    return pipe_of(StableDiffusionPipeline, **given, requires_safety_checker=False)


def sdxl(seed: int = 0, **parts: Any) -> Any:
    """A StableDiffusionXLPipeline without tokenizers and text encoders but the second, which gives the pooled width."""
    from diffusers import StableDiffusionXLPipeline

    given = {"unet": unet(seed, xl=True), "vae": vae(seed), "scheduler": scheduler(), **parts}
    pooled = text_encoder(seed, projected=True)
    return pipe_of(StableDiffusionXLPipeline, **given, text_encoder_2=pooled, add_watermarker=False)


def video(seed: int = 0) -> Any:
    """A StableVideoDiffusionPipeline, whose VAE has the encoder of `vae` and a decoder of its own."""
    from diffusers import (
        AutoencoderKLTemporalDecoder,
        EulerDiscreteScheduler,
        StableVideoDiffusionPipeline,
        UNetSpatioTemporalConditionModel,
    )
    from transformers import CLIPImageProcessor, CLIPVisionConfig, CLIPVisionModelWithProjection

    torch.manual_seed(seed)
    made = UNetSpatioTemporalConditionModel(
        block_out_channels=(32, 64),
        layers_per_block=1,
        sample_size=8,
        in_channels=8,
        out_channels=4,
        down_block_types=("DownBlockSpatioTemporal",) * 2,
        up_block_types=("UpBlockSpatioTemporal",) * 2,
        cross_attention_dim=32,
        num_attention_heads=4,
        projection_class_embeddings_input_dim=96,
        addition_time_embed_dim=32,
    )
    decoding = AutoencoderKLTemporalDecoder(
        block_out_channels=(32, 32, 32, 64), down_block_types=("DownEncoderBlock2D",) * 4, latent_channels=4
    )
    vision = CLIPVisionConfig(
        hidden_size=32,
        projection_dim=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        image_size=224,
        intermediate_size=37,
        patch_size=32,
    )
    return pipe_of(
        StableVideoDiffusionPipeline,
        unet=made.eval(),
        vae=decoding.eval(),
        image_encoder=CLIPVisionModelWithProjection(vision).eval(),
        feature_extractor=CLIPImageProcessor(crop_size=224, size=224),
        scheduler=EulerDiscreteScheduler(prediction_type="v_prediction", timestep_type="continuous", sigma_max=80),
    )


def flux(seed: int = 0, **config: Any) -> Any:
    """A FluxPipeline of two double and two single blocks, with the VAE of `vae`. Prompts are given as embeddings."""
    from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel

    decoding = vae(seed, shift_factor=0.0)
    torch.manual_seed(seed)
    blocks = {"num_layers": 2, "num_single_layers": 2, "attention_head_dim": 16, "num_attention_heads": 2}
    widths = {"in_channels": 16, "joint_attention_dim": 32, "pooled_projection_dim": 32, "axes_dims_rope": (4, 4, 8)}
    made = FluxTransformer2DModel(**{**blocks, **widths, "guidance_embeds": True, **config})
    steps = FlowMatchEulerDiscreteScheduler()
    return pipe_of(FluxPipeline, scheduler=steps, vae=decoding, transformer=made.eval())


def sd3(seed: int = 0, **config: Any) -> Any:
    """A StableDiffusion3Pipeline of three blocks, with the VAE of `vae`. Prompts are given as embeddings."""
    from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, StableDiffusion3Pipeline

    decoding = vae(seed, shift_factor=0.0)
    torch.manual_seed(seed)
    blocks = {"num_layers": 3, "attention_head_dim": 8, "num_attention_heads": 4, "caption_projection_dim": 32}
    widths = {"in_channels": 4, "out_channels": 4, "joint_attention_dim": 32, "pooled_projection_dim": 32}
    sizes = {"patch_size": 2, "sample_size": 16, "pos_embed_max_size": 24}
    made = SD3Transformer2DModel(**{**blocks, **widths, **sizes, **config})
    steps = FlowMatchEulerDiscreteScheduler()
    return pipe_of(StableDiffusion3Pipeline, scheduler=steps, vae=decoding, transformer=made.eval())


def controlnet(pipe: Any, count: int = 1) -> Any:
    """A pipeline with the parts of an SD or SDXL one and ControlNets for its UNet."""
    from diffusers import ControlNetModel, StableDiffusionControlNetPipeline, StableDiffusionXLControlNetPipeline

    made = []
    for seed in range(count):
        torch.manual_seed(seed)
        steering = ControlNetModel.from_unet(pipe.unet, conditioning_channels=3).eval()
        for block in (*steering.controlnet_down_blocks, steering.controlnet_mid_block):
            torch.nn.init.normal_(block.weight)  # made of zeros, which change nothing
        made.append(steering)
    parts = {name: part for name, part in pipe.components.items() if name not in ("feature_extractor", "image_encoder")}
    steering = made[0] if count == 1 else made
    if pipe.unet.config.addition_embed_type == "text_time":
        return pipe_of(StableDiffusionXLControlNetPipeline, **parts, controlnet=steering, add_watermarker=False)
    return pipe_of(StableDiffusionControlNetPipeline, **parts, controlnet=steering, requires_safety_checker=False)


def embeddings(pipe: Any, seed: int = 0, tokens: int = 77) -> dict[str, torch.Tensor]:
    """A prompt and its negative as embeddings."""
    generator = torch.Generator().manual_seed(seed)
    model = pipe.transformer if hasattr(pipe, "transformer") else pipe.unet
    config = model.config

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(model.dtype)

    if hasattr(pipe, "transformer"):
        prefixes = ("", "negative_") if hasattr(pipe, "text_encoder_3") else ("",)
        texts = {f"{prefix}prompt_embeds": draw(1, tokens, config.joint_attention_dim) for prefix in prefixes}
        return texts | {f"{prefix}pooled_prompt_embeds": draw(1, config.pooled_projection_dim) for prefix in prefixes}
    made = {name: draw(1, tokens, config.cross_attention_dim) for name in ("prompt_embeds", "negative_prompt_embeds")}
    if config.addition_embed_type == "text_time":
        pooled = pipe.text_encoder_2.config.projection_dim
        made |= {name: draw(1, pooled) for name in ("pooled_prompt_embeds", "negative_pooled_prompt_embeds")}
    return made


def image(pipe: Any, seed: int = 0, *, height: int = SIDE, width: int = SIDE, steps: int = 2, **given: Any) -> Any:
    """The image for a seed as floats in 0..1: [H,W,3]."""
    call = {**embeddings(pipe, tokens=given.pop("tokens", 77)), "num_inference_steps": steps, "output_type": "np"}
    if "image" not in given or hasattr(pipe, "controlnet"):
        call |= {"height": height, "width": width}
    return pipe(**{**call, **given}, generator=torch.Generator().manual_seed(seed)).images[0]


def distance(a: Any, b: Any) -> float:
    """The largest difference of two images, in 255ths."""
    return float(abs(a - b).max()) * 255


def tokenizer() -> Any:
    """A tokenizer of letters, made here."""
    from transformers import CLIPTokenizer

    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(vocab={word: number for number, word in enumerate(words)}, merges=[], model_max_length=77)


def model_folder(folder: Path) -> Path:
    """A model on the disk, as `save_pretrained` writes it, that takes prompts as text."""
    from diffusers import StableDiffusionPipeline

    texts = {"text_encoder": text_encoder(), "tokenizer": tokenizer()}
    parts = {"unet": unet(), "vae": vae(), "scheduler": scheduler(), **texts}
    pipe_of(StableDiffusionPipeline, **parts, requires_safety_checker=False).save_pretrained(folder)
    return folder
