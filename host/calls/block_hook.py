"""The hook on a MODEL whose blocks are compiled: it lasts as long as each call, in which the model runs as ever.

An APPLY_MODEL wrapper: not all of ComfyUI's diffusion models let DIFFUSION_MODEL wrappers run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from typing_extensions import override

from ...common import reasons
from ...common.errors import in_brief
from ...common.reasons import Reason
from ...common.refused import Refused
from ...compiler.blocks.other_sizes import FORWARD, Scale
from ...compiler.blocks.repeated import entries_of, repeated_blocks
from ...compiler.code.fingerprint import Rules
from ...graph_cache.model_hash import ModelSource
from ...runtime.calls import backend_choice
from ...runtime.calls.requests import COMPONENT, stored_requests
from ...runtime.calls.routing import MethodSlot, own_slot
from ...runtime.calls.session import BlockRun
from ...runtime.guards.guard_cache import GuardCache
from ...runtime.guards.module_guard import ModuleGuard
from ...runtime.obtain.registry import registry
from ...runtime.request import Request, WhenMissing
from ..capture.attention import ChosenAttention, compared
from ..comfyui import contract
from ..families.family import HostFamily
from ..weights import eligibility, host_memory, low_vram_blocks, paged_weights, plain
from . import memory_plans
from .component import NodeComponent, eager_text
from .memory_plans import MemoryPlans
from .run import HostRun
from .sampling_hook import SamplingHook, active, guards_of

if TYPE_CHECKING:
    from ..comfyui.options import ModelNodeOptions

_PREFIX = "diffusion_model."  # of the patcher's keys


class BlockOptions(Protocol):
    """The choices of a node that blocks are compiled by."""

    @property
    def backend(self) -> str: ...

    @property
    def when_missing(self) -> WhenMissing: ...


class Blocks(HostFamily):
    """What the blocks of all models have in common for the host."""

    component = COMPONENT


class BlockHook(SamplingHook):
    """A node's hook on a model whose blocks are compiled."""

    wraps = "APPLY_MODEL"

    def __init__(self, options: ModelNodeOptions, node_id: str | None, source: ModelSource) -> None:
        super().__init__(NodeComponent(Blocks(), node_id, source))
        self.options = options

    def preload(self, patcher: Any) -> None:
        """Begin to restore the graphs that the store has for the model's blocks, before the first call."""
        module = patcher.model.diffusion_model
        preload_blocks(self.component, self.options, patcher, module, _PREFIX, guards_of(patcher))

    @override
    def start(self, patcher: Any, module: torch.nn.Module) -> HostRun:
        client = HostBlockClient(self.component, self.options, module, _PREFIX, patcher.load_device)
        return start_blocks(client, patcher, module, guards_of(patcher))

    @override
    def wrapper(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return executor(*args, **kwargs)
        hook, run = active(executor.class_obj.diffusion_model)
        if run is None or not isinstance(hook, BlockHook):
            registry().counters.count_eager(reasons.NoNode())
            return executor(*args, **kwargs)
        if run.blocks is None:
            run.report.eager[run.refusal or reasons.NoNode()] += 1
            return executor(*args, **kwargs)
        with contextlib.ExitStack() as lasting:
            if run.blocks.may_serve and lasting.enter_context(memory_plans.off(run.patcher.load_device)):
                run.report.blocks.note = memory_plans.NOTE
            lasting.enter_context(run.blocks.call())
            return executor(*args, **kwargs)


def preload_blocks(
    component: NodeComponent,
    options: BlockOptions,
    patcher: Any,
    module: torch.nn.Module,
    prefix: str,
    guards: GuardCache,
) -> None:
    """Begin to restore the graphs that the store has for a model's blocks."""

    def requests() -> Iterator[tuple[Request, int]]:
        client = HostBlockClient(component, options, module, prefix, patcher.load_device)
        return stored_requests(client, module, patcher.load_device, guards)

    component.preload_requests(patcher, requests, options.backend if options.when_missing != "eager" else "")


def start_blocks(client: HostBlockClient, patcher: Any, module: torch.nn.Module, guards: GuardCache) -> HostRun:
    """Begin a run of a model whose blocks are compiled, and whose weights are loaded. Never raises."""
    try:
        registry().release_orphans()
        host_memory.announce_run(patcher.load_device)
        return _started(client, patcher, module, guards)
    except Exception as error:  # never into the queue
        return HostRun(reasons.NotInspected("model", type(error).__name__, in_brief(error)), patcher=patcher)


def _started(client: HostBlockClient, patcher: Any, module: torch.nn.Module, guards: GuardCache) -> HostRun:
    run = HostRun(
        patcher=patcher,
        epoch=eligibility.epoch(patcher),
        prefix=client.prefix,
    )
    if paged_weights.is_paged(patcher):
        run.guard = guards.of(module, eligibility.rules())
        run.version = run.guard.version
        paged = paged_weights.paged(patcher, module, run.version)
        if not isinstance(paged, paged_weights.Paged):
            run.refusal = paged.reason
            return run
        run.paged = paged
    run.blocks = BlockRun(client, run, module, guards)
    return run


class HostBlockClient:
    """What a run of blocks asks ComfyUI.

    Args:
        prefix: of the patcher's keys that belong to the model.
        entries: see `BlockClient`.
    """

    def __init__(
        self,
        component: NodeComponent,
        options: BlockOptions,
        model: torch.nn.Module,
        prefix: str,
        device: torch.device,
        entries: Mapping[str, Scale] = FORWARD,
    ) -> None:
        self.entries = entries
        self.component = component
        self.model = model
        self.backend = options.backend
        self.when_missing = options.when_missing
        self.packages = tuple(dict.fromkeys(("comfy", type(model).__module__.partition(".")[0])))
        self._attention = ChosenAttention(model, self.packages)
        self.attention, self.call_refusal = self._attention.of_call, MemoryPlans(device).refusal  # of each block's call
        self._surroundings: dict[frozenset[type], tuple[int, ...]] = {}
        self._weights: dict[str, tuple[tuple[Any, ...], Reason | None]] = {}  # of each block, when it was last checked
        self._entries: dict[torch.nn.Module, list[str]] = {}
        self._paged_versions: dict[str, int] = {}  # of each block, when the run began
        self.prefix = prefix
        self._prefixes = tuple(f"{prefix}{name}" for name in repeated_blocks(model))

    def rules(self) -> Rules:
        return rules()

    def refusal(self, run: HostRun) -> Reason | None:
        epoch = eligibility.epoch(run.patcher)
        if epoch != run.epoch:
            run.epoch = epoch
        self._attention.look()
        self._surroundings = {}
        return eligibility.patcher_refusal(run.patcher, self._prefixes)

    def skeleton(
        self, run: HostRun, name: str, block: torch.nn.Module, guard: ModuleGuard
    ) -> torch.nn.Module | Refused:
        brought = run.paged is None and low_vram_blocks.whole_refusal(run.patcher) is not None
        if brought:
            refusal = low_vram_blocks.refusal(block)
        else:
            refusal = eligibility.placement_refusal(run.patcher, guard, whole=False)
        if refusal is None and guard.composite:
            refusal = self._weights_refusal(name, block, guard, brought)
        if refusal is None and brought:
            run.block_versions[name] = guard.version
            return low_vram_blocks.copies(run.patcher, block, guard.version).skeletons[0]
        if refusal is None and run.paged is not None:
            if self._paged_versions.setdefault(name, guard.version) != guard.version:
                return Refused(reasons.BlockChanged(name))  # the copies that have its weights are of what it was
            return run.paged.skeleton.get_submodule(name)
        return block if refusal is None else Refused(refusal)

    def _weights_refusal(self, name: str, block: torch.nn.Module, guard: ModuleGuard, brought: bool) -> Reason | None:
        """Why no graph computes with a block's quantised weights, or None. `brought`: before each call."""
        classes = frozenset(guard.classes())
        around = self._surroundings.get(classes)
        if around is None:  # once in a call of the model
            around = self._surroundings[classes] = plain.surroundings(classes)
        checked = guard.version, around, brought
        last_check = self._weights.get(name)
        if last_check is None or last_check[0] != checked:
            last_check = self._weights[name] = checked, plain.refusal(block, brought)
        return last_check[1]

    def before_call(self, run: HostRun, block: torch.nn.Module) -> None:
        """Nothing: graphs read weights alone."""

    def requested(self, request: Request) -> None:
        """Nothing: a checkpoint's graphs are saved beside it."""

    def slots(self, block: torch.nn.Module) -> Sequence[MethodSlot]:
        if block not in self._entries:  # 11 us each, at each call of the model
            self._entries[block] = sorted(entries_of(block))
        return [own_slot(block, name) for name in self._entries[block]]

    def compared(self, options: Any) -> Any:
        return compared(options)


def rules() -> Rules:
    """How blocks are to be read: as ComfyUI's modules, with a forward of ours on them now and then."""
    from dataclasses import replace

    return replace(eligibility.rules(), intercepted=entries_of, numbers=frozenset({"layer_id", "block_id"}))


def compile_blocks(
    model: Any, module: torch.nn.Module, options: ModelNodeOptions, node_id: str | None, source: ModelSource
) -> str:
    """Compile the blocks of a MODEL, a fresh clone; a sentence for the node."""
    lacking = contract.refusal("blocks")
    if lacking is not None:
        return eager_text(lacking)
    hook = BlockHook(options, node_id, source)
    hook.attach(model)
    hook.preload(model)
    backend = backend_choice.describe(options.backend, model.load_device)
    return (
        f"ready: block graphs for {len(repeated_blocks(module))} blocks, {backend}; starts with the first sampling step"
    )
