"""What is around the model: guidance, noise schedules, samplers, step caches, context windows."""

from __future__ import annotations

from typing import Any

import torch

from ..models import dits
from ..scenes.sampling import Sampling, guided, node, patched, settings, several

WINDOWS = {
    "context_schedule": "standard_static", "context_stride": 1, "closed_loop": False, "fuse_method": "pyramid",
    "freenoise": True,
}  # fmt: skip


_CACHE = {"reuse_threshold": 0.9, "start_percent": 0.1, "end_percent": 0.95, "verbose": False}
easy_cache = several(node("nodes_easycache", "EasyCacheNode", **_CACHE), settings(steps=6))
lazy_cache = several(node("nodes_easycache", "LazyCacheNode", **_CACHE), settings(steps=6))
context_windows = several(  # of three latent frames, of seven
    node("nodes_context_windows", "WanContextWindowsManualNode", context_length=9, context_overlap=4, **WINDOWS),
    settings(frames=7),
)
windows_of_a_batch = several(
    node("nodes_context_windows", "ContextWindowsManualNode", context_length=2, context_overlap=1, dim=0, **WINDOWS),
    settings(batch=4),
)


def perp_neg(sampling: Sampling) -> None:
    """Three predictions for each step, the empty text's among them."""
    empty = sampling.text(7, 5)
    node("nodes_perpneg", "PerpNeg", empty_conditioning=empty, neg_scale=1.0)(sampling)


perp_neg_guider = guided(
    "PerpNegGuider", lambda one: {**one.texts, "empty_conditioning": one.text(7, 5), "cfg": one.cfg, "neg_scale": 1.0},
    "nodes_perpneg",
)  # fmt: skip
basic_guider = guided("BasicGuider", lambda one: {"conditioning": one.texts["positive"]})
dual_guider = guided("DualCFGGuider", lambda one: {
    "cond1": one.texts["positive"], "cond2": one.text(6, 14), "negative": one.texts["negative"], "cfg_conds": 3.0,
    "cfg_cond2_negative": 2.0, "style": "regular",
})  # fmt: skip


def perturbed_attention(sampling: Sampling) -> None:
    """Further predictions whose attention passes its values through, as packs do for diffusion transformers."""
    import comfy.samplers

    def values(function: Any, q: Any, k: Any, v: Any, heads: int, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("skip_reshape"):
            return v
        flat = v.transpose(1, 2).reshape(v.shape[0], -1, v.shape[1] * v.shape[3])
        return v if kwargs.get("skip_output_reshape") else flat

    def guided(args: dict[str, Any]) -> Any:
        options = {**args["model_options"]}
        options["transformer_options"] = {
            **options.get("transformer_options", {}),
            "optimized_attention_override": values,
        }
        (found,) = comfy.samplers.calc_cond_batch(args["model"], [args["cond"]], args["input"], args["sigma"], options)
        return args["denoised"] + (args["cond_denoised"] - found) * 2.0

    patched(lambda model: model.set_model_sampler_post_cfg_function(guided))(sampling)


def another_wrapper(sampling: Sampling) -> None:
    """A function of another pack around each call of the model."""

    def wrapper(apply_model: Any, given: dict[str, Any]) -> torch.Tensor:
        result: torch.Tensor = apply_model(given["input"], given["timestep"], **given["c"]) * 0.8
        return result

    patched(lambda model: model.set_model_unet_function_wrapper(wrapper))(sampling)


def diffusion_wrapper(sampling: Sampling) -> None:
    """A wrapper of another pack around the diffusion model's own forward."""
    from comfy.patcher_extension import WrappersMP

    def wrapper(executor: Any, *args: Any, **kwargs: Any) -> Any:
        found = executor(*args, **kwargs)
        return [one * 0.8 for one in found] if isinstance(found, list) else found * 0.8

    patched(lambda model: model.add_wrapper_with_key(WrappersMP.DIFFUSION_MODEL, "a pack", wrapper))(sampling)


def dual_model(sampling: Sampling) -> None:
    """One model for the positive text, another for the negative one, in turns."""
    sampling.second = dits.load(sampling.dit, seed=9)
    guided("DualModelGuider", lambda one: {"model_negative": one.second, **one.texts, "cfg": one.cfg})(sampling)
