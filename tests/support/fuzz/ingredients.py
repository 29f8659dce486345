"""What a random workflow can consist of: nodes of ComfyUI's own, wired as a user would.

Nodes that draw random numbers of their own while sampling (HyperTile, ToMe) draw them from torch's generator, which
every sampler seeds, so both runs see the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from .workflow import LORAS, Family, Values, Workflow, checkpoint_file, controlnet_file, lora_file, output

Traces = Literal["none", "stays"]
Stage = Literal["model", "conditioning", "latent", "sampling", "second pass", "decode"]
SINGLE = ("latent", "sampling", "second pass", "decode")  # stages of which a workflow has one ingredient at most
WORDS = (3, 60, 76, 160, 230, 310)  # 77 to 385 tokens
SMALLEST = 64  # pixels of the smallest image that the UNet's graph for any size takes


@dataclass(frozen=True)
class Kind:
    """A kind of ingredient.

    Attributes:
        draw: its values, at random.
        wire: adds it to a workflow.
        served: whether every call that it causes is known to go through a graph.
        weight: how often it is chosen, relative to others.
        family: the only family of models that it works with; None: all.
        of_transformers: whether it works with diffusion transformers alone.
        traces: `stays`: it changes modules in place, which is another architecture for as long as they are loaded; no
            graph is compiled for that in this case, and everything is unloaded after each run.
    """

    name: str
    stage: Stage
    draw: Callable[[Random], dict[str, Any]]
    wire: Callable[[Workflow, Values], None]
    served: Callable[[Values], bool]
    weight: float = 1.0
    family: Family | None = None
    traces: Traces = "none"
    of_transformers: bool = False


KINDS: dict[str, Kind] = {}
Wire = Callable[[Workflow, Values], None]


def _never(values: Values) -> bool:
    return False


def _always(values: Values) -> bool:
    return True


def _overlaps(values: Values) -> bool:
    """Tiles that do not overlap may leave a border of one latent unit, too slim for a graph."""
    return bool(values["overlap"] > 0)


def _kind(
    stage: Stage,
    draw: Callable[[Random], dict[str, Any]] = lambda rng: {},
    served: Callable[[Values], bool] = _never,
    weight: float = 1.0,
    family: Family | None = None,
    traces: Traces = "none",
) -> Callable[[Wire], Wire]:
    def register(wire: Wire) -> Wire:
        name = wire.__name__
        KINDS[name] = Kind(name, stage, draw, wire, served, weight, family, traces)
        return wire

    return register


def _patch(
    class_type: str,
    draw: Callable[[Random], dict[str, Any]] = lambda rng: {},
    served: Callable[[Values], bool] = _never,
    weight: float = 1.0,
) -> None:
    """A kind that is one node with one MODEL going through it; its values are the node's inputs."""

    def wire(work: Workflow, values: Values) -> None:
        work.model = work.add(class_type, model=work.model, **values)

    KINDS[class_type] = Kind(class_type, "model", draw, wire, served, weight)


def _between(rng: Random, low: float, high: float) -> float:
    return round(rng.uniform(low, high), 2)


# Weights ------------------------------------------------------------------------------------------------------


def _lora(rng: Random) -> dict[str, Any]:
    return {"number": rng.randrange(LORAS), "strength": rng.choice([-0.5, 0.3, 0.7, 1.0, 1.2])}


def _lora_inputs(work: Workflow, values: Values) -> dict[str, Any]:
    return {
        "lora_name": lora_file(work.settings.family, values["number"]),
        "strength_model": values["strength"],
    }


@_kind("model", _lora, _always, 6)
def lora(work: Workflow, values: Values) -> None:
    work.model = work.add("LoraLoaderModelOnly", model=work.model, **_lora_inputs(work, values))


@_kind("model", _lora, weight=0.7)
def bypass_lora(work: Workflow, values: Values) -> None:
    """A LoRA that computes beside the weights instead of changing them."""
    work.model = work.add("LoraLoaderBypassModelOnly", model=work.model, **_lora_inputs(work, values))


@_kind("model", lambda rng: {"ratio": _between(rng, 0, 1)}, _always, 2)
def merge(work: Workflow, values: Values) -> None:
    work.model = work.add("ModelMergeSimple", model1=work.model, model2=work.second_model(), **values)


@_kind("model", lambda rng: {k: _between(rng, 0, 1) for k in ("input", "middle", "out")}, _always, 2)
def merge_blocks(work: Workflow, values: Values) -> None:
    work.model = work.add("ModelMergeBlocks", model1=work.model, model2=work.second_model(), **values)


@_kind("model", lambda rng: {"multiplier": _between(rng, 0.2, 0.8)}, _always)
def add_difference(work: Workflow, values: Values) -> None:
    """The usual way to move what one fine-tune learnt onto another."""
    learnt = work.add("ModelMergeSubtract", model1=work.second_model(), model2=work.model, **values)
    work.model = work.add("ModelMergeAdd", model1=work.model, model2=learnt)


# Guidance and sampling space: around the model, not in it --------------------------------------------------------

_patch("RescaleCFG", lambda rng: {"multiplier": _between(rng, 0.5, 1)}, _always, 1.5)
_patch("Mahiro", served=_always, weight=0.7)
_patch("TCFG", served=_always, weight=0.7)
_patch("CFGZeroStar", served=_always, weight=0.7)
_patch("CFGNorm", lambda rng: {"strength": _between(rng, 0.5, 1)}, _always, 0.7)
_patch("FreSca", lambda rng: {"scale_low": 1.0, "scale_high": 1.25, "freq_cutoff": rng.choice([3, 20])}, _always, 0.7)
_patch("Epsilon Scaling", lambda rng: {"scaling_factor": _between(rng, 0.98, 1.02)}, _always, 0.7)
_patch(
    "APG",
    lambda rng: {"eta": 1.0, "norm_threshold": rng.choice([0.0, 5.0]), "momentum": rng.choice([0.0, -0.5])},
    _always,
    0.7,
)
_patch(
    "CFGOverride", lambda rng: {"cfg": rng.choice([1.0, 3.0]), "start_percent": 0.0, "end_percent": 0.5}, _always, 0.7
)
_patch(
    "ModelSamplingDiscrete",
    lambda rng: {"sampling": rng.choice(["eps", "v_prediction", "lcm"]), "zsnr": rng.choice([False, True])},
    _always,
)


@_kind("model", served=_always, weight=0.7)
def compiled_again(work: Workflow, values: Values) -> None:
    """A second Compile Model, as where a workflow is pasted into another."""
    work.model = work.compile_model(work.model)


@_kind("model", lambda rng: {"neg_scale": _between(rng, 0.5, 1.5)}, _always, 0.7)
def perp_neg(work: Workflow, values: Values) -> None:
    work.model = work.add("PerpNeg", model=work.model, empty_conditioning=work.text("empty"), **values)


# Patches in the model: eager for the calls that they change ------------------------------------------------------

_patch("FreeU", lambda rng: {"b1": 1.1, "b2": 1.2, "s1": 0.9, "s2": 0.2})
_patch("FreeU_V2", lambda rng: {"b1": 1.3, "b2": 1.4, "s1": 0.9, "s2": 0.2})
_patch("PerturbedAttentionGuidance", lambda rng: {"scale": _between(rng, 1, 4)})
_patch("SelfAttentionGuidance", lambda rng: {"scale": 0.5, "blur_sigma": 2.0})
_patch(
    "HyperTile",
    lambda rng: {
        "tile_size": rng.choice([1, 64]),
        "swap_size": rng.choice([1, 2, 4]),
        "max_depth": 1,
        "scale_depth": False,
    },
)
_patch("TomePatchModel", lambda rng: {"ratio": _between(rng, 0.2, 0.6)}, weight=0.7)
_patch("UNetSelfAttentionMultiply", lambda rng: {"q": 1.5, "k": 1.0, "v": 0.7, "out": 1.2}, _always, 0.5)
_patch("UNetCrossAttentionMultiply", lambda rng: {"q": 1.0, "k": 1.2, "v": 1.0, "out": 1.1}, _always, 0.5)
_patch(
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


_patch("EasyCache", _cache, _always)
_patch("LazyCache", _cache, _always, weight=0.7)


# As other packs do it, by nodes of tests/nodes -------------------------------------------------------------------


@_kind("model", lambda rng: {"mode": rng.choice(["circular", "circular", "zeros"])}, weight=0.7, traces="stays")
def seamless(work: Workflow, values: Values) -> None:
    """Convolutions that wrap around, in the model's own module."""
    work.model = work.add("OneGraphTestSeamless", model=work.model, **values)


@_kind("conditioning", lambda rng: {"way": rng.choice(["in place", "copy"])}, weight=0.7, traces="stays")
def seamless_vae(work: Workflow, values: Values) -> None:
    work.vae = work.add("OneGraphTestSeamlessVAE", vae=work.vae, **values)


@_kind("model", lambda rng: {"factor": _between(rng, 0.7, 0.9)}, weight=0.7)
def forward_replaced(work: Workflow, values: Values) -> None:
    work.model = work.add("OneGraphTestForwardReplaced", model=work.model, **values)


# Conditioning ---------------------------------------------------------------------------------------------------


def _rectangle(rng: Random) -> dict[str, float]:
    return {
        "left": rng.choice([0.0, 0.25, 0.5]), "top": rng.choice([0.0, 0.25, 0.5]),
        "width": rng.choice([0.25, 0.5, 0.6]), "height": rng.choice([0.25, 0.5, 1.0]),
    }  # fmt: skip


@_kind("conditioning", lambda rng: {"words": rng.choice(WORDS)}, _always, 1.5)
def combine(work: Workflow, values: Values) -> None:
    more = work.text("cliff", values["words"])
    work.positive = work.add("ConditioningCombine", conditioning_1=work.positive, conditioning_2=more)


@_kind("conditioning", lambda rng: {"words": rng.choice(WORDS)}, _always)
def concat(work: Workflow, values: Values) -> None:
    more = work.text("sea", values["words"])
    work.positive = work.add("ConditioningConcat", conditioning_to=work.positive, conditioning_from=more)


@_kind("conditioning", lambda rng: {"conditioning_to_strength": _between(rng, 0.2, 0.9)}, _always, 0.7)
def average(work: Workflow, values: Values) -> None:
    work.negative = work.add(
        "ConditioningAverage", conditioning_to=work.negative, conditioning_from=work.text("grey"), **values
    )


@_kind("conditioning", served=_always, weight=0.7)
def zero_out(work: Workflow, values: Values) -> None:
    work.negative = work.add("ConditioningZeroOut", conditioning=work.negative)


@_kind("conditioning", lambda rng: {**_rectangle(rng), "strength": _between(rng, 0.5, 1.5)}, weight=1.5)
def area(work: Workflow, values: Values) -> None:
    """A second text for a rectangle, in whole latent units and at least as large as the node allows."""
    size = {name: max(64, int(values[name] * getattr(work, name)) // 8 * 8) for name in ("width", "height")}
    at = {"x": int(values["left"] * work.width) // 8 * 8, "y": int(values["top"] * work.height) // 8 * 8}
    placed = work.add("ConditioningSetArea", conditioning=work.text("boat"), **size, **at, strength=values["strength"])
    work.positive = work.add("ConditioningCombine", conditioning_1=work.positive, conditioning_2=placed)


@_kind("conditioning", _rectangle)
def area_in_percent(work: Workflow, values: Values) -> None:
    sides = {"x": values["left"], "y": values["top"], "width": values["width"], "height": values["height"]}
    placed = work.add("ConditioningSetAreaPercentage", conditioning=work.text("boat"), **sides, strength=1.0)
    work.positive = work.add("ConditioningCombine", conditioning_1=work.positive, conditioning_2=placed)


@_kind(
    "conditioning",
    lambda rng: {
        **_rectangle(rng),
        "strength": _between(rng, 0.5, 1.5),
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


@_kind("conditioning", lambda rng: {"switch": rng.choice([0.3, 0.5, 0.8])}, _always, 1.5)
def timesteps(work: Workflow, values: Values) -> None:
    """Another text in the beginning."""
    first = work.add(
        "ConditioningSetTimestepRange", conditioning=work.text("storm", 100), start=0.0, end=values["switch"]
    )
    then = work.add("ConditioningSetTimestepRange", conditioning=work.positive, start=values["switch"], end=1.0)
    work.positive = work.add("ConditioningCombine", conditioning_1=first, conditioning_2=then)


@_kind(
    "conditioning",
    lambda rng: {**_lora(rng), "second_half": rng.choice([None, 0.0, 0.4]), "both": rng.choice(["yes", "no"])},
    _always,
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


@_kind("conditioning", lambda rng: {"strength_model": _between(rng, 0.2, 0.8)}, _always, 0.7)
def hook_model(work: Workflow, values: Values) -> None:
    """Another checkpoint's difference as a LoRA for one text."""
    hooks = work.add(
        "CreateHookModelAsLoraModelOnly", ckpt_name=checkpoint_file(f"{work.settings.family}_second"), **values
    )
    work.positive = work.add(
        "ConditioningSetProperties", cond_NEW=work.positive, strength=1.0, set_cond_area="default", hooks=hooks
    )


@_kind(
    "conditioning",
    lambda rng: {"strength": _between(rng, 0.3, 1), "start_percent": 0.0, "end_percent": rng.choice([0.5, 1.0])},
    _always,
    1.5,
)
def controlnet(work: Workflow, values: Values) -> None:
    net = work.add("ControlNetLoader", control_net_name=controlnet_file(work.settings.family))
    applied = work.add(
        "ControlNetApplyAdvanced", positive=work.positive, negative=work.negative, control_net=net,
        image=work.image(7), **values,
    )  # fmt: skip
    work.positive, work.negative = applied, output(applied, 1)


# The latent -----------------------------------------------------------------------------------------------------


def _repeat(work: Workflow) -> None:
    if work.settings.batch > 1:
        work.latent = work.add("RepeatLatentBatch", samples=work.latent, amount=work.settings.batch)


@_kind("latent", served=_always)
def img2img(work: Workflow, values: Values) -> None:
    work.latent = work.add("VAEEncode", pixels=work.image(), vae=work.vae)
    _repeat(work)


@_kind("latent", lambda rng: {"overlap": rng.choice([0, 32])}, _overlaps, 0.5)
def img2img_tiled(work: Workflow, values: Values) -> None:
    work.latent = work.add(
        "VAEEncodeTiled",
        pixels=work.image(),
        vae=work.vae,
        tile_size=64,
        temporal_size=64,
        temporal_overlap=8,
        **values,
    )
    _repeat(work)


def _hole(rng: Random) -> dict[str, Any]:
    return {"left": 0.25, "top": 0.25, "width": 0.5, "height": 0.5, "feather": rng.choice([0, 8])}


@_kind("latent", _hole, _always)
def inpaint_noise_mask(work: Workflow, values: Values) -> None:
    encoded = work.add("VAEEncode", pixels=work.image(), vae=work.vae)
    work.latent = work.add("SetLatentNoiseMask", samples=encoded, mask=work.mask(**values))
    _repeat(work)


@_kind("latent", _hole, _always, 0.7)
def inpaint_encode(work: Workflow, values: Values) -> None:
    work.latent = work.add(
        "VAEEncodeForInpaint", pixels=work.image(), vae=work.vae, mask=work.mask(**values), grow_mask_by=6
    )
    _repeat(work)


@_kind("latent", _hole, _always, 0.7)
def inpaint_conditioning(work: Workflow, values: Values) -> None:
    made = work.add(
        "InpaintModelConditioning", positive=work.positive, negative=work.negative, vae=work.vae,
        pixels=work.image(), mask=work.mask(**values), noise_mask=True,
    )  # fmt: skip
    work.positive, work.negative, work.latent = made, output(made, 1), output(made, 2)
    _repeat(work)


@_kind("latent", served=_always)
def differential(work: Workflow, values: Values) -> None:
    """Differential diffusion, by a mask with soft borders."""
    work.model = work.add("DifferentialDiffusion", model=work.model, strength=1.0)
    encoded = work.add("VAEEncode", pixels=work.image(), vae=work.vae)
    work.latent = work.add("SetLatentNoiseMask", samples=encoded, mask=work.mask(0.1, 0.1, 0.8, 0.8, 24))
    _repeat(work)


@_kind("latent", served=_always, weight=0.5)
def masked_noise(work: Workflow, values: Values) -> None:
    """A noise mask on an empty latent."""
    work.latent = work.add("SetLatentNoiseMask", samples=work.latent, mask=work.mask(0.0, 0.25, 0.6, 0.5))


# Sampling -------------------------------------------------------------------------------------------------------


def _advanced(work: Workflow, guider: Any) -> None:
    s = work.settings
    work.latent = work.add(
        "SamplerCustomAdvanced", noise=work.add("RandomNoise", noise_seed=s.noise), guider=guider,
        sampler=work.add("KSamplerSelect", sampler_name=s.sampler),
        sigmas=work.add("BasicScheduler", model=work.model, scheduler=s.scheduler, steps=s.steps, denoise=s.denoise),
        latent_image=work.latent,
    )  # fmt: skip


@_kind("sampling", served=_always)
def guider_cfg(work: Workflow, values: Values) -> None:
    _advanced(
        work,
        work.add("CFGGuider", model=work.model, positive=work.positive, negative=work.negative, cfg=work.settings.cfg),
    )


@_kind("sampling", served=_always, weight=0.7)
def guider_basic(work: Workflow, values: Values) -> None:
    _advanced(work, work.add("BasicGuider", model=work.model, conditioning=work.positive))


@_kind("sampling", lambda rng: {"style": rng.choice(["regular", "nested"])}, _always)
def guider_dual_cfg(work: Workflow, values: Values) -> None:
    _advanced(
        work,
        work.add(
            "DualCFGGuider",
            model=work.model,
            cond1=work.positive,
            cond2=work.text("moon"),
            negative=work.negative,
            cfg_conds=work.settings.cfg,
            cfg_cond2_negative=2.0,
            **values,
        ),
    )


@_kind("sampling", lambda rng: {"neg_scale": _between(rng, 0.5, 1.5)}, _always)
def guider_perp_neg(work: Workflow, values: Values) -> None:
    _advanced(
        work,
        work.add(
            "PerpNegGuider",
            model=work.model,
            positive=work.positive,
            negative=work.negative,
            empty_conditioning=work.text("empty"),
            cfg=work.settings.cfg,
            **values,
        ),
    )


@_kind("sampling", lambda rng: {"second": rng.choice(["plain", "compiled", "same"])})
def guider_dual_model(work: Workflow, values: Values) -> None:
    """Two models: one for the text, another for the negative one."""
    second = work.model if values["second"] == "same" else work.second_model()
    if values["second"] == "compiled":
        second = work.compile_model(second)
    _advanced(
        work,
        work.add(
            "DualModelGuider",
            model=work.model,
            model_negative=second,
            positive=work.positive,
            negative=work.negative,
            cfg=work.settings.cfg,
        ),
    )


@_kind("sampling", served=_always, weight=0.7)
def sampler_custom(work: Workflow, values: Values) -> None:
    s = work.settings
    work.latent = work.add(
        "SamplerCustom", model=work.model, add_noise=True, noise_seed=s.noise, cfg=s.cfg, positive=work.positive,
        negative=work.negative, sampler=work.add("KSamplerSelect", sampler_name=s.sampler),
        sigmas=work.add("BasicScheduler", model=work.model, scheduler=s.scheduler, steps=s.steps, denoise=s.denoise),
        latent_image=work.latent,
    )  # fmt: skip


@_kind("sampling", served=_always, weight=1.5, family="sdxl")
def refiner(work: Workflow, values: Values) -> None:
    """The last steps by the refiner."""
    s = work.settings
    model = work.add("CheckpointLoaderSimple", ckpt_name=checkpoint_file("refiner"))
    if s.compiles_model:
        model = work.compile_model(model)
    common = {
        "noise_seed": s.noise, "steps": s.steps + 1, "cfg": s.cfg, "sampler_name": s.sampler,
        "scheduler": s.scheduler,
    }  # fmt: skip
    half = work.add(
        "KSamplerAdvanced", model=work.model, add_noise="enable", positive=work.positive, negative=work.negative,
        latent_image=work.latent, start_at_step=0, end_at_step=s.steps - 1, return_with_leftover_noise="enable",
        **common,
    )  # fmt: skip
    work.latent = work.add(
        "KSamplerAdvanced", model=model, add_noise="disable",
        positive=work.text("lighthouse", s.positive_words, "refiner"),
        negative=work.text("blurry", s.negative_words, "refiner"), latent_image=half,
        start_at_step=s.steps - 1, end_at_step=10000, return_with_leftover_noise="disable", **common,
    )  # fmt: skip


# A second pass and decoding -------------------------------------------------------------------------------------


@_kind(
    "second pass",
    lambda rng: {
        "scale_by": rng.choice([1.25, 1.5, 1.7]),
        "upscale_method": rng.choice(["nearest-exact", "bislerp"]),
        "denoise": rng.choice([0.4, 0.6]),
    },
    _always,
    3,
)
def hires(work: Workflow, values: Values) -> None:
    work.latent = work.add(
        "LatentUpscaleBy", samples=work.latent, scale_by=values["scale_by"], upscale_method=values["upscale_method"]
    )
    work.sample(denoise=values["denoise"], seed=work.settings.noise + 1)


@_kind("second pass", lambda rng: {"denoise": rng.choice([0.4, 0.7])}, _always, 0.5)
def decode_and_again(work: Workflow, values: Values) -> None:
    """To pixels and back, then sampling again, as upscalers for pixels are used."""
    pixels = work.add("VAEDecode", samples=work.latent, vae=work.vae)
    work.latent = work.add("VAEEncode", pixels=pixels, vae=work.vae)
    work.sample(denoise=values["denoise"], seed=work.settings.noise + 1)


@_kind("second pass", served=_always)
def other_lora_after(work: Workflow, values: Values) -> None:
    """A second sampler on a sibling of the model, with a LoRA more."""
    lora(work, {"number": 1, "strength": 0.8})
    work.sample(denoise=0.6, seed=work.settings.noise + 1)


@_kind("second pass", served=_always)
def plain_sibling_after(work: Workflow, values: Values) -> None:
    """A second sampler on the model as it was loaded, which shares its module with the compiled one."""
    work.model = work.loaded
    lora(work, {"number": 1, "strength": 0.8})
    work.sample(denoise=0.6, seed=work.settings.noise + 1)


@_kind("second pass", lambda rng: {"mode": "circular"}, weight=0.7, traces="stays")
def seamless_later(work: Workflow, values: Values) -> None:
    """The module changes between two samplings."""
    work.model = work.add("OneGraphTestSeamless", model=work.model, after=work.latent, **values)
    work.sample(denoise=0.9, seed=work.settings.noise + 1)


@_kind("decode", lambda rng: {"tile_size": rng.choice([64, 96, 128]), "overlap": rng.choice([0, 32])}, _overlaps, 3)
def decode_tiled(work: Workflow, values: Values) -> None:
    image = work.add(
        "VAEDecodeTiled", samples=work.latent, vae=work.vae, temporal_size=64, temporal_overlap=8, **values
    )
    work.add("SaveImage", images=image, filename_prefix="fuzz")
