"""Which family gets what, and what is promised of its calls of blocks."""

from __future__ import annotations

from collections.abc import Iterator

from ..models.dits import DITS
from ..scenes.judge import eager, partly
from ..scenes.sampling import settings
from . import around, inside, steering, weights
from .around import node
from .case import Case, one

SHORT = ("flux", "z-image")  # in `make test`
_SIZES_ALONE = ("wan 2.1 i2v, clip vision", "minimax h3 i2v")  # of which `make test` has one case each
_VIDEO = ("wan 2.1 t2v", "wan 2.1 i2v", "wan 2.2 5B", "minimax h3", "ltx 2", "hunyuan video 1.5")
_ONE_AT_A_TIME = ("minimax h3", "minimax h3 i2v")  # take batches of one


def _of_every_family(family: str) -> Iterator[Case]:
    full = {"full": family not in SHORT}
    yield Case(family, "LoRA on, stronger, off", ((weights.lora(0.6),), (weights.lora(1.2),), ()), **full)
    yield one(family, "LoRA after the node", weights.lora(-0.8), node="before", **full)
    yield one(family, "another model of its architecture", weights.another_model, **full)
    sizes = ((settings(height=24, width=16),), (settings(height=12, width=40),))
    yield Case(family, "two other sizes", sizes, changes=False, full=family not in (*SHORT, *_SIZES_ALONE))
    if family not in _ONE_AT_A_TIME:
        yield Case(family, "batches of 2 and 3", ((settings(batch=2),), (settings(batch=3),)), changes=False, **full)
    prompts = ((settings(tokens=(77, 9)),), (settings(tokens=(30, 226)),))
    yield Case(family, "prompts of 30 to 226 tokens", prompts, **full)
    yield Case(family, "CFG 1, then 5", ((settings(cfg=1.0),), (settings(cfg=5.0),)), **full)


_SIMILAR = {"codes": (), "changes": False}

_FLUX: tuple[Case, ...] = (
    one("flux", "two LoRAs around the node", weights.lora(0.5), weights.lora(0.5, seed=7), node="before"),
    one("flux", "LoRA by a hook, on one text", weights.hook_lora(1.0)),
    one("flux", "bypass LoRA", weights.bypass_lora(0.8), **eager("injection")),
    one("flux", "merged with another model", weights.merged(0.4)),
    one("flux", "blocks merged, one ratio each", inside.block_merge),
    one("flux", "a layer exchanged by an object patch", inside.object_patch, **eager("object_patch")),
    one("flux", "Redux", steering.style(29)),
    one("flux", "Redux, stronger", steering.style(29, 2.0)),
    one("flux", "Redux, two pictures", steering.style(29), steering.style(7)),
    one("flux", "Redux as a bias of attention", steering.style(29, 0.3, "attn_bias"), **partly("no_graph")),
    one("flux", "USO style reference", inside.style_reference, settings(cfg=1.0)),
    one("flux", "ControlNet", steering.flux_controlnet(1.0)),
    one("flux", "ControlNet, weaker", steering.flux_controlnet(0.3), settings(height=24)),
    one("flux", "another pack's ControlNet", steering.residuals(128)),
    one("flux", "ControlNet and LoRA", steering.flux_controlnet(1.0), weights.lora(1.0)),
    one("flux", "a second text in an area", steering.combined(
        9, module="nodes", name="ConditioningSetArea", width=64, height=64, x=64, y=0, strength=1.2)),
    one("flux", "a second text in a mask", steering.masked_text("default")),
    one("flux", "a second text in a mask's bounds", steering.masked_text("mask bounds")),
    one("flux", "two texts combined", steering.combined(21)),
    one("flux", "another text in the beginning", steering.by_timestep),
    one("flux", "inpainting mask", steering.inpainted()),
    one("flux", "differential diffusion", steering.inpainted(0.6),
        node("nodes_differential_diffusion", "DifferentialDiffusion")),
    one("flux", "image to image", steering.image_to_image),
    one("flux", "two references", steering.references(2)),
    one("flux", "two references by index", steering.references(2, "index")),
    one("flux", "block replaced", inside.replaced_block("double_block", 1)),
    one("flux", "block replaced, after the node", inside.replaced_block("single_block", 1), node="before"),
    one("flux", "block skipped", inside.skipped_block("single_block", 1)),
    one("flux", "skip layer guidance", inside.skip_layers("1", "0, 2")),
    one("flux", "skip layer guidance, simple", inside.skip_layers_simple("1", "1")),
    one("flux", "normalized attention guidance", inside.normalized_attention, **eager("block_option")),
    one("flux", "perturbed attention", around.perturbed_attention),
    one("flux", "attention override", inside.attention_override),
    one("flux", "attn1 patch", inside.attention_patch("attn1_patch"), **eager("block_option")),
    one("flux", "attn1 output patch", inside.attention_patch("attn1_output_patch"), **eager("block_option")),
    one("flux", "post-input patch", inside.between("post_input")),
    one("flux", "post-input patch in place", inside.in_place("post_input")),
    one("flux", "blocks swapped by hooks", inside.swapped_by_hooks, changes=False, **eager("forward_hook")),
    one("flux", "weights moved after the input", inside.swapped_between_blocks("post_input")),
    one("flux", "one block with a hook", inside.one_block_hooked, **partly("forward_hook")),
    one("flux", "first block cache", inside.first_block_cache("double_block", 2)),
    one("flux", "forward replaced by a step cache", inside.forward_replaced("forward_orig")),
    one("flux", "EasyCache", around.easy_cache),
    one("flux", "EasyCache after the node", around.easy_cache, node="before"),
    one("flux", "LazyCache", around.lazy_cache),
    one("flux", "context windows over a batch", around.windows_of_a_batch),
    one("flux", "RescaleCFG", node("nodes_model_advanced", "RescaleCFG", multiplier=1.0), settings(cfg=12.0)),
    one("flux", "CFG-Zero*", node("nodes_cfg", "CFGZeroStar"), settings(cfg=8.0)),
    one("flux", "adaptive projected guidance", node("nodes_apg", "APG", eta=1.0, norm_threshold=5.0, momentum=-0.5)),
    one("flux", "PerpNeg", around.perp_neg),
    one("flux", "PerpNeg guider", around.perp_neg_guider),
    one("flux", "basic guider", around.basic_guider),
    one("flux", "dual CFG guider", around.dual_guider),
    one("flux", "two models in one step", around.dual_model),
    one("flux", "another shift of noise", settings(steps=3), node(
        "nodes_model_advanced", "ModelSamplingFlux", max_shift=1.15, base_shift=0.5, width=2048, height=2048)),
    one("flux", "ancestral sampler", settings(sampler="euler_ancestral", steps=3)),
    one("flux", "multistep sampler", settings(sampler="dpmpp_2m", scheduler="beta", steps=4)),
    one("flux", "res_multistep sampler", settings(sampler="res_multistep", steps=4)),
    one("flux", "another pack's wrapper", around.another_wrapper),
    one("flux", "a wrapper of the diffusion model", around.diffusion_wrapper),
)  # fmt: skip

_Z: tuple[Case, ...] = (
    one("z-image", "Fun ControlNet", inside.fun_control(1.0)),
    one("z-image", "Fun ControlNet, weaker, with a LoRA", inside.fun_control(0.4), weights.lora(1.0)),
    one("z-image", "Fun ControlNet 2 with a mask", inside.fun_control_2),
    one("z-image", "patch after noise refiners", inside.in_place("noise_refiner")),
    one("z-image", "patch after each block", inside.in_place("double_block")),
    one("z-image", "shift of AuraFlow", settings(steps=3),
        node("nodes_model_advanced", "ModelSamplingAuraFlow", shift=6.0)),
    one("z-image", "RenormCFG", node("nodes_lumina2", "RenormCFG", cfg_trunc=100.0, renorm_cfg=0.7), settings(cfg=9.0)),
    one("z-image", "inpainting mask", steering.inpainted()),
    one("z-image", "a second text in an area", steering.combined(
        9, module="nodes", name="ConditioningSetArea", width=128, height=64, x=0, y=64, strength=1.2)),
    one("z-image", "EasyCache", around.easy_cache),
    one("z-image", "attention override", inside.attention_override, calls_attention=True, full=True),
    one("z-image", "perturbed attention", around.perturbed_attention, calls_attention=True, full=True),
    one("z-image", "blocks swapped by hooks", inside.swapped_by_hooks, changes=False, **eager("forward_hook")),
    one("z-image", "one block with a hook", inside.one_block_hooked, **partly("forward_hook")),
    one("z-image", "a layer exchanged by an object patch", inside.object_patch, **eager("object_patch")),
    one("z-image", "bypass LoRA", weights.bypass_lora(0.8), **eager("injection")),
)  # fmt: skip

_QWEN: tuple[Case, ...] = (
    one("qwen-image", "DiffSynth ControlNet", inside.diffsynth(1.0)),
    one("qwen-image", "DiffSynth ControlNet, weaker, with a LoRA", inside.diffsynth(0.4), weights.lora(1.0)),
    one("qwen-image", "another pack's ControlNet", steering.residuals(128, ("input",))),
    one("qwen-image", "skip layer guidance", inside.skip_layers("0, 2")),
    one("qwen-image", "block replaced", inside.replaced_block("double_block", 1)),
    one("qwen-image", "first block cache", inside.first_block_cache("double_block", 3)),
    one("qwen-image", "attention override", inside.attention_override, calls_attention=True),
    one("qwen-image", "patch after each block", inside.between("double_block")),
    one("qwen-image", "CFGNorm", node("nodes_cfg", "CFGNorm", strength=1.0), settings(cfg=8.0)),
    one("qwen-image", "inpainting mask", steering.inpainted()),
    one("qwen-image", "EasyCache", around.easy_cache),
    one("qwen-image", "three references", steering.references(3)),
    one("qwen-image-edit 2511", "LoRA and two references", weights.lora(1.0),
        steering.references(2, "index_timestep_zero")),
    one("qwen-image-edit", "block skipped", inside.skipped_block("double_block", 1)),
)  # fmt: skip

_OTHERS: tuple[Case, ...] = (
    one("flux kontext", "LoRA and ControlNet", weights.lora(1.0), steering.residuals(128)),
    one("flux fill", "inpainting mask", steering.inpainted()),
    one("flux schnell", "four steps without CFG", settings(steps=4, cfg=1.0)),
    one("flux 2", "two references", steering.references(2)),
    one("flux 2", "reference with timestep zero", steering.references(1, "index_timestep_zero"),
        **partly("no_graph")),
    one("flux 2", "skip layer guidance", inside.skip_layers("1", "1")),
    one("flux 2", "attention override", inside.attention_override, **eager("no_graph")),
    one("flux 2", "KV cache of references", steering.references(1), inside.kv_cache, settings(steps=3), changes=False,
        **eager("block_option", "no_graph")),
    one("krea 2", "two references", steering.references(2)),
    one("krea 2", "post-input patch", inside.between("post_input")),
    one("krea 2", "attention override", inside.attention_override, calls_attention=True),
    one("wan 2.1 t2v", "two experts in one sampling", weights.two_experts),
    one("wan 2.1 t2v", "two experts, a LoRA each", weights.two_experts_with_loras),
    one("wan 2.1 t2v", "more frames", settings(frames=7), changes=False),
    one("wan 2.1 t2v", "one frame", settings(frames=1), changes=False),
    one("wan 2.1 t2v", "context windows", around.context_windows),
    one("wan 2.1 t2v", "camera control", inside.camera_control),
    one("wan 2.1 t2v", "block skipped", inside.skipped_block("double_block", 1)),
    one("wan 2.1 t2v", "skip layer guidance", inside.skip_layers("1")),
    one("wan 2.1 t2v", "first block cache", inside.first_block_cache("double_block", 3)),
    one("wan 2.1 t2v", "forward replaced by a step cache", inside.forward_replaced("forward_orig")),
    one("wan 2.1 t2v", "EasyCache", around.easy_cache),
    one("wan 2.1 t2v", "LazyCache", around.lazy_cache),
    one("wan 2.1 t2v", "attn1 patch", inside.attention_patch("attn1_patch"), **eager("block_option")),
    one("wan 2.1 t2v", "attn2 patch", inside.attention_patch("attn2_patch"), **eager("block_option")),
    one("wan 2.1 t2v", "attention override", inside.attention_override, calls_attention=True),
    one("wan 2.1 t2v", "shift of SD3", node("nodes_model_advanced", "ModelSamplingSD3", shift=9.0), settings(steps=3)),
    one("wan 2.1 t2v", "inpainting mask", steering.inpainted()),
    one("wan 2.1 i2v", "first frame", steering.image_to_video),
    one("wan 2.1 i2v", "first frame, two experts", steering.image_to_video, weights.two_experts),
    one("wan 2.2 5B", "first frame kept, with timesteps of its own", steering.first_frame_kept, settings(steps=3),
        **eager("no_graph")),
    one("wan 2.2 5B", "context windows", around.context_windows),
    one("ltx 2", "first frame kept, with timesteps of its own", steering.first_frame_kept, settings(steps=3),
        **eager("no_graph")),
    one("ltx 2", "attention override", inside.attention_override, calls_attention=True),
    one("minimax h3", "attention override", inside.attention_override, calls_attention=True),
    one("anima", "attention override", inside.attention_override, **eager("no_graph")),
    one("anima", "inpainting mask", steering.inpainted()),
    one("chroma", "skip layer guidance", inside.skip_layers("1", "1")),
    one("chroma", "another pack's ControlNet", steering.residuals(128)),
    one("chroma", "block replaced", inside.replaced_block("double_block", 1)),
    one("hunyuan video 1.5", "block replaced", inside.replaced_block("double_block", 1)),
    one("hunyuan video 1.5", "attention override", inside.attention_override, calls_attention=True),
    one("sd 3.5", "skip layer guidance", inside.skip_layers_sd3),
    one("sd 3.5", "another pack's ControlNet", steering.residuals(256, ("output",))),
    # The host calls a replaced block without an argument that it gives others: another kind of block.
    one("sd 3.5", "block replaced", inside.replaced_block("double_block", 1), **partly("no_graph")),
    one("sd 3.5", "attention override", inside.attention_override, calls_attention=True),
    one("sd 3.5", "inpainting mask", steering.inpainted()),
)  # fmt: skip


def _all() -> Iterator[Case]:
    from dataclasses import replace

    added = (*_FLUX, *_Z, *(replace(case, full=True) for case in (*_QWEN, *_OTHERS)))
    for family in DITS:
        own = (case for case in added if case.family == family)
        for case in (*_of_every_family(family), *own):
            if family == "chroma":  # two of its blocks are of a few operations only, for which nothing is compiled
                case = replace(case, promised="some", codes=tuple(sorted({*case.codes, "no_graph"})))
            yield case


CASES: tuple[Case, ...] = tuple(_all())
