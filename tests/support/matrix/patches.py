"""Nodes that patch the model, or what is around it."""

from __future__ import annotations

from ..scenes.judge import eager, partly
from .case import BOTH, Case, flow, one, part

_INSIDE, _AROUND, _OPTIONS = "Patches inside the model", "Around the model", "Options, wrappers, torch.compile"
_FREE_U = part("FreeU_V2", b1=1.3, b2=1.4, s1=0.9, s2=0.2)
_PAG = part("PerturbedAttentionGuidance", scale=3.0)
_SHRINK = {
    "block_number": 2, "downscale_factor": 2.0, "start_percent": 0.0, "end_percent": 0.35,
    "downscale_after_skip": True, "downscale_method": "bicubic", "upscale_method": "bicubic",
}  # fmt: skip
_CACHE = {"reuse_threshold": 3.0, "start_percent": 0.0, "end_percent": 0.95, "verbose": False}
_WINDOWS = {
    "context_length": 2, "context_overlap": 1, "context_schedule": "standard_static", "context_stride": 1,
    "closed_loop": False, "fuse_method": "pyramid", "dim": 0, "freenoise": True, "cond_retain_index_list": "",
    "split_conds_to_windows": False, "latent_retain_index_list": "", "causal_window_fix": False,
}  # fmt: skip
_SD15 = {"family": "sd15"}
_LARGER = {**_SD15, "width": 192, "height": 192}
_STEPS, _STRONG = {"steps": 9}, {"cfg": 30.0}

CASES: tuple[Case, ...] = (
    one(_INSIDE, "FreeU", part("FreeU", b1=1.1, b2=1.2, s1=0.9, s2=0.2), node=1, **eager("patched")),
    one(_INSIDE, "FreeU V2, before the node", _FREE_U, node=1, **eager("patched")),
    one(_INSIDE, "FreeU V2, after the node", _FREE_U, **eager("patched")),
    one(_INSIDE, "perturbed attention guidance", _PAG, node=1, **partly("replaced")),
    one(_INSIDE, "self attention guidance", part("SelfAttentionGuidance", scale=0.5, blur_sigma=2.0), node=1,
        **eager("replaced")),
    one(_INSIDE, "HyperTile", part("HyperTile", tile_size=32, swap_size=2, max_depth=1, scale_depth=False), node=1,
        settings=_LARGER, **eager("patched")),
    one(_INSIDE, "token merging", part("TomePatchModel", ratio=0.75), node=1, settings=_LARGER, **eager("patched")),
    one(_INSIDE, "deep shrink", part("PatchModelAddDownscale", **_SHRINK), node=1, **eager("patched")),
    one(_INSIDE, "image adapter on cross attention", part("OneGraphTestImageAdapter", weight=0.8), node=1,
        **eager("replaced"), reports=("ComfyUI_TensorRT #10", "onediff #997")),
    one(_INSIDE, "image adapter after the node", part("OneGraphTestImageAdapter", weight=0.8), **eager("replaced"),
        reports=("onediff #997",)),
    one(_INSIDE, "GLIGEN", part("gligen", left=0.25, top=0.25, width=0.5, height=0.5), settings=_SD15,
        **eager("patched")),
    one(_INSIDE, "attention override", part("OneGraphTestAttentionOverride", factor=0.6), node=1,
        **eager("model_option")),
    one(_INSIDE, "forward replaced by another pack", part("forward_replaced", factor=0.8), node=1,
        **eager("replaced_part"), reports=("WaveSpeed #18",)),
    Case("FreeU V2 on and off again", _INSIDE, (flow(), flow(_FREE_U, node=1), flow()), **partly("patched"),
        reports=("TorchCompileModel: KeyError 'patches'",)),
    one(_AROUND, "self attention multiplied", part("UNetSelfAttentionMultiply", q=2.0, k=1.0, v=0.3, out=3.0), node=1,
        changes=False),
    one(_AROUND, "PerpNeg", part("perp_neg", neg_scale=1.0), node=1),
    one(_AROUND, "RescaleCFG", part("RescaleCFG", multiplier=1.0), node=1, settings=_STRONG),
    one(_AROUND, "RescaleCFG after the node", part("RescaleCFG", multiplier=1.0), settings=_STRONG, backends=BOTH),
    one(_AROUND, "CFG overridden in the first half", part("CFGOverride", cfg=1.0, start_percent=0.0, end_percent=0.5),
        node=1),
    one(_AROUND, "adaptive projected guidance", part("APG", eta=1.0, norm_threshold=5.0, momentum=-0.5), node=1),
    one(_AROUND, "differential diffusion", part("differential")),
    one(_AROUND, "v-prediction", part("ModelSamplingDiscrete", sampling="v_prediction", zsnr=False), node=1,
        backends=BOTH),
    one(_AROUND, "v-prediction, zero terminal SNR", part("ModelSamplingDiscrete", sampling="v_prediction", zsnr=True)),
    one(_AROUND, "LCM sampling space", part("ModelSamplingDiscrete", sampling="lcm", zsnr=False), node=1,
        settings={"sampler": "lcm"}, changes=False),
    one(_AROUND, "continuous EDM", part("ModelSamplingContinuousEDM", sampling="edm", sigma_max=120.0,
        sigma_min=0.002), node=1),
    one(_AROUND, "continuous V", part("ModelSamplingContinuousV", sampling="v_prediction", sigma_max=500.0,
        sigma_min=0.03)),
    one(_OPTIONS, "EasyCache before the node", part("EasyCache", **_CACHE), node=1, settings=_STEPS),
    one(_OPTIONS, "EasyCache after the node", part("EasyCache", **_CACHE), settings=_STEPS),
    one(_OPTIONS, "LazyCache before the node", part("LazyCache", **_CACHE), node=1, settings=_STEPS),
    one(_OPTIONS, "LazyCache after the node", part("LazyCache", **_CACHE), settings=_STEPS),
    one(_OPTIONS, "context windows over a batch", part("ContextWindowsManual", **_WINDOWS), node=1,
        settings={"batch": 4}),
    one(_OPTIONS, "another pack's wrapper before the node", part("OneGraphTestWrapper", factor=0.6), node=1),
    one(_OPTIONS, "another pack's wrapper after the node", part("OneGraphTestWrapper", factor=0.6)),
    one(_OPTIONS, "a second Compile Model", part("compiled_again"), changes=False),
    one(_OPTIONS, "compute dtype float32", part("ModelComputeDtype", dtype="fp32"), node=1, changes=False),
    one(_OPTIONS, "TorchCompileModel before the node", part("TorchCompileModel", backend="inductor"), node=1,
        **eager(), changes=False, full=True),
    one(_OPTIONS, "TorchCompileModel after the node", part("TorchCompileModel", backend="inductor"), **eager(),
        changes=False, full=True),
)  # fmt: skip
