"""Samplers, guiders, sizes and batches."""

from __future__ import annotations

from collections.abc import Iterator

from ..scenes.judge import eager, partly
from .case import BOTH, Case, one, part

_SAMPLERS, _GUIDERS, _SIZES, _PASSES = "Samplers", "Guiders", "Sizes and batches", "Several passes"
_UPSCALE = {"scale_by": 1.5, "upscale_method": "nearest-exact", "denoise": 0.6}


_STRONG = (
    "euler_ancestral", "heun", "dpm_2", "dpmpp_2s_ancestral", "dpmpp_sde", "dpmpp_2m_sde", "dpmpp_3m_sde", "uni_pc",
    "lcm", "res_multistep",
)  # fmt: skip
_LIKE_EULER = ("lms", "dpmpp_2m", "ddim", "euler_cfg_pp")  # hardly another image in so few steps


def _samplers() -> Iterator[Case]:
    for name in (*_STRONG, *_LIKE_EULER):
        yield one(_SAMPLERS, name, settings={"sampler": name}, changes=name in _STRONG)


CASES: tuple[Case, ...] = (
    *_samplers(),
    one(_SAMPLERS, "Karras' steps", settings={"scheduler": "karras"}, changes=False, backends=BOTH),
    one(_SAMPLERS, "custom", part("sampler_custom"), changes=False),
    one(_GUIDERS, "CFG", part("guider_cfg"), changes=False, backends=BOTH),
    one(_GUIDERS, "basic", part("guider_basic")),
    one(_GUIDERS, "dual CFG", part("guider_dual_cfg", style="regular")),
    one(_GUIDERS, "dual CFG, nested", part("guider_dual_cfg", style="nested")),
    one(_GUIDERS, "PerpNeg", part("guider_perp_neg", neg_scale=1.0)),
    one(_GUIDERS, "dual model, one compiled", part("guider_dual_model", second="plain"), **partly("no_node")),
    one(_GUIDERS, "dual model, both compiled", part("guider_dual_model", second="compiled")),
    one(_SIZES, "cfg 1", settings={"cfg": 1.0}, backends=BOTH),
    one(_SIZES, "batch of 2", settings={"batch": 2}, changes=False),
    one(_SIZES, "batch of 3", settings={"batch": 3}, changes=False),
    one(_SIZES, "batch of 9", settings={"batch": 9}, changes=False),
    one(_SIZES, "72x136", settings={"width": 72, "height": 136}, changes=False, reports=("onediff #857",
        "onediff #993")),
    one(_SIZES, "200x104 with 154 tokens", settings={"width": 200, "height": 104, "positive_words": 100}),
    one(_SIZES, "48x64, below what the graph takes", settings={"width": 48, "height": 64}, changes=False,
        **eager("not_admitted")),
    one(_PASSES, "hires fix", part("hires", **_UPSCALE), changes=False, settings={"width": 96, "height": 96}),
    one(_PASSES, "hires fix by pixels", part("decode_and_again", denoise=0.7), settings={"vae_node": "both"},
        reports=("onediff #971",)),
    one(_PASSES, "image to image", part("img2img"), settings={"denoise": 0.6, "vae_node": "both"}, changes=False,
        reports=("onediff #971",)),
    one(_PASSES, "image to image in tiles", part("img2img_tiled", overlap=16), settings={"denoise": 0.6,
        "vae_node": "both"}, changes=False),
    one(_PASSES, "decoded in tiles", part("decode_tiled", tile_size=64, overlap=32), settings={"vae_node": "decoder"},
        changes=False),
    one(_PASSES, "base and refiner", part("refiner"), settings={"steps": 2, "noise": 11, "vae_node": "decoder"},
        reports=("onediff #708",)),
    one(_PASSES, "two checkpoints", part("second_checkpoint")),
    one(_PASSES, "with and without the node in one prompt", part("plain_branch"), changes=False),
    one(_PASSES, "two VAEs", part("decode_with_vaes"), settings={"vae_node": "decoder"}, changes=False,
        reports=("KJNodes: a second VAE is skipped",)),
)  # fmt: skip
