"""Who changes a live model, at which of its calls: places of the generated product of edits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from .places import KNOWN, UNKNOWN, Act, Place, Sampling, once

Moment = Callable[[Sampling, Act, int], None]  # acts at the call of that number

AT = {"before a run": 1, "between steps": 2}


def _module(sampling: Sampling) -> Any:
    return sampling.patcher.model.diffusion_model


def model_hook(sampling: Sampling, act: Act, at: int) -> None:
    sampling.undo.append(_module(sampling).register_forward_pre_hook(once(act, at)).remove)


def child_hook(sampling: Sampling, act: Act, at: int) -> None:
    """On a layer that no graph has in it."""
    sampling.undo.append(_module(sampling).img_in.register_forward_pre_hook(once(act, at)).remove)


def late_child_hook(sampling: Sampling, act: Act, at: int) -> None:
    sampling.undo.append(_module(sampling).final_layer.register_forward_pre_hook(once(act, at)).remove)


def block_hook(sampling: Sampling, act: Act, at: int) -> None:
    """Between blocks."""
    sampling.undo.append(_module(sampling).single_blocks[0].register_forward_pre_hook(once(act, at)).remove)


def foreign_child(sampling: Sampling, act: Act, at: int) -> None:
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


def _instance_method(name: str) -> Moment:
    """As PuLID does."""

    def place(sampling: Sampling, act: Act, at: int) -> None:
        module, changed = _module(sampling), once(act, at)
        own = getattr(module, name)

        def method(*args: Any, **kwargs: Any) -> Any:
            changed()
            return own(*args, **kwargs)

        setattr(module, name, method)
        sampling.undo.append(lambda: delattr(module, name))

    return place


def _wrapper(kind: str) -> Moment:
    def place(sampling: Sampling, act: Act, at: int) -> None:
        changed = once(act, at)

        def wrapper(executor: Any, *args: Any, **kwargs: Any) -> Any:
            changed()
            return executor(*args, **kwargs)

        sampling.patcher.add_wrapper_with_key(kind, "a pack", wrapper)

    return place


def outer_patch(sampling: Sampling, act: Act, at: int) -> None:
    """A patch of the host's kind, before the blocks."""
    changed = once(act, at)

    def patch(args: Any) -> Any:
        changed()
        return args

    sampling.patcher.set_model_patch(patch, "post_input")


def block_replaced(sampling: Sampling, act: Act, at: int) -> None:
    """A pack's function in a block's place, which calls the block: between two blocks."""
    changed = once(act, at)

    def function(args: Any, extra: Any) -> Any:
        changed()
        return extra["original_block"](args)

    sampling.patcher.set_model_patch_replace(function, "dit", "single_block", 0)


def cfg_function(sampling: Sampling, act: Act, at: int) -> None:
    """The host's own function is another one."""
    import comfy.samplers

    changed, own = once(act, at), comfy.samplers.cfg_function

    def function(*args: Any, **kwargs: Any) -> Any:
        changed()
        return own(*args, **kwargs)

    comfy.samplers.cfg_function = function
    sampling.undo.append(lambda: setattr(comfy.samplers, "cfg_function", own))


def processed_conditioning(sampling: Sampling, act: Act, at: int) -> None:
    """A method of the host's class for what a prompt consists of."""
    import comfy.conds

    changed, own = once(act, at), comfy.conds.CONDRegular.process_cond

    def process(self: Any, *args: Any, **kwargs: Any) -> Any:
        changed()
        return own(self, *args, **kwargs)

    comfy.conds.CONDRegular.process_cond = process
    sampling.undo.append(lambda: setattr(comfy.conds.CONDRegular, "process_cond", own))


def threads_hook(sampling: Sampling, act: Act, at: int) -> None:
    """Another thread, while a hook on the model waits for it."""
    model_hook(sampling, _in_thread(act), at)


def threads_patch(sampling: Sampling, act: Act, at: int) -> None:
    """Another thread, between two blocks."""
    block_replaced(sampling, _in_thread(act), at)


def _in_thread(act: Act) -> Act:
    def in_thread() -> None:
        with torch.inference_mode():  # as the weights were made in
            act()

    def acting() -> None:
        thread = threading.Thread(target=in_thread)
        thread.start()
        thread.join()

    return acting


def _at(place: Place) -> Moment:
    """A place that knows its moment: after the first call."""
    return lambda sampling, act, at: place(sampling, act)


OF_ALL: dict[str, Moment] = {
    "hook on the model": model_hook,
    "forward of the instance": _instance_method("_forward"),
    "apply_model wrapper": _wrapper("apply_model"),
    "diffusion_model wrapper": _wrapper("diffusion_model"),
    "cfg_function": cfg_function,
    "process_cond": processed_conditioning,
    "another thread": threads_hook,
}
OF_BLOCKS: dict[str, Moment] = {
    **OF_ALL,
    "hook on a child": child_hook,
    "hook on a late child": late_child_hook,
    "hook on a block": block_hook,
    "foreign child": foreign_child,
    "forward_orig of the instance": _instance_method("forward_orig"),
    "post_input patch": outer_patch,
    "block in a function": block_replaced,
    "another thread between blocks": threads_patch,
}
AFTER_A_CALL: dict[str, Moment] = {
    name: _at({**KNOWN, **UNKNOWN}[name])
    for name in ("callback", "post-CFG function", "guider's predict_noise", "guider's inner_sample", "previewer")
}
