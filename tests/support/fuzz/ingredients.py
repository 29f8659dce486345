"""What a random workflow can consist of: nodes of ComfyUI's own, wired as a user would.

Nodes that draw random numbers of their own while sampling (HyperTile, ToMe) draw them from torch's generator, which
every sampler seeds, so both runs see the same.
"""

from __future__ import annotations

from random import Random
from typing import Any

from ..scenes.kinds import always, between, kind, patch
from ..scenes.workflow import LORAS, Link, Values, Workflow, checkpoint_file, lora_file, output

SINGLE = ("latent", "sampling", "second pass", "decode")  # stages of which a workflow has one ingredient at most
WORDS = (3, 60, 76, 160, 230, 310)  # 77 to 385 tokens
SMALLEST = 64  # pixels of the smallest image that the UNet's graph for any size takes


def _overlaps(values: Values) -> bool:
    """Tiles that do not overlap may leave a border of one latent unit, too slim for a graph."""
    return bool(values["overlap"] > 0)


# Weights ------------------------------------------------------------------------------------------------------


def _lora(rng: Random) -> dict[str, Any]:
    return {"number": rng.randrange(LORAS), "strength": rng.choice([-0.5, 0.3, 0.7, 1.0, 1.2])}


def _lora_inputs(work: Workflow, values: Values) -> dict[str, Any]:
    return {
        "lora_name": lora_file(work.settings.family, values["number"]),
        "strength_model": values["strength"],
    }


@kind("model", _lora, always, 6)
def lora(work: Workflow, values: Values) -> None:
    work.model = work.add("LoraLoaderModelOnly", model=work.model, **_lora_inputs(work, values))


@kind("model", _lora, weight=0.7)
def bypass_lora(work: Workflow, values: Values) -> None:
    """A LoRA that computes beside the weights instead of changing them."""
    work.model = work.add("LoraLoaderBypassModelOnly", model=work.model, **_lora_inputs(work, values))


@kind("model", lambda rng: {"ratio": between(rng, 0, 1)}, always, 2)
def merge(work: Workflow, values: Values) -> None:
    work.model = work.add("ModelMergeSimple", model1=work.model, model2=work.second_model(), **values)


@kind("model", lambda rng: {k: between(rng, 0, 1) for k in ("input", "middle", "out")}, always, 2)
def merge_blocks(work: Workflow, values: Values) -> None:
    work.model = work.add("ModelMergeBlocks", model1=work.model, model2=work.second_model(), **values)


@kind("model", lambda rng: {"multiplier": between(rng, 0.2, 0.8)}, always)
def add_difference(work: Workflow, values: Values) -> None:
    """The usual way to move what one fine-tune learnt onto another."""
    learnt = work.add("ModelMergeSubtract", model1=work.second_model(), model2=work.model, **values)
    work.model = work.add("ModelMergeAdd", model1=work.model, model2=learnt)


# Guidance and sampling space: around the model, not in it --------------------------------------------------------

patch("RescaleCFG", lambda rng: {"multiplier": between(rng, 0.5, 1)}, always, 1.5)
patch("Mahiro", served=always, weight=0.7)
patch("TCFG", served=always, weight=0.7)
patch("CFGZeroStar", served=always, weight=0.7)
patch("CFGNorm", lambda rng: {"strength": between(rng, 0.5, 1)}, always, 0.7)
patch("FreSca", lambda rng: {"scale_low": 1.0, "scale_high": 1.25, "freq_cutoff": rng.choice([3, 20])}, always, 0.7)
patch("Epsilon Scaling", lambda rng: {"scaling_factor": between(rng, 0.98, 1.02)}, always, 0.7)
patch(
    "APG",
    lambda rng: {"eta": 1.0, "norm_threshold": rng.choice([0.0, 5.0]), "momentum": rng.choice([0.0, -0.5])},
    always,
    0.7,
)
patch("CFGOverride", lambda rng: {"cfg": rng.choice([1.0, 3.0]), "start_percent": 0.0, "end_percent": 0.5}, always, 0.7)
patch(
    "ModelSamplingDiscrete",
    lambda rng: {"sampling": rng.choice(["eps", "v_prediction", "lcm"]), "zsnr": rng.choice([False, True])},
    always,
)


@kind("model", served=always, weight=0.7)
def compiled_again(work: Workflow, values: Values) -> None:
    """A second Compile Model, as where a workflow is pasted into another."""
    work.model = work.compile_model(work.model)


@kind("model", lambda rng: {"neg_scale": between(rng, 0.5, 1.5)}, always, 0.7)
def perp_neg(work: Workflow, values: Values) -> None:
    work.model = work.add("PerpNeg", model=work.model, empty_conditioning=work.text("empty"), **values)


# Patches in the model: eager for the calls that they change ------------------------------------------------------

patch("FreeU", lambda rng: {"b1": 1.1, "b2": 1.2, "s1": 0.9, "s2": 0.2})
patch("FreeU_V2", lambda rng: {"b1": 1.3, "b2": 1.4, "s1": 0.9, "s2": 0.2})
patch("PerturbedAttentionGuidance", lambda rng: {"scale": between(rng, 1, 4)})
patch("SelfAttentionGuidance", lambda rng: {"scale": 0.5, "blur_sigma": 2.0})
patch(
    "HyperTile",
    lambda rng: {
        "tile_size": rng.choice([1, 64]),
        "swap_size": rng.choice([1, 2, 4]),
        "max_depth": 1,
        "scale_depth": False,
    },
)
patch("TomePatchModel", lambda rng: {"ratio": between(rng, 0.2, 0.6)}, weight=0.7)
patch("UNetSelfAttentionMultiply", lambda rng: {"q": 1.5, "k": 1.0, "v": 0.7, "out": 1.2}, always, 0.5)
patch("UNetCrossAttentionMultiply", lambda rng: {"q": 1.0, "k": 1.2, "v": 1.0, "out": 1.1}, always, 0.5)
patch(
    "PatchModelAddDownscale",
    lambda rng: {
        "block_number": rng.choice([1, 2, 3]),
        "downscale_factor": rng.choice([1.5, 2.0]),
        "start_percent": 0.0,
        "end_percent": rng.choice([0.35, 0.7, 1.0]),
        "downscale_after_skip": rng.choice([True, False]),
        "downscale_method": "bicubic",
        "upscale_method": rng.choice(["bicubic", "nearest-exact"]),
    },
)


def _cache(rng: Random) -> dict[str, Any]:
    return {
        "reuse_threshold": rng.choice([0.2, 1.0, 3.0]), "start_percent": rng.choice([0.0, 0.15]), "end_percent": 0.95,
        "verbose": False,
    }  # fmt: skip


patch("EasyCache", _cache, always)
patch("LazyCache", _cache, always, weight=0.7)


# As other packs do it, by nodes of tests/nodes -------------------------------------------------------------------


@kind("model", lambda rng: {"mode": rng.choice(["circular", "circular", "zeros"])}, weight=0.7, traces="stays")
def seamless(work: Workflow, values: Values) -> None:
    """Convolutions that wrap around, in the model's own module."""
    work.model = work.add("OneGraphTestSeamless", model=work.model, **values)


@kind("conditioning", lambda rng: {"way": rng.choice(["in place", "copy"])}, weight=0.7, traces="stays")
def seamless_vae(work: Workflow, values: Values) -> None:
    work.vae = work.add("OneGraphTestSeamlessVAE", vae=work.vae, **values)


@kind("model", lambda rng: {"factor": between(rng, 0.7, 0.9)}, weight=0.7)
def forward_replaced(work: Workflow, values: Values) -> None:
    work.model = work.add("OneGraphTestForwardReplaced", model=work.model, **values)


# Conditioning ---------------------------------------------------------------------------------------------------


def _rectangle(rng: Random) -> dict[str, float]:
    return {
        "left": rng.choice([0.0, 0.25, 0.5]), "top": rng.choice([0.0, 0.25, 0.5]),
        "width": rng.choice([0.25, 0.5, 0.6]), "height": rng.choice([0.25, 0.5, 1.0]),
    }  # fmt: skip


@kind("conditioning", lambda rng: {"words": rng.choice(WORDS)}, always, 1.5)
def combine(work: Workflow, values: Values) -> None:
    more = work.text("cliff", values["words"])
    work.positive = work.add("ConditioningCombine", conditioning_1=work.positive, conditioning_2=more)


@kind("conditioning", lambda rng: {"words": rng.choice(WORDS)}, always)
def concat(work: Workflow, values: Values) -> None:
    more = work.text("sea", values["words"])
    work.positive = work.add("ConditioningConcat", conditioning_to=work.positive, conditioning_from=more)


@kind("conditioning", lambda rng: {"conditioning_to_strength": between(rng, 0.2, 0.9)}, always, 0.7)
def average(work: Workflow, values: Values) -> None:
    work.negative = work.add(
        "ConditioningAverage", conditioning_to=work.negative, conditioning_from=work.text("grey"), **values
    )


@kind("conditioning", served=always, weight=0.7)
def zero_out(work: Workflow, values: Values) -> None:
    work.negative = work.add("ConditioningZeroOut", conditioning=work.negative)


@kind("conditioning", lambda rng: {**_rectangle(rng), "strength": between(rng, 0.5, 1.5)}, weight=1.5)
def area(work: Workflow, values: Values) -> None:
    """A second text for a rectangle, in whole latent units and at least as large as the node allows."""
    size = {name: max(64, int(values[name] * getattr(work, name)) // 8 * 8) for name in ("width", "height")}
    at = {"x": int(values["left"] * work.width) // 8 * 8, "y": int(values["top"] * work.height) // 8 * 8}
    placed = work.add("ConditioningSetArea", conditioning=work.text("boat"), **size, **at, strength=values["strength"])
    work.positive = work.add("ConditioningCombine", conditioning_1=work.positive, conditioning_2=placed)


@kind("conditioning", _rectangle)
def area_in_percent(work: Workflow, values: Values) -> None:
    sides = {"x": values["left"], "y": values["top"], "width": values["width"], "height": values["height"]}
    placed = work.add("ConditioningSetAreaPercentage", conditioning=work.text("boat"), **sides, strength=1.0)
    work.positive = work.add("ConditioningCombine", conditioning_1=work.positive, conditioning_2=placed)


@kind(
    "conditioning",
    lambda rng: {
        **_rectangle(rng),
        "strength": between(rng, 0.5, 1.5),
        "bounds": rng.choice(["default", "mask bounds"]),
    },
    lambda values: values["bounds"] == "default",
    1.5,
)
def mask(work: Workflow, values: Values) -> None:
    covered = work.mask(*(values[name] for name in ("left", "top", "width", "height")))
    masked = work.add(
        "ConditioningSetMask", conditioning=work.text("bird"), mask=covered, strength=values["strength"],
        set_cond_area=values["bounds"],
    )  # fmt: skip
    work.positive = work.add("ConditioningCombine", conditioning_1=work.positive, conditioning_2=masked)


@kind("conditioning", lambda rng: {"switch": rng.choice([0.3, 0.5, 0.8])}, always, 1.5)
def timesteps(work: Workflow, values: Values) -> None:
    """Another text in the beginning."""
    first = work.add(
        "ConditioningSetTimestepRange", conditioning=work.text("storm", 100), start=0.0, end=values["switch"]
    )
    then = work.add("ConditioningSetTimestepRange", conditioning=work.positive, start=values["switch"], end=1.0)
    work.positive = work.add("ConditioningCombine", conditioning_1=first, conditioning_2=then)


@kind(
    "conditioning",
    lambda rng: {**_lora(rng), "second_half": rng.choice([None, 0.0, 0.4]), "both": rng.choice(["yes", "no"])},
    always,
    2,
)
def hook_lora(work: Workflow, values: Values) -> None:
    """A LoRA for one text (or both), scheduled over the steps or not."""
    hooks = work.add("CreateHookLoraModelOnly", **_lora_inputs(work, values))
    if values["second_half"] is not None:
        frames = work.add("CreateHookKeyframe", strength_mult=1.0, start_percent=0.0)
        frames = work.add(
            "CreateHookKeyframe", strength_mult=values["second_half"], start_percent=0.5, prev_hook_kf=frames
        )
        hooks = work.add("SetHookKeyframes", hooks=hooks, hook_kf=frames)
    common = {"strength": 1.0, "set_cond_area": "default", "hooks": hooks}
    if values["both"] == "yes":
        pair = work.add(
            "PairConditioningSetProperties", positive_NEW=work.positive, negative_NEW=work.negative, **common
        )
        work.positive, work.negative = pair, output(pair, 1)
    else:
        work.positive = work.add("ConditioningSetProperties", cond_NEW=work.positive, **common)


@kind("conditioning", lambda rng: {"strength_model": between(rng, 0.2, 0.8)}, always, 0.7)
def hook_model(work: Workflow, values: Values) -> None:
    """Another checkpoint's difference as a LoRA for one text."""
    hooks = work.add(
        "CreateHookModelAsLoraModelOnly", ckpt_name=checkpoint_file(f"{work.settings.family}_second"), **values
    )
    work.positive = work.add(
        "ConditioningSetProperties", cond_NEW=work.positive, strength=1.0, set_cond_area="default", hooks=hooks
    )


@kind(
    "conditioning",
    lambda rng: {"strength": between(rng, 0.3, 1), "start_percent": 0.0, "end_percent": rng.choice([0.5, 1.0])},
    always,
    1.5,
)
def controlnet(work: Workflow, values: Values) -> None:
    work.steer(work.controlnet(), **values)


# The latent -----------------------------------------------------------------------------------------------------


def _repeat(work: Workflow) -> None:
    if work.settings.batch > 1:
        work.latent = work.add("RepeatLatentBatch", samples=work.latent, amount=work.settings.batch)


@kind("latent", served=always)
def img2img(work: Workflow, values: Values) -> None:
    work.latent = work.add("VAEEncode", pixels=work.image(), vae=work.vae)
    _repeat(work)


@kind("latent", lambda rng: {"overlap": rng.choice([0, 32])}, _overlaps, 0.5)
def img2img_tiled(work: Workflow, values: Values) -> None:
    sizes = {"tile_size": 64, "temporal_size": 64, "temporal_overlap": 8, **values}
    work.latent = work.add("VAEEncodeTiled", pixels=work.image(), vae=work.vae, **sizes)
    _repeat(work)


def _hole(rng: Random) -> dict[str, Any]:
    return {"left": 0.25, "top": 0.25, "width": 0.5, "height": 0.5, "feather": rng.choice([0, 8])}


@kind("latent", _hole, always)
def inpaint_noise_mask(work: Workflow, values: Values) -> None:
    encoded = work.add("VAEEncode", pixels=work.image(), vae=work.vae)
    work.latent = work.add("SetLatentNoiseMask", samples=encoded, mask=work.mask(**values))
    _repeat(work)


@kind("latent", _hole, always, 0.7)
def inpaint_encode(work: Workflow, values: Values) -> None:
    work.latent = work.add(
        "VAEEncodeForInpaint", pixels=work.image(), vae=work.vae, mask=work.mask(**values), grow_mask_by=6
    )
    _repeat(work)


@kind("latent", _hole, always, 0.7)
def inpaint_conditioning(work: Workflow, values: Values) -> None:
    made = work.add(
        "InpaintModelConditioning", **work.texts, vae=work.vae, pixels=work.image(), mask=work.mask(**values),
        noise_mask=True,
    )  # fmt: skip
    work.positive, work.negative, work.latent = made, output(made, 1), output(made, 2)
    _repeat(work)


@kind("latent", served=always)
def differential(work: Workflow, values: Values) -> None:
    """Differential diffusion, by a mask with soft borders."""
    work.model = work.add("DifferentialDiffusion", model=work.model, strength=1.0)
    encoded = work.add("VAEEncode", pixels=work.image(), vae=work.vae)
    work.latent = work.add("SetLatentNoiseMask", samples=encoded, mask=work.mask(0.1, 0.1, 0.8, 0.8, 24))
    _repeat(work)


@kind("latent", served=always, weight=0.5)
def masked_noise(work: Workflow, values: Values) -> None:
    """A noise mask on an empty latent."""
    work.latent = work.add("SetLatentNoiseMask", samples=work.latent, mask=work.mask(0.0, 0.25, 0.6, 0.5))


# Sampling -------------------------------------------------------------------------------------------------------


def _sampler_and_steps(work: Workflow) -> dict[str, Link]:
    s = work.settings
    steps = {"scheduler": s.scheduler, "steps": s.steps, "denoise": s.denoise}
    return {
        "sampler": work.add("KSamplerSelect", sampler_name=s.sampler), "latent_image": work.latent,
        "sigmas": work.add("BasicScheduler", model=work.model, **steps),
    }  # fmt: skip


def _guided(work: Workflow, class_type: str, **inputs: Any) -> None:
    """Sample by a guider."""
    guider = work.add(class_type, model=work.model, **inputs)
    noise = work.add("RandomNoise", noise_seed=work.settings.noise)
    work.latent = work.add("SamplerCustomAdvanced", noise=noise, guider=guider, **_sampler_and_steps(work))


@kind("sampling", served=always)
def guider_cfg(work: Workflow, values: Values) -> None:
    _guided(work, "CFGGuider", **work.texts, cfg=work.settings.cfg)


@kind("sampling", served=always, weight=0.7)
def guider_basic(work: Workflow, values: Values) -> None:
    _guided(work, "BasicGuider", conditioning=work.positive)


@kind("sampling", lambda rng: {"style": rng.choice(["regular", "nested"])}, always)
def guider_dual_cfg(work: Workflow, values: Values) -> None:
    texts = {"cond1": work.positive, "cond2": work.text("moon"), "negative": work.negative}
    _guided(work, "DualCFGGuider", **texts, cfg_conds=work.settings.cfg, cfg_cond2_negative=2.0, **values)


@kind("sampling", lambda rng: {"neg_scale": between(rng, 0.5, 1.5)}, always)
def guider_perp_neg(work: Workflow, values: Values) -> None:
    empty = work.text("empty")
    _guided(work, "PerpNegGuider", **work.texts, empty_conditioning=empty, cfg=work.settings.cfg, **values)


@kind("sampling", lambda rng: {"second": rng.choice(["plain", "compiled", "same"])})
def guider_dual_model(work: Workflow, values: Values) -> None:
    """Two models: one for the text, another for the negative one."""
    second = work.model if values["second"] == "same" else work.second_model()
    if values["second"] == "compiled":
        second = work.compile_model(second)
    _guided(work, "DualModelGuider", model_negative=second, **work.texts, cfg=work.settings.cfg)


@kind("sampling", served=always, weight=0.7)
def sampler_custom(work: Workflow, values: Values) -> None:
    s = work.settings
    noise = {"add_noise": True, "noise_seed": s.noise, "cfg": s.cfg}
    work.latent = work.add("SamplerCustom", model=work.model, **noise, **work.texts, **_sampler_and_steps(work))


@kind("sampling", served=always, weight=1.5, family="sdxl")
def refiner(work: Workflow, values: Values) -> None:
    """The last steps by the refiner."""
    s = work.settings
    model = work.add("CheckpointLoaderSimple", ckpt_name=checkpoint_file("refiner"))
    if s.compiles_model:
        model = work.compile_model(model)
    positive = work.text("lighthouse", s.positive_words, "refiner")
    negative = work.text("blurry", s.negative_words, "refiner")
    work.sample_in_turns(model, s.steps + 1, s.steps - 1, positive=positive, negative=negative)


# A second pass and decoding -------------------------------------------------------------------------------------


@kind(
    "second pass",
    lambda rng: {
        "scale_by": rng.choice([1.25, 1.5, 1.7]),
        "upscale_method": rng.choice(["nearest-exact", "bislerp"]),
        "denoise": rng.choice([0.4, 0.6]),
    },
    always,
    3,
)
def hires(work: Workflow, values: Values) -> None:
    work.latent = work.add(
        "LatentUpscaleBy", samples=work.latent, scale_by=values["scale_by"], upscale_method=values["upscale_method"]
    )
    work.sample(denoise=values["denoise"], seed=work.settings.noise + 1)


@kind("second pass", lambda rng: {"denoise": rng.choice([0.4, 0.7])}, always, 0.5)
def decode_and_again(work: Workflow, values: Values) -> None:
    """To pixels and back, then sampling again, as upscalers for pixels are used."""
    pixels = work.add("VAEDecode", samples=work.latent, vae=work.vae)
    work.latent = work.add("VAEEncode", pixels=pixels, vae=work.vae)
    work.sample(denoise=values["denoise"], seed=work.settings.noise + 1)


@kind("second pass", served=always)
def other_lora_after(work: Workflow, values: Values) -> None:
    """A second sampler on a sibling of the model, with a LoRA more."""
    lora(work, {"number": 1, "strength": 0.8})
    work.sample(denoise=0.6, seed=work.settings.noise + 1)


@kind("second pass", served=always)
def plain_sibling_after(work: Workflow, values: Values) -> None:
    """A second sampler on the model as it was loaded, which shares its module with the compiled one."""
    work.model = work.loaded
    lora(work, {"number": 1, "strength": 0.8})
    work.sample(denoise=0.6, seed=work.settings.noise + 1)


@kind("second pass", lambda rng: {"mode": "circular"}, weight=0.7, traces="stays")
def seamless_later(work: Workflow, values: Values) -> None:
    """The module changes between two samplings."""
    work.model = work.add("OneGraphTestSeamless", model=work.model, after=work.latent, **values)
    work.sample(denoise=0.9, seed=work.settings.noise + 1)


@kind("decode", lambda rng: {"tile_size": rng.choice([64, 96, 128]), "overlap": rng.choice([0, 32])}, _overlaps, 3)
def decode_tiled(work: Workflow, values: Values) -> None:
    sizes = {"temporal_size": 64, "temporal_overlap": 8, **values}
    work.save_image(work.add("VAEDecodeTiled", samples=work.latent, vae=work.vae, **sizes))
