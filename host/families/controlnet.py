"""ComfyUI's ControlNets: what they take and give, which a graph serves, and the hook on their calls.

A ControlNet's residuals are the outputs of its graph. The host scales and sums them, so strength and the part of the
sampling in which it steers are no part of the graph.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Mapping
from typing import Any

import torch

from ...backends import Backend
from ...common import reasons
from ...common.reasons import Reason
from ...common.shapes import Refused, ShapeRange, TensorSpec
from ...graph_cache.model_hash import ModelSource
from ...runtime import choice, unet_sizes
from ...runtime.dispatch import Call
from ...runtime.module_watch import Watches
from ...runtime.request import Request, Shaped
from .. import compile_client, contract, custom_nodes, model_source, status
from ..component import Component, eager_text, preload
from ..controlnet_proxy import ControlNetProxy
from ..module_proxy import plain, stand_in
from ..run import HostRun, start_run
from .unet import FIRST_SIDE, FIRST_TOKENS, KEY, Options, Shapes, Tensors

FOLDER = "controlnet"  # of ComfyUI's models, and part of its loaders' input
_LOADERS = {"control_net_name": FOLDER}
_SUPPORTED = "ControlNets of SD 1.x, SD 2.x and SDXL"
_INPUTS = ("x", "hint", "timesteps", "context", "y")  # a ControlNet's parameters, in order
_HINT = 8  # pixels of the hint for each latent unit
_RANKS = {"x": 4, "hint": 4, "timesteps": 1, "context": 3, "y": 2}


def refusal(control_net: Any) -> Reason | None:
    """Why no graph serves this CONTROL_NET, or None."""
    lacking = contract.refusal("ControlNet")
    if lacking is not None:
        return lacking
    from comfy.cldm.cldm import ControlNet as Module
    from comfy.controlnet import ControlNet

    # ControlLora makes its module anew for each sampling; a T2I adapter runs once.
    if type(control_net) is not ControlNet:
        return reasons.NotCompilable(type(control_net).__name__, _SUPPORTED)
    module = plain(control_net.control_model)
    if type(module) is not Module:
        return reasons.NotCompilable(type(module).__module__.rpartition(".")[2], _SUPPORTED)
    if module.control_add_embedding is not None:
        return reasons.UnionControlNet()
    return None


def shape_range(shapes: Shapes, given: Tensors, levels: int) -> tuple[ShapeRange, str, dict[str, int]]:
    """The range a graph for this call should have, its label, and the call's sizes."""
    x, context = given["x"], given["context"]
    batch, _, height, width = x.shape
    sizes = {"batch": batch, "height": height, "width": width, "context": context.shape[1]}
    dims, label = unet_sizes.exact(sizes) if shapes == "exact" else unet_sizes.any_size(levels, x.device, sizes)
    # One picture steers a whole batch in most workflows, and then it is looked at once.
    pictures: int | str = 1 if given["hint"].shape[0] == 1 else "batch"
    named: dict[str, tuple[int | str, ...]] = {
        "x": ("batch", x.shape[1], "height", "width"),
        "hint": (pictures, given["hint"].shape[1], f"height*{_HINT}", f"width*{_HINT}"),
        "timesteps": ("batch",),
        "context": ("batch", "context", context.shape[2]),
    }
    if "y" in given:
        named["y"] = ("batch", given["y"].shape[1])
    specs = (TensorSpec(name, dim, str(given[name].dtype).removeprefix("torch.")) for name, dim in named.items())
    return ShapeRange(dims, tuple(specs)), label, sizes


def _taken(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, torch.Tensor] | Refused:
    """The inputs of a graph for a call of the module, in order; or why no graph serves it."""
    call = {**dict(zip(_INPUTS, args, strict=False)), **kwargs}
    for name, value in call.items():
        if name not in _INPUTS and value is not None:
            return Refused(reasons.UnknownArgument(name))
    if module.num_classes is None:
        call.pop("y", None)  # which the module does not read
    given = {name: call[name] for name in _INPUTS if call.get(name) is not None}
    if any(type(tensor) is not torch.Tensor for tensor in given.values()):
        return Refused(reasons.NotPlainInputs())
    wanted = [name for name in _INPUTS if name != "y" or module.num_classes is not None]
    if [*given] != wanted or any(tensor.ndim != _RANKS[name] for name, tensor in given.items()):
        return Refused(reasons.UnusualInputs())
    return given


class ControlNetHook:
    """One node's hook. It knows the patcher of the ControlNet that the node handed on, and holds no weights.

    Attributes:
        run: the one under way.
    """

    def __init__(self, options: Options, node_id: str | None, source: ModelSource) -> None:
        self.options = options
        self._component = Component(compile_client.CONTROLNET, node_id, source, folders=(FOLDER,))
        self._watches = Watches()
        self._patcher: Any = None
        self.run: HostRun | None = None
        self._sampling: weakref.ref[Any] | None = None  # that the run is of, and whose end it ends with
        self._prompt: str | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> ControlNetHook:
        """Itself: copies that other nodes make belong to the same node of ours."""
        return self

    def attach(self, patcher: Any) -> None:
        """Know the patcher (a fresh clone) of the ControlNet, and be told when a sampling ends."""
        from comfy.patcher_extension import CallbacksMP

        patcher.add_callback_with_key(CallbacksMP.ON_CLEANUP, KEY, self.on_cleanup)
        patcher.add_callback_with_key(CallbacksMP.ON_DETACH, KEY, self.on_detach)
        self._patcher = weakref.ref(patcher)

    def preload(self, patcher: Any) -> None:
        """Begin to restore the graph for any size before the first call."""
        module = patcher.model
        if self.options.shapes == "any size":
            preload(patcher, module, lambda run: self.request(module, run, _first_call(patcher)), self._watches)

    # ComfyUI's callbacks ------------------------------------------------------------------------------------

    def on_cleanup(self, patcher: Any) -> None:
        """A sampling is over. The host calls this once for each place at which it used the ControlNet, or never."""
        run, self.run = self.run, None
        if run is not None:
            self._component.finish(run)

    def on_detach(self, patcher: Any, unpatch_all: bool) -> None:
        """The weights leave the device, unless `unpatch_all` is False: then a clone takes over where they are."""
        if unpatch_all:
            if self.run is not None:
                self.run.release()
            self._component.dispatcher.release_captures()

    # One call -----------------------------------------------------------------------------------------------

    def serve(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the module, through a graph where one serves the call: `{"middle": [...], "output": [...]}`."""
        original = functools.partial(module, *args, **kwargs)
        if torch.compiler.is_compiling():  # another node's torch.compile traces through here
            return original()
        run = self._current(module)
        prepare = functools.partial(self._prepare, module, run, args, kwargs)
        result = self._component.dispatcher.call(run, prepare, original)
        if isinstance(result, dict):
            return result
        *outputs, middle = result
        return {"middle": [middle], "output": outputs}

    def _current(self, module: torch.nn.Module) -> HostRun:
        """The run under way: it ends with its sampling, also where that was interrupted or failed."""
        sampling, prompt = custom_nodes.sampling(), status.current_prompt()
        if (self._sampling, self._prompt) != (sampling, prompt):
            self.on_cleanup(None)
        if self.run is None:
            self._sampling, self._prompt = sampling, prompt
            self.run = start_run(self._patcher(), module, "", self._watches)
            if sampling is not None:
                weakref.finalize(sampling(), _end, weakref.ref(self), self.run).atexit = False
        return self.run

    def _prepare(self, module: Any, run: HostRun, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call | Refused:
        """What to run through a graph for one call of the module, or why not."""
        options = _options_of_caller()
        run.look(alone=not run.foreign and options is not None and not custom_nodes.in_call(options))
        refused = run.inspect(module)
        if refused is not None:
            return Refused(refused)
        given = _taken(module, args, kwargs)
        if isinstance(given, Refused):
            return given
        request = self.request(module, run, given)
        if isinstance(request, Refused):
            return request
        chunk = 0 if request.shapes.dim("batch").exact else unet_sizes.MOST_BATCH
        eager = functools.partial(_eager, module, tuple(given))
        return Call(request, [*given.values()], eager, self.options.when_missing, chunk)

    def request(self, module: Any, run: HostRun, given: Tensors) -> Request | Refused:
        """The request for a graph, given the inputs by name."""
        x = given["x"]
        sizes = tuple(tuple(tensor.shape) for tensor in given.values())
        of_inputs = [tensor.shape[-1] for name, tensor in given.items() if name in ("context", "y")]
        levels, call_sizes = len(module.channel_mult), {"height": x.shape[2], "width": x.shape[3]}
        every_size = unet_sizes.serves_every_size(levels, x.device, call_sizes)
        widths = (x.shape[1], given["hint"].shape[0] == 1, every_size, *of_inputs)
        like = (x.device, *(tensor.dtype for tensor in given.values()))
        known = run.requests.get((like, widths)) or run.requests.get((like, sizes))
        if known is not None:
            return known

        def build(backend: Backend) -> Request | Refused:
            widest = shape_range("any size", given, levels)
            any_size = self.options.shapes == "any size" and backend.supports(widest[0])
            chosen = widest if any_size else shape_range("exact", given, levels)
            shaped = Shaped(chosen[0], widest[0], chosen[1], chosen[2])
            return self._component.request(run, module, backend, shaped, x)

        request = choice.choose(self.options.backend, x.device, build)
        if isinstance(request, Request):
            run.requests[like, sizes if request.shapes.dim("height").exact else widths] = request
        return request


def _end(hook: weakref.ref[ControlNetHook], run: HostRun) -> None:
    """The sampling of a run is gone, whether the host has said so or not."""
    found = hook()
    if found is not None and found.run is run:
        found.on_cleanup(None)


def _eager(module: torch.nn.Module, names: tuple[str, ...], *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The ControlNet without a graph, for inputs that the host need not have asked for as such."""
    return compile_client.residuals_of(module(**dict(zip(names, tensors, strict=True))))


def _options_of_caller() -> Mapping[str, Any] | None:
    """The transformer_options of the host's call that leads here; None where it is not found."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "get_control":
            options = frame.f_locals.get("transformer_options")
            return options if isinstance(options, dict) else None
    return None


def _first_call(patcher: Any) -> dict[str, torch.Tensor]:
    """The inputs of a small call, as the host makes them."""
    module, device = patcher.model, patcher.load_device
    like = {"dtype": module.dtype, "device": device}
    width = next(m.attn2.to_k.in_features for m in module.modules() if hasattr(m, "attn2"))
    pixels = _HINT * FIRST_SIDE
    given = {
        "x": torch.zeros(2, module.in_channels, FIRST_SIDE, FIRST_SIDE, **like),
        "hint": torch.zeros(1, module.input_hint_block[0].in_channels, pixels, pixels, **like),
        "timesteps": torch.zeros(2, **like),
        "context": torch.zeros(2, FIRST_TOKENS, width, **like),
    }
    if module.num_classes is not None:
        given["y"] = torch.zeros(2, module.label_emb[0][0].in_features, **like)
    return given


def compile_controlnet(
    control_net: Any, options: Options, node_id: str | None = None, dynprompt: Any = None
) -> tuple[Any, str]:
    """A copy of a CONTROL_NET that runs through graphs, and a sentence for the node. Cheap: compiles nothing."""
    refused = refusal(control_net)
    if refused is not None:
        text = "off: the ControlNet runs eager" if options.backend == "off" else eager_text(refused)
        return control_net, text
    from comfy.patcher_extension import CallbacksMP

    clone = control_net.copy()
    patcher = clone.control_model_wrapped = control_net.control_model_wrapped.clone()
    module = clone.control_model = plain(control_net.control_model)
    for callback in (CallbacksMP.ON_CLEANUP, CallbacksMP.ON_DETACH):
        patcher.remove_callbacks_with_key(callback, KEY)
    if options.backend == "off":
        return clone, "off: the ControlNet runs eager"
    source = model_source.source_of(patcher, module, dynprompt, node_id, _LOADERS)
    hook = ControlNetHook(options, node_id, source)
    hook.attach(patcher)
    clone.control_model = stand_in(ControlNetProxy, module, hook)
    hook.preload(patcher)
    backend = choice.describe(options.backend, patcher.load_device)
    return clone, f"ready: {options.shapes}, {backend}; starts with the first sampling step"
