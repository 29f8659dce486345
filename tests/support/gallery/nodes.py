"""What templates put around a model: shifts of noise, guidance, guiders, and what they give a text besides."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from ..scenes.sampling import Sampling, guided, node, result_of
from .family import Conds


def aura(shift: float = 3.0) -> Any:
    return node("nodes_model_advanced", "ModelSamplingAuraFlow", shift=shift)


def sd3(shift: float = 5.0) -> Any:
    return node("nodes_model_advanced", "ModelSamplingSD3", shift=shift)


flux_shift = node(
    "nodes_model_advanced", "ModelSamplingFlux", max_shift=1.15, base_shift=0.5, width=1024, height=1024
)  # fmt: skip
cfg_norm = node("nodes_cfg", "CFGNorm", strength=1.0)
differential = node("nodes_differential_diffusion", "DifferentialDiffusion")


cfg_guider = guided("CFGGuider", lambda one: {**one.texts, "cfg": one.cfg})
dual_cfg_guider = guided("DualCFGGuider", lambda one: {
    "cond1": one.texts["positive"], "cond2": one.texts["negative"], "negative": one.texts["negative"],
    "cfg_conds": one.cfg, "cfg_cond2_negative": 2.0, "style": "regular",
})  # fmt: skip


def ar_video(sampling: Sampling) -> None:
    """The sampler of causal models: block by block of frames."""
    sampling.sampler = result_of("nodes_ar_video", "SamplerARVideo", num_frame_per_block=1)


def sparse_attention(sampling: Sampling) -> None:
    """What "Model Sparse Attention" does to a MODEL where no kernel serves a call: a function around all attention,
    which is put on top again before each step, and one around each block. Both pass everything on."""
    from comfy.patcher_extension import CallbacksMP

    seen: list[Any] = []

    def install(options: dict[str, Any]) -> None:
        previous = options.get("optimized_attention_override")
        if previous is not None and previous in seen:
            return

        def override(func: Any, *args: Any, **kwargs: Any) -> Any:
            return func(*args, **kwargs) if previous is None else previous(func, *args, **kwargs)

        seen.append(override)
        options["optimized_attention_override"] = override

    sampling.model = model = sampling.model.clone()
    install(model.model_options["transformer_options"])
    model.add_callback_with_key(
        CallbacksMP.ON_PREPARE_STATE, "sparse", lambda patcher, step, options: install(options["transformer_options"])
    )
    for number in range(len(model.model.diffusion_model.blocks)):
        around = lambda args, extra: extra["original_block"](args)  # noqa: E731
        model.set_model_patch_replace(around, "dit", "double_block", number)


# Conditioning ---------------------------------------------------------------------------------------------------


def drawn(generator: torch.Generator, *sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, generator=generator)


def both(*parts: Conds) -> Conds:
    """All that several give."""

    def made(generator: torch.Generator, sizes: Sequence[int], length: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for part in parts:
            values |= part(generator, sizes, length)
        return values

    return made


def fixed(**values: Any) -> Conds:
    return lambda generator, sizes, length: dict(values)


def pooled(width: int) -> Conds:
    return lambda generator, sizes, length: {"pooled_output": drawn(generator, 1, width)}


def text_mask(generator: torch.Generator, sizes: Sequence[int], length: int) -> dict[str, Any]:
    return {"attention_mask": torch.ones(1, length, dtype=torch.long)}


def references(count: int = 1, method: str = "", frames: int | None = None) -> Conds:
    """Reference latents, the second one of another size. `frames`: of theirs, where not the latent's own."""

    def made(generator: torch.Generator, sizes: Sequence[int], length: int) -> dict[str, Any]:
        channels, *inner, height, width = sizes[1:]
        inner = inner if frames is None else [frames]
        shapes = [(1, channels, *inner, height + 4 * number, width) for number in range(count)]
        values: dict[str, Any] = {"reference_latents": [drawn(generator, *shape) for shape in shapes]}
        return values | ({"reference_latents_method": method} if method else {})

    return made


def concat(channels: int, masked: bool = False) -> Conds:
    """A latent of the same size that is joined to what is sampled, with its mask where it has one."""

    def made(generator: torch.Generator, sizes: Sequence[int], length: int) -> dict[str, Any]:
        values = {"concat_latent_image": drawn(generator, 1, channels, *sizes[2:])}
        return values | ({"concat_mask": torch.ones(1, 1, *sizes[2:])} if masked else {})

    return made


def clip_vision(tokens: int = 257, width: int = 1280, name: str = "clip_vision_output") -> Conds:
    """What CLIP sees in a picture, or in two."""

    def made(generator: torch.Generator, sizes: Sequence[int], length: int) -> dict[str, Any]:
        hidden = drawn(generator, 1, tokens, width)
        return {name: SimpleNamespace(penultimate_hidden_states=hidden, last_hidden_state=hidden)}

    return made
