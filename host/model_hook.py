"""The hook on a MODEL's calls: every call is admitted to a graph or runs eager with a reason.

A DIFFUSION_MODEL wrapper, because object patches lose LoRA and other hooks hold stale weights. It replaces the
innermost function of the chain instead of answering itself, so that wrappers added after it still run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..common import reasons
from ..common.reasons import Reason
from ..common.shapes import Refused
from ..graph_cache.model_hash import ModelSource
from ..runtime import choice, code_guard
from ..runtime.component import plan_of
from ..runtime.dispatch import Call, Dispatcher
from ..runtime.family import Shapes, by_name
from ..runtime.module_guard import GuardCache
from ..runtime.registry import registry
from ..runtime.request import WhenMissing
from . import contract, custom_nodes, model_source
from .component import Component, eager_text
from .families import MODELS, Family, family_of
from .run import HostRun, start_run

KEY = "onegraph"
_PATCHED = "diffusion_model."  # how ComfyUI's patch keys of this module start


@dataclass(frozen=True)
class Options:
    """The choices of the node."""

    backend: str = "auto"
    shapes: Shapes = "any size"
    when_missing: WhenMissing = "wait"


class ModelHook:
    """One node's hook. Clones of the patcher share it, so it holds options and reports, never weights."""

    def __init__(self, family: Family, options: Options, node_id: str | None, source: ModelSource) -> None:
        self.options = options
        self._component = Component(family, node_id, source)
        self._guards = GuardCache()

    def __deepcopy__(self, memo: dict[int, Any]) -> ModelHook:
        """Itself: copies of a MODEL that other nodes make belong to the same node of ours."""
        return self

    @property
    def dispatcher(self) -> Dispatcher:
        """What runs the calls."""
        return self._component.dispatcher

    def preload(self, patcher: Any, dynprompt: Any = None) -> None:
        """Begin to restore the graphs for any size before the first call."""
        module, component = patcher.model.diffusion_model, self._component
        if self.options.shapes == "any size":
            examples = functools.partial(component.family.examples, module, patcher, dynprompt)
            component.preload(patcher, module, self.options.backend, examples, self._guards)

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
        module = patcher.model.diffusion_model
        _runs.setdefault(id(module), []).append((self, start_run(patcher, module, _PATCHED, self._guards)))

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
            # Another node's torch.compile traces through here; `eligibility.patcher_refusal` tells the user.
            return executor(*args, **kwargs)
        executor.original = functools.partial(_innermost, executor.class_obj, executor.original)
        return executor(*args, **kwargs)

    # One call -----------------------------------------------------------------------------------------------

    def prepare(
        self, module: Any, run: HostRun, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call | Refused:
        """What to run through a graph for one call of the model that `run` is about, or why not."""
        family, options = self._component.family, self.options
        of_call = by_name(family.arguments, args, kwargs).get("transformer_options") or {}
        run.look(alone=not run.foreign and not custom_nodes.in_call(of_call))
        name = type(module).__name__
        if not family.serves(module):
            return Refused(reasons.NotCompilable(name))
        if not hasattr(module, family.entry):
            return Refused(reasons.NewerHost(name, family.entry))
        refusal = run.inspect(module) or _replaced_for_one_call(module, family.entry, original)
        if refusal is not None:
            return Refused(refusal)
        plan = plan_of(options.shapes)
        call = self._component.call(run, module, args, kwargs, options.backend, plan, options.when_missing)
        if isinstance(call, Call) and options.shapes == "any size" and call.request.shapes.exact:
            run.report.rule = reasons.EachSizeOwnGraph(call.request.backend.name).text
        return call


def _replaced_for_one_call(module: Any, entry: str, original: Any) -> Reason | None:
    """Whether another function than the model's own waits at the end of the chain of wrappers."""
    function = getattr(original, "__func__", None)
    if function is not None and function is getattr(type(module), entry, None) and original.__self__ is module:
        return None
    return reasons.ForwardReplaced(f"{type(module).__name__}.{entry}", code_guard.custom_node(original))


# The runs under way by the module's id. The host hands one model's options, and so one node's wrapper, to another
# model's calls (DualModelGuider): whose call it is only the module tells. The last run comes first.
_runs: dict[int, list[tuple[ModelHook, HostRun]]] = {}


def _innermost(module: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    active = _runs.get(id(module))
    if not active:
        registry().counters.count_eager(reasons.NoNode())
        return original(*args, **kwargs)
    hook, run = active[-1]
    prepare = functools.partial(hook.prepare, module, run, original, args, kwargs)
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
    module: Any = getattr(clone.model, "diffusion_model", None)
    if options.backend == "off":
        return clone, "off: the model runs eager"
    family = family_of(module, MODELS)
    if isinstance(family, Reason):
        return clone, eager_text(family)
    source = model_source.source_of(patcher, module, dynprompt, node_id)
    hook = ModelHook(family, options, node_id, source)
    hook.attach(clone)
    refusal = family.refusal(module)
    if refusal is not None:
        return clone, eager_text(refusal)
    hook.preload(clone, dynprompt)
    backend = choice.describe(options.backend, patcher.load_device)
    return clone, f"ready: {options.shapes}, {backend}; starts with the first sampling step"
