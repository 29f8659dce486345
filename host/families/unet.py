"""The hook on ComfyUI's UNetModel: every call is admitted to a graph or runs eager with a reason.

A DIFFUSION_MODEL wrapper, because object patches lose LoRA and other hooks hold stale weights. It replaces the
innermost function of the chain instead of answering itself, so that wrappers added after it still run.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ...backends import Backend
from ...common import reasons
from ...common.reasons import Reason
from ...common.shapes import Refused, ShapeRange, TensorSpec
from ...graph_cache.model_hash import ModelSource
from ...runtime import choice, live_code, unet_sizes
from ...runtime.dispatch import Call, Dispatcher
from ...runtime.module_watch import Watches
from ...runtime.registry import registry
from ...runtime.request import Request, Shaped, WhenMissing
from .. import compile_client, contract, custom_nodes, model_source, residuals
from ..component import Component, eager_text, preload
from ..run import HostRun, start_run

KEY = "onegraph"
Shapes = Literal["any size", "exact"]
Tensors = Mapping[str, torch.Tensor]

FIRST_SIDE, FIRST_TOKENS = 32, 77  # latent units and tokens of the call for which a graph is preloaded
_PATCHED = "diffusion_model."  # how ComfyUI's patch keys of this module start
_ARGUMENTS = ("x", "timesteps", "context", "y", "control", "transformer_options")  # UNetModel.forward, in order

# transformer_options that do not change what the UNet computes.
_NEUTRAL = {
    "wrappers",
    "callbacks",
    "cond_or_uncond",
    "uuids",
    "sigmas",
    "sample_sigmas",
    "prefetch_dynamic_vbars",
    "multigpu_thread_device",
    "original_shape",
    "transformer_index",
    "block",
    "easycache",  # EasyCache's and LazyCache's memory of earlier steps: they skip calls and change none
    "context_window",  # which part of the batch or size a call is about
}


@dataclass(frozen=True)
class Options:
    """The choices of the node."""

    backend: str = "auto"
    shapes: Shapes = "any size"
    when_missing: WhenMissing = "wait"


def is_unet(module: Any) -> bool:
    """Whether this is exactly ComfyUI's UNetModel (SD 1.x, SD 2.x, SDXL, the refiner): nothing else is compiled."""
    from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel

    return type(module) is UNetModel


def is_video_unet(unet: Any) -> bool:
    """Whether a UNetModel computes the frames of a video together (Stable Video Diffusion)."""
    from comfy.ldm.modules.diffusionmodules.openaimodel import VideoResBlock

    return any(isinstance(module, VideoResBlock) for module in unet.modules())


def shape_range(
    shapes: Shapes, x: torch.Tensor, context: torch.Tensor, y: torch.Tensor | None, device: torch.device, levels: int
) -> tuple[ShapeRange, str, dict[str, int]]:
    """The range a graph for this call should have, its label, and the call's sizes."""
    batch, channels, height, width = x.shape
    sizes = {"batch": batch, "height": height, "width": width, "context": context.shape[1]}
    dtype = str(x.dtype).removeprefix("torch.")
    dims, label = unet_sizes.exact(sizes) if shapes == "exact" else unet_sizes.any_size(levels, device, sizes)
    inputs = [
        TensorSpec("x", ("batch", channels, "height", "width"), dtype),
        TensorSpec("timesteps", ("batch",), "float32"),
        TensorSpec("context", ("batch", "context", context.shape[2]), dtype),
    ]
    if y is not None:
        inputs.append(TensorSpec("y", ("batch", y.shape[1]), dtype))
    return ShapeRange(dims, tuple(inputs)), label, sizes


def _patch_name(function: Any) -> str:
    """The name a user knows a patch by: its outermost class or function, e.g. FreeU_V2."""
    name = getattr(function, "__qualname__", type(function).__name__)
    return str(name).partition(".")[0]


def options_refusal(options: Mapping[str, Any]) -> Reason | None:
    """Why transformer_options ask for something no graph does, or None."""
    for key, value in options.items():
        if key in _NEUTRAL:
            continue
        if key == "patches":
            found = {name: patches for name, patches in value.items() if patches}
            if found:
                name, patches = next(iter(found.items()))
                return reasons.PatchedBy(_patch_name(patches[0]), str(name))
        elif key == "patches_replace":
            replaced = {name: patches for name, patches in value.items() if patches}
            if replaced:
                name, by_block = next(iter(replaced.items()))
                return reasons.ReplacedBy(_patch_name(next(iter(by_block.values()))), str(name))
        elif value is not None and value != {} and value != []:
            return reasons.ModelOption(str(key))
    return None


def _call_refusal(call: Mapping[str, Any], options: Mapping[str, Any]) -> Reason | None:
    """Why no graph serves a call with these arguments, or None."""
    if call.get("num_video_frames") is not None:
        return reasons.VideoFrames()
    for name, value in call.items():
        if name not in _ARGUMENTS and value is not None:
            return reasons.UnknownArgument(name)
    refusal = options_refusal(options)
    if refusal is not None:
        return refusal
    x, timesteps, context, y = (call.get(name) for name in ("x", "timesteps", "context", "y"))
    given = [t for t in (x, timesteps, context, y) if t is not None]
    if x is None or timesteps is None or context is None or not all(type(t) is torch.Tensor for t in given):
        return reasons.NotPlainInputs()
    if x.ndim != 4 or context.ndim != 3 or (y is not None and y.ndim != 2):
        return reasons.UnusualInputs()
    return None


class UnetHook:
    """One node's hook. Clones of the patcher share it, so it holds options and reports, never weights."""

    def __init__(self, options: Options, node_id: str | None, source: ModelSource) -> None:
        self.options = options
        self._component = Component(compile_client.UNET, node_id, source)
        self._watches = Watches()

    def __deepcopy__(self, memo: dict[int, Any]) -> UnetHook:
        """Itself: copies of a MODEL that other nodes make belong to the same node of ours."""
        return self

    @property
    def dispatcher(self) -> Dispatcher:
        """What runs the calls."""
        return self._component.dispatcher

    def preload(self, patcher: Any, dynprompt: Any = None) -> None:
        """Begin to restore the graph for any size before the first call, and the one for a ControlNet's residuals."""
        unet = patcher.model.diffusion_model
        if self.options.shapes == "any size":
            preload(patcher, unet, lambda run: self.request(unet, run, _first_call(patcher)), self._watches)
            if dynprompt is not None and model_source.has_controlnet(dynprompt):
                preload(patcher, unet, lambda run: self._first_steered(patcher, run), self._watches)

    def _first_steered(self, patcher: Any, run: HostRun) -> Request | Refused:
        unet, given = patcher.model.diffusion_model, _first_call(patcher)
        return self.request(unet, run, given, residuals.usual(unet, given["x"]))

    # ComfyUI's callbacks ------------------------------------------------------------------------------------

    def attach(self, patcher: Any) -> None:
        """Put this hook on a patcher (a fresh clone), in place of any hook of ours already there."""
        from comfy.patcher_extension import CallbacksMP, WrappersMP

        detach(patcher)
        patcher.add_wrapper_with_key(WrappersMP.DIFFUSION_MODEL, KEY, self.wrapper)
        patcher.add_callback_with_key(CallbacksMP.ON_PRE_RUN, KEY, self.on_pre_run)
        patcher.add_callback_with_key(CallbacksMP.ON_CLEANUP, KEY, self.on_cleanup)
        patcher.add_callback_with_key(CallbacksMP.ON_DETACH, KEY, self.on_detach)

    def on_pre_run(self, patcher: Any) -> None:
        unet = patcher.model.diffusion_model
        _runs.setdefault(id(unet), []).append((self, start_run(patcher, unet, _PATCHED, self._watches)))

    def on_cleanup(self, patcher: Any) -> None:
        key = id(patcher.model.diffusion_model)
        active = _runs.get(key, [])
        for number, (hook, run) in reversed([*enumerate(active)]):
            if hook is self and run.patcher is patcher:
                del active[number]
                if not active:
                    _runs.pop(key, None)
                self._component.finish(run)
                return

    def on_detach(self, patcher: Any, unpatch_all: bool) -> None:
        """The weights leave the device, unless `unpatch_all` is False: then a clone takes over where they are."""
        if unpatch_all:
            for _, run in _runs.get(id(patcher.model.diffusion_model), []):
                run.release()
            self._component.dispatcher.release_captures()

    def wrapper(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        """The DIFFUSION_MODEL wrapper: serve the innermost call of the chain, let the rest of the chain run."""
        if torch.compiler.is_compiling():
            # Another node's torch.compile traces through here; `eligibility.patcher_refusal` tells the user why.
            return executor(*args, **kwargs)
        executor.original = functools.partial(_innermost, executor.class_obj, executor.original)
        return executor(*args, **kwargs)

    # One call -----------------------------------------------------------------------------------------------

    def prepare(
        self, unet: Any, run: HostRun, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call | Refused:
        """What to run through a graph for one call of the model that `run` is about, or why not."""
        call = {**dict(zip(_ARGUMENTS, args, strict=False)), **kwargs}
        options = call.get("transformer_options") or {}
        run.look(alone=not run.foreign and not custom_nodes.in_call(options))
        if not is_unet(unet):
            return Refused(reasons.NotCompilable(type(unet).__name__))
        if not hasattr(unet, "_forward"):
            return Refused(reasons.NewerHost())
        refusal = run.inspect(unet) or _replaced_for_one_call(unet, original) or _call_refusal(call, options)
        if refusal is not None:
            return Refused(refusal)
        given = {name: call[name] for name in ("x", "timesteps", "context", "y") if call.get(name) is not None}
        steering = residuals.taken(unet, call.get("control"), call["x"])
        if isinstance(steering, Refused):
            return steering
        request = self.request(unet, run, given, steering)
        if isinstance(request, Refused):
            return request
        if self.options.shapes == "any size" and request.shapes.dim("height").exact:
            run.report.rule = reasons.EachSizeOwnGraph(request.backend.name).text
        chunk = 0 if request.shapes.dim("batch").exact else unet_sizes.MOST_BATCH
        inputs = {**given, **steering}
        eager = functools.partial(_eager, unet, tuple(inputs))
        return Call(request, [*inputs.values()], eager, self.options.when_missing, chunk)

    def request(
        self, unet: Any, run: HostRun, given: Tensors, steering: Tensors = types.MappingProxyType({})
    ) -> Request | Refused:
        """The request for a graph, given x, timesteps, context and perhaps y, and the residuals by name."""
        x, context, y = given["x"], given["context"], given.get("y")
        sizes = tuple(tuple(t.shape) for t in given.values())
        levels, call_sizes = len(unet.channel_mult), {"height": x.shape[2], "width": x.shape[3]}
        every_size = unet_sizes.serves_every_size(levels, x.device, call_sizes)
        widths = (x.shape[1], *(t.shape[-1] for name, t in given.items() if name in ("context", "y")), every_size)
        like = (x.dtype, x.device, tuple((name, t.dtype) for name, t in steering.items()))
        known = run.requests.get((*like, widths)) or run.requests.get((*like, sizes))
        if known is not None:
            return known

        def ranges(shapes: Shapes) -> tuple[ShapeRange, str, dict[str, int]]:
            plain, label, call = shape_range(shapes, x, context, y, x.device, levels)
            if not steering:
                return plain, label, call
            return residuals.widened(plain, unet, steering), f"{label} with residuals", call

        def build(backend: Backend) -> Request | Refused:
            widest = ranges("any size")
            chosen = widest if self.options.shapes == "any size" and backend.supports(widest[0]) else ranges("exact")
            shaped = Shaped(chosen[0], widest[0], chosen[1], chosen[2])
            return self._component.request(run, unet, backend, shaped, x)

        request = choice.choose(self.options.backend, x.device, build)
        if isinstance(request, Request):
            key = (*like, sizes if request.shapes.dim("height").exact else widths)
            run.requests[key] = request
        return request


def _first_call(patcher: Any) -> dict[str, torch.Tensor]:
    """x, timesteps, context and perhaps y of a small call, as the host makes them."""
    unet, config = patcher.model.diffusion_model, patcher.model.model_config.unet_config
    like = {"dtype": patcher.model.get_dtype_inference(), "device": patcher.load_device}
    given = {
        "x": torch.zeros(2, unet.in_channels, FIRST_SIDE, FIRST_SIDE, **like),
        "timesteps": torch.zeros(2, device=patcher.load_device),
        "context": torch.zeros(2, FIRST_TOKENS, config["context_dim"], **like),
    }
    if unet.num_classes is not None:
        given["y"] = torch.zeros(2, config["adm_in_channels"], **like)
    return given


def _eager(unet: Any, names: tuple[str, ...], *tensors: torch.Tensor) -> Any:
    """The UNet without a graph, for inputs that the host need not have asked for as such."""
    given, control = residuals.split(names, tensors)
    return unet._forward(**given, control=control, transformer_options={})


def _replaced_for_one_call(unet: Any, original: Any) -> Reason | None:
    """Whether another function than the UNet's own waits at the end of the chain of wrappers."""
    function = getattr(original, "__func__", None)
    if function is not None and function is getattr(type(unet), "_forward", None) and original.__self__ is unet:
        return None
    return reasons.ForwardReplaced(live_code.custom_node(original))


# The runs under way by the UNet's id. The host hands one model's options, and so one node's wrapper, to another model's
# calls (DualModelGuider): whose call it is only the UNet tells. The last run comes first.
_runs: dict[int, list[tuple[UnetHook, HostRun]]] = {}


def _innermost(unet: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    active = _runs.get(id(unet))
    if not active:
        registry().counters.count_eager(reasons.NoNode())
        return original(*args, **kwargs)
    hook, run = active[-1]
    prepare = functools.partial(hook.prepare, unet, run, original, args, kwargs)
    return hook.dispatcher.call(run, prepare, functools.partial(original, *args, **kwargs))


def detach(patcher: Any) -> None:
    """Take any hook of ours off a patcher."""
    from comfy.patcher_extension import CallbacksMP, WrappersMP

    patcher.remove_wrappers_with_key(WrappersMP.DIFFUSION_MODEL, KEY)
    patcher.remove_callbacks_with_key(CallbacksMP.ON_PRE_RUN, KEY)
    patcher.remove_callbacks_with_key(CallbacksMP.ON_CLEANUP, KEY)
    patcher.remove_callbacks_with_key(CallbacksMP.ON_DETACH, KEY)


def compile_model(patcher: Any, options: Options, node_id: str | None = None, dynprompt: Any = None) -> tuple[Any, str]:
    """A clone of a MODEL that runs through graphs, and a sentence for the node. Cheap: compiles nothing."""
    lacking = contract.refusal("model")
    if lacking is not None:
        return patcher, eager_text(lacking)
    clone = patcher.clone()
    detach(clone)
    unet = getattr(clone.model, "diffusion_model", None)
    if options.backend == "off":
        return clone, "off: the model runs eager"
    if not is_unet(unet):
        return clone, eager_text(reasons.NotCompilable(type(unet).__name__, "SD 1.x, SD 2.x, SDXL, refiner"))
    source = model_source.source_of(patcher, unet, dynprompt, node_id)
    hook = UnetHook(options, node_id, source)
    hook.attach(clone)
    if is_video_unet(unet):
        return clone, eager_text(reasons.VideoFrames())
    hook.preload(clone, dynprompt)
    backend = choice.describe(options.backend, patcher.load_device)
    return clone, f"ready: {options.shapes}, {backend}; starts with the first sampling step"
