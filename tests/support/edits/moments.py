"""Who changes a live model, at which of its calls: places of the generated product of edits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..scenes.places import KNOWN, UNKNOWN, Act, GuidedSampling, Place, around, hook, in_thread, once, wrapper_of

AT = {"before a run": 1, "between steps": 2}


def _module(sampling: GuidedSampling) -> Any:
    return sampling.patcher.model.diffusion_model


def _hook(path: str) -> Place:
    return lambda sampling, act, at: hook(sampling.undo, _module(sampling).get_submodule(path), act, at)


def _around(owner: Callable[[GuidedSampling], Any], name: str) -> Place:
    return lambda sampling, act, at: around(sampling.undo, owner(sampling), name, act, at)


def foreign_child(sampling: GuidedSampling, act: Act, at: int) -> None:
    """A pack's module in place of one of the host's."""
    module, changed = _module(sampling), once(act, at)
    before = module.img_in

    class Foreign(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self._parameters = before._parameters

        def forward(self, *args: Any) -> Any:
            changed()
            return before(*args)

    module._modules["img_in"] = Foreign()
    sampling.undo.append(lambda: module._modules.update(img_in=before))


def outer_patch(sampling: GuidedSampling, act: Act, at: int) -> None:
    """A patch of the host's kind, before the blocks."""
    changed = once(act, at)

    def patch(args: Any) -> Any:
        changed()
        return args

    sampling.patcher.set_model_patch(patch, "post_input")


def block_replaced(sampling: GuidedSampling, act: Act, at: int) -> None:
    """A pack's function in a block's place, which calls the block: between two blocks."""
    changed = once(act, at)

    def function(args: Any, extra: Any) -> Any:
        changed()
        return extra["original_block"](args)

    sampling.patcher.set_model_patch_replace(function, "dit", "single_block", 0)


def _samplers(sampling: GuidedSampling) -> Any:
    import comfy.samplers

    return comfy.samplers


def _conditioning(sampling: GuidedSampling) -> Any:
    """The host's class for what a prompt consists of."""
    import comfy.conds

    return comfy.conds.CONDRegular


def _threads(place: Place) -> Place:
    """Another thread, while what is at a place waits for it; in the mode in which the weights were made."""
    return lambda sampling, act, at: place(sampling, in_thread(torch.inference_mode()(act)), at)


OF_ALL: dict[str, Place] = {
    "hook on the model": _hook(""),
    "forward of the instance": _around(_module, "_forward"),
    "apply_model wrapper": wrapper_of("apply_model"),
    "diffusion_model wrapper": wrapper_of("diffusion_model"),
    "cfg_function": _around(_samplers, "cfg_function"),
    "process_cond": _around(_conditioning, "process_cond"),
    "another thread": _threads(_hook("")),
}
OF_BLOCKS: dict[str, Place] = {
    **OF_ALL,
    "hook on a child": _hook("img_in"),  # a layer that no graph has in it
    "hook on a late child": _hook("final_layer"),
    "hook on a block": _hook("single_blocks.0"),
    "foreign child": foreign_child,
    "forward_orig of the instance": _around(_module, "forward_orig"),
    "post_input patch": outer_patch,
    "block in a function": block_replaced,
    "another thread between blocks": _threads(block_replaced),
}
AFTER_A_CALL: dict[str, Place] = {
    name: {**KNOWN, **UNKNOWN}[name]
    for name in ("callback", "post-CFG function", "guider's predict_noise", "guider's inner_sample", "previewer")
}
