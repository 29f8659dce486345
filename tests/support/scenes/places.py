"""Where code of other packs runs in a sampling: each place makes an edit between two of its calls."""

from __future__ import annotations

import sysconfig
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

Act = Callable[[], None]
Undo = Callable[[], Any]


@dataclass
class GuidedSampling:
    """One sampling by a guider, as a node sets it up.

    Attributes:
        patcher: a clone of the MODEL.
        guider: made when all else is set.
        options: put into the guider's own model_options.
        undo: called when the sampling is over.
    """

    patcher: Any
    sigmas: torch.Tensor
    conditioning: tuple[Any, Any]
    noise: torch.Tensor
    cfg: float = 1.0
    sampler: Any = None
    callback: Any = None
    guider: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    undo: list[Undo] = field(default_factory=list)

    def run(self) -> torch.Tensor:
        """The latents."""
        try:
            return self._run()
        finally:
            for undo in reversed(self.undo):
                undo()

    def _run(self) -> torch.Tensor:
        import comfy.model_patcher
        import comfy.samplers

        guider = (self.guider or comfy.samplers.CFGGuider)(self.patcher)
        guider.set_conds(*self.conditioning)
        guider.set_cfg(self.cfg)
        if self.options:
            guider.model_options = {
                **comfy.model_patcher.create_model_options_clone(guider.model_options),
                **self.options,
            }
        sampler = self.sampler or comfy.samplers.sampler_object("euler")
        with torch.inference_mode():
            result: torch.Tensor = guider.sample(
                self.noise, torch.zeros_like(self.noise), sampler, self.sigmas,
                callback=self.callback, disable_pbar=True, seed=1,
            )  # fmt: skip
        return result


Place = Callable[..., None]  # (sampling, act, at=2) acts before the call of that number, or after the one before it


def once(act: Act, at: int = 1) -> Callable[..., Any]:
    """A function that acts when it is called for that time; it returns what a post-CFG function is to return."""
    calls: list[int] = []

    def function(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == at:
            act()
        return args[0]["denoised"] if args and isinstance(args[0], dict) and "denoised" in args[0] else None

    return function


def hook(undo: list[Undo], module: torch.nn.Module, act: Act, at: int) -> None:
    """A hook before a module's calls."""
    undo.append(module.register_forward_pre_hook(once(act, at)).remove)


def around(undo: list[Undo], owner: Any, name: str, act: Act, at: int) -> None:
    """A function in the place of another one, which it calls, as PuLID does."""
    changed, own = once(act, at), getattr(owner, name)

    def function(*args: Any, **kwargs: Any) -> Any:
        changed()
        return own(*args, **kwargs)

    patching = patch.object(owner, name, function)
    patching.start()
    undo.append(patching.stop)


def in_thread(act: Act) -> Act:
    """The same in another thread, for which this one waits."""

    def acting() -> None:
        thread = threading.Thread(target=act)
        thread.start()
        thread.join()

    return acting


def library_function(
    act: Act, source: str = "def function(*args, **kwargs):\n    return inner(*args, **kwargs)\n"
) -> Any:
    """The same from a file of the environment's libraries, as packs have that are installed by pip."""
    file = Path(sysconfig.get_paths()["purelib"]) / "a_pack" / "nodes.py"
    # What acts is defined in the library's file as well: frames under `inner` are ours, but gone when the call is made.
    space: dict[str, Any] = {"inner": once(act), "torch": torch}
    exec(compile(source, str(file), "exec"), space)  # noqa: S102
    return space["function"]


# Places that the pack knows for code of others --------------------------------------------------------------------


def function_wrapper(sampling: GuidedSampling, act: Act, at: int = 2) -> None:
    changed = once(act, at)

    def wrapper(apply_model: Any, arguments: dict[str, Any]) -> Any:
        changed()
        return apply_model(arguments["input"], arguments["timestep"], **arguments["c"])

    sampling.patcher.set_model_unet_function_wrapper(wrapper)


def callback(sampling: GuidedSampling, act: Act, at: int = 2) -> None:
    sampling.callback = once(act, at - 1)


def post_cfg(sampling: GuidedSampling, act: Act, at: int = 2) -> None:
    sampling.patcher.set_model_sampler_post_cfg_function(once(act, at - 1))


def sampler_function(sampling: GuidedSampling, act: Act, at: int = 2) -> None:
    import comfy.k_diffusion.sampling
    import comfy.samplers

    def sample(model: Any, x: Any, sigmas: Any, **given: Any) -> Any:
        first = comfy.k_diffusion.sampling.sample_euler(model, x, sigmas[:2], **given)
        act()
        return comfy.k_diffusion.sampling.sample_euler(model, first, sigmas[1:], **given)

    sampling.sampler = comfy.samplers.KSAMPLER(sample)


def predict_noise(sampling: GuidedSampling, act: Act, at: int = 2) -> None:
    import comfy.samplers

    changed = once(act, at - 1)

    class Guider(comfy.samplers.CFGGuider):  # type: ignore[misc]
        def predict_noise(self, *args: Any, **kwargs: Any) -> Any:
            found = super().predict_noise(*args, **kwargs)
            changed()
            return found

    sampling.guider = Guider


def wrapper_of(kind: str) -> Place:
    """The host's own way to wrap calls of the model or of its module."""

    def place(sampling: GuidedSampling, act: Act, at: int = 2) -> None:
        changed = once(act, at)

        def wrapper(executor: Any, *args: Any, **kwargs: Any) -> Any:
            changed()
            return executor(*args, **kwargs)

        sampling.patcher.add_wrapper_with_key(kind, "a pack", wrapper)

    return place


# Places where it was not known -----------------------------------------------------------------------------------


def no_grad_callback(sampling: GuidedSampling, act: Act, at: int = 2) -> None:
    sampling.callback = torch.no_grad()(once(act, at - 1))


def inference_mode_callback(sampling: GuidedSampling, act: Act, at: int = 2) -> None:
    sampling.callback = torch.inference_mode()(once(act, at - 1))


def no_grad_post_cfg(sampling: GuidedSampling, act: Act, at: int = 2) -> None:
    sampling.patcher.set_model_sampler_post_cfg_function(torch.no_grad()(once(act, at - 1)))


def guiders_post_cfg(sampling: GuidedSampling, act: Act, at: int = 2) -> None:
    sampling.options["sampler_post_cfg_function"] = [once(act, at - 1)]


def inner_sample(sampling: GuidedSampling, act: Act, at: int = 2) -> None:
    """A guider of two stages."""
    import comfy.samplers

    class Guider(comfy.samplers.CFGGuider):  # type: ignore[misc]
        def inner_sample(
            self, noise: Any, latent: Any, device: Any, sampler: Any, sigmas: Any, *args: Any, **kwargs: Any
        ) -> Any:
            conds = {name: [one.copy() for one in found] for name, found in self.conds.items()}
            first = super().inner_sample(noise, latent, device, sampler, sigmas[:2], *args, **kwargs)
            act()
            self.conds = conds
            zeros = torch.zeros_like(noise)
            return super().inner_sample(zeros, first, device, sampler, sigmas[1:], *args, **kwargs)

    sampling.guider = Guider


def prepare_state(sampling: GuidedSampling, act: Act, at: int = 2) -> None:
    changed = once(act, at)
    base: Any = type(sampling.patcher)

    class Patcher(base):  # type: ignore[misc]
        def prepare_state(self, *args: Any, **kwargs: Any) -> Any:
            changed()
            return super().prepare_state(*args, **kwargs)

    sampling.patcher.__class__ = Patcher


def no_grad_prepare_state_callback(sampling: GuidedSampling, act: Act, at: int = 2) -> None:
    from comfy.patcher_extension import CallbacksMP

    sampling.patcher.add_callback_with_key(CallbacksMP.ON_PREPARE_STATE, "a pack", torch.no_grad()(once(act, at)))


def previewer(sampling: GuidedSampling, act: Act, at: int = 2) -> None:
    """The host's own callback asks a previewer that a pack put in place."""
    import latent_preview

    changed = once(act, at - 1)

    class Previewer:
        def decode_latent_to_preview_image(self, preview_format: str, x0: Any) -> Any:
            changed()

    before = latent_preview.get_previewer
    latent_preview.get_previewer = lambda *args, **kwargs: Previewer()
    try:
        sampling.callback = latent_preview.prepare_callback(sampling.patcher, len(sampling.sigmas) - 1)
    finally:
        latent_preview.get_previewer = before


def model_sampling(sampling: GuidedSampling, act: Act, at: int = 2) -> None:
    """A pack's own noise schedule, put on as nodes such as ModelSamplingDiscrete do."""
    original = sampling.patcher.get_model_object("model_sampling")
    changed = once(act, at - 1)

    class Schedule(type(original)):  # type: ignore[misc]
        def calculate_denoised(self, *args: Any, **kwargs: Any) -> Any:
            found = super().calculate_denoised(*args, **kwargs)
            changed()
            return found

    schedule = Schedule(sampling.patcher.model.model_config)
    schedule.load_state_dict(original.state_dict(), strict=False)
    sampling.patcher.add_object_patch("model_sampling", schedule)


# Places where nobody can know ------------------------------------------------------------------------------------


def library_callback(sampling: GuidedSampling, act: Act, at: int = 2) -> None:
    sampling.callback = library_function(act)


def another_thread(sampling: GuidedSampling, act: Act, at: int = 2) -> None:
    """A thread that the pack started earlier, e.g. a server's, at a moment that nothing in the sampling tells of."""
    sampling.callback = library_function(in_thread(act))


KNOWN: dict[str, Place] = {
    "function wrapper": function_wrapper,
    "callback": callback,
    "post-CFG function": post_cfg,
    "sampler": sampler_function,
    "guider's predict_noise": predict_noise,
    "apply_model wrapper": wrapper_of("apply_model"),
}
UNKNOWN: dict[str, Place] = {
    "callback under no_grad": no_grad_callback,
    "callback under inference_mode": inference_mode_callback,
    "post-CFG function under no_grad": no_grad_post_cfg,
    "guider's own post-CFG function": guiders_post_cfg,
    "guider's inner_sample": inner_sample,
    "patcher's prepare_state": prepare_state,
    "prepare-state callback under no_grad": no_grad_prepare_state_callback,
    "previewer": previewer,
    "model_sampling": model_sampling,
}
UNKNOWABLE: dict[str, Place] = {"library's callback": library_callback, "another thread": another_thread}
