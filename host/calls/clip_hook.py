"""The hook on a CLIP: a copy of ComfyUI's object, in whose calls the blocks of text models run by their graphs.

ComfyUI shares a text model among all clones of a CLIP, so neither the model nor the CLIP that came in is changed: the
copy's class tells the hook when a text is generated or encoded, and calls of the model are routed for as long.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ...common import reasons
from ...compiler.blocks.other_sizes import TEXTS
from ...compiler.blocks.outer_call import ModelCall
from ...graph_cache.model_hash import ModelSource
from ...runtime.calls import backend_choice
from ...runtime.calls.routing import own_slot, routed
from ...runtime.guards.guard_cache import GuardCache
from ...runtime.request import WhenMissing
from ..comfyui import contract, model_source
from ..families.text_blocks import text_models
from .block_hook import Blocks, HostBlockClient, preload_blocks, start_blocks
from .component import NodeComponent, eager_text
from .module_proxy import hooked, unhooked
from .run import HostRun

Part = Literal["generation", "encoding"]
Parts = Literal["generation", "encoding", "both"]

_UNSERVED = 4  # calls that no graph served, after which the rest of a text runs as it is
_LOADERS = {"clip_name": "text_encoders", "clip_name1": "text_encoders", "ckpt_name": "checkpoints"}


@dataclass(frozen=True)
class ClipNodeOptions:
    """The choices of the node."""

    backend: str = "auto"
    parts: Parts = "generation"
    when_missing: WhenMissing = "wait"


class ClipHook:
    """One node's hook on one CLIP: options and reports, never weights."""

    def __init__(self, options: ClipNodeOptions, node_id: str | None, source: ModelSource) -> None:
        self.options = options
        parts: tuple[Part, ...] = ("generation", "encoding")
        self._components = {part: NodeComponent(Blocks(), node_id, source, part) for part in parts}
        self._guards = GuardCache()
        self._active = threading.local()

    def __copy__(self) -> ClipHook:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> ClipHook:
        """Itself: copies of a CLIP that other nodes make belong to the same node of ours."""
        return self

    def preload(self, clip: Any) -> None:
        """Begin to restore the graphs that the store has, before the first text."""
        for part, component in self._components.items():
            if self._chosen(part):
                for name, module in text_models(clip.cond_stage_model).items():
                    preload_blocks(component, self.options, clip.patcher, module, name, self._guards)
                return  # the other part's are among them

    def run(self, part: Part, clip: Any, function: Callable[[], Any]) -> Any:
        """Generate or encode: `function` is the host's own, which loads the model and calls it."""
        if not self._chosen(part) or getattr(self._active, "text", False) or torch.compiler.is_compiling():
            return function()
        models = text_models(clip.cond_stage_model)
        text = _Text(self._components[part], self.options, clip.patcher, models, self._guards)
        self._active.text = True
        try:
            with routed([(module, [own_slot(module)]) for module in models.values()], text):
                return function()
        finally:
            self._active.text = False
            text.finish()

    def _chosen(self, part: Part) -> bool:
        return self.options.parts in (part, "both")


class _Text:
    """One text that is generated or encoded: a run of each model that is called for it.

    Args:
        models: by the prefixes of the patcher's keys.
    """

    def __init__(
        self,
        component: NodeComponent,
        options: ClipNodeOptions,
        patcher: Any,
        models: dict[str, torch.nn.Module],
        guards: GuardCache,
    ) -> None:
        self._component = component
        self._options = options
        self._patcher = patcher
        self._models = models
        self._guards = guards
        self._runs: dict[int, HostRun] = {}
        self._unserved = 0  # calls in a row

    def call_of(self, block: torch.nn.Module, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call one of the models, whose weights the host has loaded by now."""
        class_method = functools.partial(getattr(type(block), method), block, *args, **kwargs)
        run = self._runs.get(id(block)) or self._begin(block)
        if run.blocks is None:
            run.report.eager[run.refusal or reasons.NoNode()] += 1
            return class_method()
        if self._unserved >= _UNSERVED:  # looking at each block again would take longer than not
            for reason, _ in run.report.eager.most_common(1):
                run.report.eager[reason] += 1
            return class_method()
        with run.blocks.call(ModelCall(args, kwargs, method, TEXTS)):
            result = class_method()
        self._unserved = 0 if run.served else self._unserved + 1
        return result

    def _begin(self, module: torch.nn.Module) -> HostRun:
        prefix = next(name for name, one in self._models.items() if one is module)
        client = HostBlockClient(self._component, self._options, module, prefix, self._patcher.load_device)
        run = self._runs[id(module)] = start_blocks(client, self._patcher, module, self._guards)
        return run

    def finish(self) -> None:
        """Report the runs."""
        for run in self._runs.values():
            self._component.finish(run)


class Calls:
    """Mixed into the CLIP's class: tells the hook of texts."""

    onegraph: ClipHook

    def clone(self, *args: Any, **kwargs: Any) -> Any:
        """Clone it as one that came through our node, too: loaders of LoRAs do."""
        return hooked(super().clone(*args, **kwargs), Calls, self.onegraph)  # type: ignore[misc]


def _told(name: str) -> Callable[..., Any]:
    """A method of the CLIP that tells the hook of its calls."""
    part: Part = "generation" if name == "generate" else "encoding"

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.onegraph.run(part, self, functools.partial(getattr(super(Calls, self), name), *args, **kwargs))

    method.__name__ = name
    return method


for _name in ("generate", "encode_from_tokens", "encode_from_tokens_scheduled"):
    setattr(Calls, _name, _told(_name))


def compile_clip(
    clip: Any, options: ClipNodeOptions, node_id: str | None = None, dynprompt: Any = None
) -> tuple[Any, str]:
    """A copy of a CLIP whose texts run through graphs, and a sentence for the node. Cheap: compiles nothing."""
    plain = unhooked(clip, Calls)
    if options.backend == "off":
        return plain, "off: texts run uncompiled"
    lacking = contract.refusal("CLIP")
    if lacking is not None:
        return plain, eager_text(lacking)
    models = text_models(plain.cond_stage_model)
    if not models:
        return plain, eager_text(reasons.NoTextBlocks(type(plain.cond_stage_model).__name__))
    source = model_source.source_of(plain.patcher, plain.cond_stage_model, dynprompt, node_id, _LOADERS)
    hook = ClipHook(options, node_id, source)
    hook.preload(plain)
    backend = backend_choice.describe(options.backend, plain.patcher.load_device)
    return hooked(plain, Calls, hook), f"ready: {options.parts}, {backend}; starts with the first text"
