"""The hook on a MODEL's calls: every call is admitted to a graph or runs eager with a reason.

A DIFFUSION_MODEL wrapper, because object patches lose LoRA and other hooks hold stale weights. It replaces the
innermost function of the chain instead of answering itself, so that wrappers added after it still run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
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
from ...runtime.calls.dispatch import Call
from ...runtime.guards import code_guard
from ...runtime.obtain.registry import registry
from ..comfyui import contract, model_source
from ..comfyui.options import ModelNodeOptions
from ..families import MODELS, HostFamily, family_of
from .block_hook import compile_blocks
from .component import NodeComponent, eager_text
from .run import HostRun, start_run
from .sampling_hook import SamplingHook, active, detach, guards_of

_PATCHED = "diffusion_model."  # how ComfyUI's patch keys of this module start


class ModelHook(SamplingHook):
    """A node's hook on a model that is compiled as a whole."""

    wraps = "DIFFUSION_MODEL"

    def __init__(self, family: HostFamily, options: ModelNodeOptions, node_id: str | None, source: ModelSource) -> None:
        super().__init__(NodeComponent(family, node_id, source))
        self.options = options
        self._shape_policy = shape_policy_of(options.shapes)

    def preload(self, patcher: Any, dynprompt: Any = None) -> None:
        """Begin to restore the graphs for any size before the first call."""
        module, component = patcher.model.diffusion_model, self.component
        if self.options.shapes == "any size":
            examples = functools.partial(component.family.examples, module, patcher, dynprompt)
            compiles = self.options.when_missing != "eager"
            component.preload(patcher, module, self.options.backend, examples, guards_of(patcher), compiles)

    @override
    def start(self, patcher: Any, module: torch.nn.Module) -> HostRun:
        return start_run(patcher, module, _PATCHED, guards_of(patcher))

    @override
    def wrapper(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        """Serve the innermost call of the chain of DIFFUSION_MODEL wrappers, let the rest of the chain run."""
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
        family, options = self.component.family, self.options
        name = type(module).__name__
        if not family.serves(module):
            return Refused(reasons.NotCompilable(name))
        if not hasattr(module, family.entry):
            return Refused(reasons.NewerHost(name, family.entry))
        refusal = _replaced_for_one_call(module, family.entry, original)
        if refusal is not None:
            return Refused(refusal)
        choice = Choice(options.backend, self._shape_policy, options.when_missing)
        call = self.component.prepared(run, module, args, kwargs, choice)
        if isinstance(call, Call) and options.shapes == "any size" and call.request.shapes.exact:
            run.report.rule = reasons.EachSizeOwnGraph(call.request.backend.name).text
        return call


def _replaced_for_one_call(module: Any, entry: str, original: Any) -> Reason | None:
    """Whether another function than the model's own waits at the end of the chain of wrappers."""
    function = getattr(original, "__func__", None)
    if function is not None and function is getattr(type(module), entry, None) and original.__self__ is module:
        return None
    return reasons.ForwardReplaced(f"{type(module).__name__}.{entry}", code_guard.custom_node(original))


def _innermost(module: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    hook, run = active(module)
    if run is None or not isinstance(hook, ModelHook):
        registry().counters.count_eager(reasons.NoNode())
        return original(*args, **kwargs)
    prepare = functools.partial(hook.prepare, module, run, original, args, kwargs)
    return hook.component.dispatch(run, module, prepare, functools.partial(original, *args, **kwargs))


def _has_blocks(module: Any) -> bool:
    """Whether a model of no family that is compiled as a whole, not even one that this host has changed, has blocks."""
    if not isinstance(module, torch.nn.Module):
        return False
    home = f"{type(module).__module__}."
    return not any(use.name.startswith(home) for family in MODELS for use in family.uses) and bool(
        repeated_blocks(module)
    )


def compile_model(
    patcher: Any, options: ModelNodeOptions, node_id: str | None = None, dynprompt: Any = None
) -> tuple[Any, str]:
    """A clone of a MODEL that runs through graphs, and a sentence for the node. Cheap: compiles nothing."""
    lacking = contract.refusal("model")
    if lacking is not None:
        return patcher, eager_text(lacking)
    clone = patcher.clone()
    detach(clone)
    module: Any = getattr(clone.model, "diffusion_model", None)
    if options.backend == "off":
        return clone, "off: the model runs uncompiled"
    family = family_of(module, MODELS)
    if isinstance(family, Reason) and not _has_blocks(module):
        return clone, eager_text(family)
    source = model_source.source_of(patcher, module, dynprompt, node_id)
    if isinstance(family, Reason):
        return clone, compile_blocks(clone, module, options, node_id, source)
    hook = ModelHook(family, options, node_id, source)
    hook.attach(clone)
    refusal = family.refusal(module)
    if refusal is not None:
        return clone, eager_text(refusal)
    hook.preload(clone, dynprompt)
    backend = backend_choice.describe(options.backend, patcher.load_device)
    return clone, f"ready: {options.shapes}, {backend}; starts with the first sampling step"
