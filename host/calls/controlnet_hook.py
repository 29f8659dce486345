"""The hook on the calls of a CONTROL_NET's module."""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from typing_extensions import override

from ...common import reasons
from ...common.reasons import Reason
from ...common.refused import Refused
from ...compiler.blocks.repeated import repeated_blocks
from ...graph_cache.model_hash import ModelSource
from ...runtime.calls import backend_choice
from ...runtime.calls.component import Choice, shape_policy_of
from ...runtime.calls.dispatch import Call, count_eager
from ...runtime.guards.guard_cache import GuardCache
from ..comfyui import contract, model_source
from ..comfyui.options import ModelNodeOptions
from ..families import CONTROLNETS, HostFamily, family_of
from ..show import status
from .block_hook import Blocks, HostBlockClient, preload_blocks, start_blocks
from .component import NodeComponent, eager_text
from .module_proxy import ModuleProxy, plain, stand_in
from .run import HostRun, start_run
from .sampling import sampling as current_sampling
from .sampling_hook import KEY

_LOADERS = {"control_net_name": "controlnet"}


def family_for(control_net: Any) -> HostFamily | Reason:
    """The family of a CONTROL_NET's module, or why no graph serves it."""
    lacking = contract.refusal("ControlNet")
    if lacking is not None:
        return lacking
    from comfy.controlnet import ControlNet, ControlNetSD35

    # ControlLora makes its module anew for each sampling; a T2I adapter runs once; Qwen-Image's Fun ControlNet computes
    # with the model that it steers.
    if type(control_net) not in (ControlNet, ControlNetSD35):
        return family_of(None, CONTROLNETS, type(control_net).__name__)
    module = plain(control_net.control_model)
    family = family_of(module, CONTROLNETS, type(module).__module__.rpartition(".")[2])
    if isinstance(family, Reason):
        lacking = contract.refusal("blocks")
        # Not a kind that is compiled as a whole and that this host has changed.
        other = isinstance(family, reasons.NotCompilable) and lacking is None
        return Blocks() if other and repeated_blocks(module) else family
    return family.refusal(module) or family


class ControlNetHook:
    """One node's hook. It knows the patcher of the ControlNet that the node handed on, and holds no weights.

    Attributes:
        run: the one under way.
    """

    def __init__(self, family: HostFamily, options: ModelNodeOptions, node_id: str | None, source: ModelSource) -> None:
        self.options = options
        self.component = NodeComponent(family, node_id, source)
        self._guards = GuardCache()
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
        module, component = patcher.model, self.component
        if self.options.shapes == "any size":
            examples = functools.partial(component.family.examples, module, patcher, None)
            component.preload(patcher, module, self.options.backend, examples, self._guards)

    # ComfyUI's callbacks ------------------------------------------------------------------------------------

    def on_cleanup(self, patcher: Any) -> None:
        """A sampling is over. The host calls this once for each place at which it used the ControlNet, or never."""
        run, self.run = self.run, None
        if run is not None:
            self.component.finish(run)

    def on_detach(self, patcher: Any, unpatch_all: bool) -> None:
        """The weights leave the device, unless `unpatch_all` is False: then a clone takes over where they are."""
        if unpatch_all:
            if self.run is not None:
                self.run.release()
            self.component.release_captures()

    # One call -----------------------------------------------------------------------------------------------

    def serve(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the module, through a graph where one serves the call: `{"middle": [...], "output": [...]}`."""
        original = functools.partial(module, *args, **kwargs)
        if torch.compiler.is_compiling():  # another node's torch.compile traces through here
            return original()
        run = self._current(module)
        prepare = functools.partial(self._prepare, module, run, args, kwargs)
        result = self.component.dispatch(run, module, prepare, original)
        if isinstance(result, dict):
            return result
        *outputs, middle = result
        return {"middle": [middle], "output": outputs}

    def _current(self, module: torch.nn.Module) -> HostRun:
        """The run under way: it ends with its sampling, also where that was interrupted or failed."""
        sampling, prompt = current_sampling(), status.current_prompt()
        if (self._sampling, self._prompt) != (sampling, prompt):
            self.on_cleanup(None)
        if self.run is None:
            self._sampling, self._prompt = sampling, prompt
            self.run = self._start(module)
            if sampling is not None:
                weakref.finalize(sampling(), _end, weakref.ref(self), self.run).atexit = False
        return self.run

    def _start(self, module: torch.nn.Module) -> HostRun:
        return start_run(self._patcher(), module, "", self._guards)

    def _prepare(self, module: Any, run: HostRun, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call | Refused:
        """What to run through a graph for one call of the module, or why not."""
        chosen = self.options
        choice = Choice(chosen.backend, shape_policy_of(chosen.shapes), chosen.when_missing)
        return self.component.prepared(run, module, args, kwargs, choice)


class ControlBlocksHook(ControlNetHook):
    """A node's hook on a ControlNet whose blocks are compiled: its own forward runs as ever."""

    @override
    def preload(self, patcher: Any) -> None:
        preload_blocks(self.component, self.options, patcher, patcher.model, "", self._guards)

    @override
    def serve(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if torch.compiler.is_compiling():
            return module(*args, **kwargs)
        run = self._current(module)
        if run.blocks is None:
            count_eager(run, run.refusal or reasons.NoNode())
            return module(*args, **kwargs)
        with run.blocks.call():
            return module(*args, **kwargs)

    @override
    def _start(self, module: torch.nn.Module) -> HostRun:
        patcher = self._patcher()
        client = HostBlockClient(self.component, self.options, module, "", patcher.load_device)
        return start_blocks(client, patcher, module, self._guards)


class ControlNetProxy(ModuleProxy):
    """What stands where a ControlNet's `control_model` stood; only calling it goes through the hook.

    The host's copies of a ControlNet, one for each node that applies it, share the proxy.
    """

    __slots__ = ()
    onegraph_hook: ControlNetHook

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.onegraph_hook.serve(self.onegraph_module, args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.nn.Module:
        """A plain module: the host makes deep copies for other GPUs, whose weights no hook here knows."""
        return copy.deepcopy(self.onegraph_module, memo)


def _end(hook: weakref.ref[ControlNetHook], run: HostRun) -> None:
    """The sampling of a run is gone, whether the host has said so or not."""
    live_hook = hook()
    if live_hook is not None and live_hook.run is run:
        live_hook.on_cleanup(None)


def compile_controlnet(
    control_net: Any, options: ModelNodeOptions, node_id: str | None = None, dynprompt: Any = None
) -> tuple[Any, str]:
    """A copy of a CONTROL_NET that runs through graphs, and a sentence for the node. Cheap: compiles nothing."""
    family = family_for(control_net)
    if isinstance(family, Reason):
        text = "off: the ControlNet runs uncompiled" if options.backend == "off" else eager_text(family)
        return control_net, text
    from comfy.patcher_extension import CallbacksMP

    clone = control_net.copy()
    patcher = clone.control_model_wrapped = control_net.control_model_wrapped.clone()
    module = clone.control_model = plain(control_net.control_model)
    for callback in (CallbacksMP.ON_CLEANUP, CallbacksMP.ON_DETACH):
        patcher.remove_callbacks_with_key(callback, KEY)
    if options.backend == "off":
        return clone, "off: the ControlNet runs uncompiled"
    source = model_source.source_of(patcher, module, dynprompt, node_id, _LOADERS)
    in_blocks = isinstance(family, Blocks)
    hook = (ControlBlocksHook if in_blocks else ControlNetHook)(family, options, node_id, source)
    hook.attach(patcher)
    clone.control_model = stand_in(ControlNetProxy, module, hook)
    hook.preload(patcher)
    backend = backend_choice.describe(options.backend, patcher.load_device)
    what = f"block graphs for {len(repeated_blocks(module))} blocks" if in_blocks else options.shapes
    return clone, f"ready: {what}, {backend}; starts with the first sampling step"
