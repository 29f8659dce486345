"""What steers the model: ControlNet, areas, masks, inpainting, long prompts."""

from __future__ import annotations

from ..scenes.workflow import Ingredient
from .case import Case, flow, one, part

_CONTROL, _TEXTS, _INPAINT = "ControlNet", "Texts", "Inpainting and edits"
_SD15 = {"family": "sd15"}


def _net(strength: float = 1.0, start: float = 0.0, end: float = 1.0) -> Ingredient:
    return part("controlnet", strength=strength, start_percent=start, end_percent=end)


_HOLE = {"left": 0.25, "top": 0.25, "width": 0.5, "height": 0.5, "feather": 0}
_IGNORED = ("ComfyUI_TensorRT #10", "onediff #997")

CASES: tuple[Case, ...] = (
    one(_CONTROL, "one", _net(), reports=_IGNORED),
    one(_CONTROL, "one, SD 1.5", _net(), settings=_SD15, full=True),
    one(_CONTROL, "two chained", _net(), _net(0.6)),
    one(_CONTROL, "strength 0.5", _net(0.5)),
    one(_CONTROL, "in the first half of the steps", _net(end=0.5)),
    one(_CONTROL, "not in the first steps", _net(1.5, start=0.2), settings={"steps": 5}),
    one(_CONTROL, "older node", part("controlnet_everywhere", strength=0.8)),
    one(_CONTROL, "on the positive text alone", part("controlnet_on_positive", strength=0.8)),
    one(_CONTROL, "with a LoRA", _net(), part("lora", number=0, strength=1.0), node=1),
    one(_CONTROL, "another size and batch", _net(), settings={"width": 192, "height": 64, "batch": 3}),
    Case("strength changed, then removed", _CONTROL, (flow(_net()), flow(_net(0.4)), flow()), reports=_IGNORED),
    one(_CONTROL, "one, compiled itself", part("controlnet_compiled", strength=1.0)),
    one(_CONTROL, "union type set", part("controlnet_of_type", strength=1.0)),
    one(_CONTROL, "T2I adapter", part("t2i_adapter", strength=1.0), full=True),
    one(_TEXTS, "154 tokens", settings={"positive_words": 100}, reports=("ComfyUI #6415",)),
    one(_TEXTS, "231 tokens", settings={"positive_words": 200, "negative_words": 100}, reports=("ComfyUI #6415",)),
    one(_TEXTS, "385 tokens", settings={"positive_words": 310, "negative_words": 310}),
    one(_TEXTS, "combined", part("combine", words=3)),
    one(_TEXTS, "combined, one of 154 tokens", part("combine", words=100)),
    one(_TEXTS, "concatenated", part("concat", words=3)),
    one(_TEXTS, "average", part("average", conditioning_to_strength=0.5)),
    one(_TEXTS, "negative zeroed out", part("zero_out")),
    one(_TEXTS, "by timestep", part("timesteps", switch=0.5)),
    one(_TEXTS, "in an area", part("area", left=0.25, top=0.0, width=0.5, height=1.0, strength=1.2)),
    one(_TEXTS, "in an area, percent", part("area_in_percent", left=0.5, top=0.0, width=0.5, height=1.0)),
    one(_TEXTS, "in a mask", part("mask", left=0.25, top=0.25, width=0.5, height=0.5, strength=1.5, bounds="default")),
    one(_TEXTS, "in a mask's bounds, and by timestep", part("mask", left=0.0, top=0.0, width=0.5, height=0.5,
        strength=1.5, bounds="mask bounds"), part("timesteps", switch=0.5)),
    one(_INPAINT, "noise mask", part("inpaint_noise_mask", **_HOLE)),
    one(_INPAINT, "VAE Encode for inpainting", part("inpaint_encode", **_HOLE)),
    one(_INPAINT, "InpaintModelConditioning", part("inpaint_conditioning", **_HOLE)),
    one(_INPAINT, "inpainting model of nine channels", part("inpaint_conditioning", **_HOLE),
        settings={"family": "inpaint"}, changes=True),
    one(_INPAINT, "InstructPix2Pix, eight channels", part("instruct_pix2pix"), settings={"family": "ip2p"}, full=True),
)  # fmt: skip
