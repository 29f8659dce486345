"""What a random workflow with a diffusion transformer can consist of, besides what others consist of, too."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from .ingredients import KINDS, Kind, Wire, _always, _between, _never
from .workflow import TransformerWorkflow, Values, Workflow

# Of `ingredients`.
OF_TRANSFORMERS = frozenset({
    "lora", "bypass_lora", "merge", "add_difference", "RescaleCFG", "Mahiro", "TCFG", "CFGZeroStar", "CFGNorm",
    "FreSca", "Epsilon Scaling", "APG", "CFGOverride", "compiled_again", "perp_neg", "EasyCache", "LazyCache",
    "combine", "concat", "average", "zero_out", "area", "area_in_percent", "mask", "timesteps", "hook_lora",
    "masked_noise", "guider_cfg", "guider_basic", "guider_dual_cfg", "guider_perp_neg", "guider_dual_model",
    "sampler_custom", "other_lora_after", "plain_sibling_after",
})  # fmt: skip


def _kind(
    stage: Any,
    draw: Callable[[Random], dict[str, Any]] = lambda rng: {},
    served: Callable[[Values], bool] = _never,
    weight: float = 1.0,
    traces: Any = "none",
) -> Callable[[Wire], Wire]:
    def register(wire: Wire) -> Wire:
        name = wire.__name__
        KINDS[name] = Kind(name, stage, draw, wire, served, weight, None, traces, of_transformers=True)
        return wire

    return register


def _node(class_type: str, draw: Callable[[Random], dict[str, Any]], served: Callable[[Values], bool]) -> None:
    """A kind that is one node with one MODEL going through it."""

    def wire(work: Workflow, values: Values) -> None:
        work.model = work.add(class_type, model=work.model, **values)

    KINDS[class_type] = Kind(class_type, "model", draw, wire, served, of_transformers=True)


def _layers(rng: Random) -> dict[str, Any]:
    return {
        "double_layers": rng.choice(["0", "1", "0, 1"]), "single_layers": rng.choice(["", "1", "0, 2"]),
        "start_percent": 0.0, "end_percent": rng.choice([0.6, 1.0]),
    }  # fmt: skip


_node(
    "SkipLayerGuidanceDiT",
    lambda rng: {**_layers(rng), "scale": _between(rng, 1, 3), "rescaling_scale": rng.choice([0.0, 0.5])},
    _always,
)
_node("SkipLayerGuidanceDiTSimple", _layers, _always)
_node("NAGuidance", lambda rng: {"nag_scale": 5.0, "nag_alpha": 0.5, "nag_tau": 1.5}, _never)
_node("ModelSamplingAuraFlow", lambda rng: {"shift": _between(rng, 1, 6)}, _always)
_node("OneGraphTestWrapper", lambda rng: {"factor": _between(rng, 0.7, 0.9)}, _always)
_node("OneGraphTestAttentionOverride", lambda rng: {"factor": _between(rng, 0.5, 0.8)}, _never)
_node(
    "OneGraphTestTransformerPatch",
    lambda rng: {
        "place": rng.choice(["post_input", "double_block", "replaced", "skipped", "attn1_patch", "weights moved"]),
        "number": rng.choice([0, 1]),
    },
    _never,
)


@_kind("model", weight=0.7, traces="stays")
def block_hook(work: Workflow, values: Values) -> None:
    """A block's weights are brought by a hook on it."""
    work.model = work.add("OneGraphTestBlockHook", model=work.model)


@_kind("latent", served=_always)
def picture(work: Workflow, values: Values) -> None:
    """A latent that is not empty."""
    assert isinstance(work, TransformerWorkflow)
    work.latent = work.empty("picture")


def _noise_mask(work: Workflow) -> None:
    assert isinstance(work, TransformerWorkflow)
    mask = work.mask(0.1, 0.1, 0.7, 0.8, 24)
    work.latent = work.add("SetLatentNoiseMask", samples=work.empty("picture"), mask=mask)


@_kind("latent", served=_always)
def inpainted(work: Workflow, values: Values) -> None:
    _noise_mask(work)


@_kind("latent", served=_always)
def differential_inpainted(work: Workflow, values: Values) -> None:
    work.model = work.add("DifferentialDiffusion", model=work.model, strength=1.0)
    _noise_mask(work)


@_kind("sampling", served=_always)
def two_experts(work: Workflow, values: Values) -> None:
    """One model for the first half of the steps, another of its architecture for the rest."""
    s = work.settings
    common = {
        "noise_seed": s.noise, "steps": s.steps + 2, "cfg": s.cfg, "sampler_name": s.sampler,
        "scheduler": s.scheduler, "positive": work.positive, "negative": work.negative,
    }  # fmt: skip
    half = work.add(
        "KSamplerAdvanced", model=work.model, add_noise="enable", latent_image=work.latent, start_at_step=0,
        end_at_step=2, return_with_leftover_noise="enable", **common,
    )  # fmt: skip
    second = work.compile_model(work.second_model())
    work.latent = work.add(
        "KSamplerAdvanced", model=second, add_noise="disable", latent_image=half, start_at_step=2, end_at_step=10000,
        return_with_leftover_noise="disable", **common,
    )  # fmt: skip


@_kind("second pass", lambda rng: {"batch": rng.choice([1, 2]), "words": rng.choice([5, 120])}, _always)
def another_size_after(work: Workflow, values: Values) -> None:
    """A second sampling of another size with another text, whose image is saved as well."""
    assert isinstance(work, TransformerWorkflow)
    first, s = work.latent, work.settings
    sizes = {"width": s.height + 32, "height": s.width, "batch_size": values["batch"]}
    work.latent = work.add("OneGraphTestTransformerLatent", family=s.family, content="empty", **sizes)
    work.positive = work.text("tower", values["words"])
    work.sample(denoise=1.0, seed=s.noise + 1)
    work.save(first)
