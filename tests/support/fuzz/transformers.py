"""What a random workflow with a diffusion transformer can consist of, besides what others consist of, too."""

from __future__ import annotations

from random import Random
from typing import Any

from ..scenes.kinds import always, between, kind, never, patch
from ..scenes.workflow import TransformerWorkflow, Values, Workflow

# Of `ingredients`.
OF_TRANSFORMERS = frozenset({
    "lora", "bypass_lora", "merge", "add_difference", "RescaleCFG", "Mahiro", "TCFG", "CFGZeroStar", "CFGNorm",
    "FreSca", "Epsilon Scaling", "APG", "CFGOverride", "compiled_again", "perp_neg", "EasyCache", "LazyCache",
    "combine", "concat", "average", "zero_out", "area", "area_in_percent", "mask", "timesteps", "hook_lora",
    "masked_noise", "guider_cfg", "guider_basic", "guider_dual_cfg", "guider_perp_neg", "guider_dual_model",
    "sampler_custom", "other_lora_after", "plain_sibling_after",
})  # fmt: skip


def _layers(rng: Random) -> dict[str, Any]:
    return {
        "double_layers": rng.choice(["0", "1", "0, 1"]), "single_layers": rng.choice(["", "1", "0, 2"]),
        "start_percent": 0.0, "end_percent": rng.choice([0.6, 1.0]),
    }  # fmt: skip


patch(
    "SkipLayerGuidanceDiT",
    lambda rng: {**_layers(rng), "scale": between(rng, 1, 3), "rescaling_scale": rng.choice([0.0, 0.5])},
    always,
    of_transformers=True,
)
patch("SkipLayerGuidanceDiTSimple", _layers, always, of_transformers=True)
patch("NAGuidance", lambda rng: {"nag_scale": 5.0, "nag_alpha": 0.5, "nag_tau": 1.5}, never, of_transformers=True)
patch("ModelSamplingAuraFlow", lambda rng: {"shift": between(rng, 1, 6)}, always, of_transformers=True)
patch("OneGraphTestWrapper", lambda rng: {"factor": between(rng, 0.7, 0.9)}, always, of_transformers=True)
patch("OneGraphTestAttentionOverride", lambda rng: {"factor": between(rng, 0.5, 0.8)}, never, of_transformers=True)
patch(
    "OneGraphTestTransformerPatch",
    lambda rng: {
        "place": rng.choice(["post_input", "double_block", "replaced", "skipped", "attn1_patch", "weights moved"]),
        "number": rng.choice([0, 1]),
    },
    never,
    of_transformers=True,
)


@kind("model", weight=0.7, traces="stays", of_transformers=True)
def block_hook(work: Workflow, values: Values) -> None:
    """A block's weights are brought by a hook on it."""
    work.model = work.add("OneGraphTestBlockHook", model=work.model)


@kind("latent", served=always, of_transformers=True)
def picture(work: Workflow, values: Values) -> None:
    """A latent that is not empty."""
    assert isinstance(work, TransformerWorkflow)
    work.latent = work.empty("picture")


def _noise_mask(work: Workflow) -> None:
    assert isinstance(work, TransformerWorkflow)
    mask = work.mask(0.1, 0.1, 0.7, 0.8, 24)
    work.latent = work.add("SetLatentNoiseMask", samples=work.empty("picture"), mask=mask)


@kind("latent", served=always, of_transformers=True)
def inpainted(work: Workflow, values: Values) -> None:
    _noise_mask(work)


@kind("latent", served=always, of_transformers=True)
def differential_inpainted(work: Workflow, values: Values) -> None:
    work.model = work.add("DifferentialDiffusion", model=work.model, strength=1.0)
    _noise_mask(work)


@kind("sampling", served=always, of_transformers=True)
def two_experts(work: Workflow, values: Values) -> None:
    """One model for the first half of the steps, another of its architecture for the rest."""
    second = work.compile_model(work.second_model())
    work.sample_in_turns(second, work.settings.steps + 2, 2)


@kind(
    "second pass",
    lambda rng: {"batch": rng.choice([1, 2]), "words": rng.choice([5, 120])},
    always,
    of_transformers=True,
)
def another_size_after(work: Workflow, values: Values) -> None:
    """A second sampling of another size with another text, whose image is saved as well."""
    assert isinstance(work, TransformerWorkflow)
    first, s = work.latent, work.settings
    sizes = {"width": s.height + 32, "height": s.width, "batch_size": values["batch"]}
    work.latent = work.add("OneGraphTestTransformerLatent", family=s.family, content="empty", **sizes)
    work.positive = work.text("tower", values["words"])
    work.sample(denoise=1.0, seed=s.noise + 1)
    work.save(first)
