"""A run of a ComfyUI model: what is inspected when it starts and before each call."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from typing_extensions import override

from ...common import reasons
from ...common.errors import in_brief
from ...common.reasons import Reason
from ...common.refused import Refused
from ...common.torch_private import every_modules_hooks, hook_tables
from ...runtime.calls.run import Run
from ...runtime.calls.session import BlockRun
from ...runtime.calls.weight_source import WeightSource
from ...runtime.graphs.binding import Held
from ...runtime.guards.guard_cache import GuardCache
from ...runtime.guards.module_guard import ModuleGuard
from ...runtime.obtain.registry import registry
from ..weights import eligibility, host_memory, low_vram_blocks, paged_blocks, paged_weights, plain


@dataclass
class HostRun(Run):
    """One sampling, decode or encode.

    Attributes:
        patcher: ComfyUI's patcher of the model that runs.
        epoch: ComfyUI's counters of weight moves when the weights were last checked.
        paged: under DynamicVRAM, the access to the weights.
        call_bytes: that one eager call takes by the host's own estimate, where the patcher's model has none.
        prefix: of the patcher's keys that belong to the module.
        blocks: of a model whose blocks are compiled.
        block_versions: of each of these blocks as it is now, where only a part of the model is loaded.
    """

    patcher: Any = None
    epoch: tuple[Any, ...] | None = None
    paged: paged_weights.Paged | None = None
    call_bytes: int = 0
    prefix: str = ""
    blocks: BlockRun | None = None
    block_versions: dict[str, int] = field(default_factory=dict)
    held: Held | None = field(default_factory=Held)

    @property
    def weights_version(self) -> int | None:
        """As for any run; DynamicVRAM may have written other weights to the same addresses."""
        return self.version if self.paged is None else None

    @property
    def filling_s(self) -> float:
        """Seconds that DynamicVRAM took to bring the weights."""
        return 0.0 if self.paged is None else self.paged.filling_s

    @property
    def can_stream(self) -> bool:
        """Whether graphs do without having all weights on the device."""
        if self.blocks is None:
            return False
        return paged_blocks.is_possible() if self.paged is not None else low_vram_blocks.is_partly_loaded(self.patcher)

    @override
    def inspect(self, module: torch.nn.Module) -> Reason | None:
        if self.refusal is not None or self.guard is None:
            return self.refusal
        epoch, version = eligibility.epoch(self.patcher), self.guard.refresh(module)
        if version != self.version:
            self.refusal = self._page_anew(module, version)
        if (epoch, version) != (self.epoch, self.version):
            self.epoch, self.version, self.bound, self.requests = epoch, version, set(), []
        return self.refusal or self._refusal(module, self.guard)

    @override
    def unchanged(self, module: torch.nn.Module) -> bool:
        guard = self.guard
        return (
            guard is not None
            and guard.refresh(module) == self.version
            and eligibility.epoch(self.patcher) == self.epoch
            and (self.refusal or self._refusal(module, guard)) is None
        )

    def _refusal(self, module: torch.nn.Module, guard: ModuleGuard) -> Reason | None:
        """Why no graph serves the module as its guard last saw it, or None."""
        refusal = eligibility.refusal(self.patcher, guard, self.prefix)
        return refusal or (plain.refusal(module) if guard.composite else None) or guard.patched

    def _page_anew(self, module: torch.nn.Module, version: int) -> Reason | None:
        """The module is another one now, and so is its skeleton."""
        if self.paged is None:
            return None
        self.paged.release()
        paged = paged_weights.paged(self.patcher, module, version)
        if isinstance(paged, Refused):
            return paged.reason
        self.paged = paged
        return None

    def release(self) -> None:
        """Keep nothing of the model's weights: the run is over, or the host wants their memory."""
        if self.held is not None:
            self.held.release()
        if self.paged is not None:
            self.paged.release()

    def skeleton(self, module: torch.nn.Module) -> torch.nn.Module:
        """The module as a graph is compiled for it: under DynamicVRAM not the live one, which is busy with paging."""
        if self.paged is not None:
            return self.paged.skeleton
        return module if self.blocks is None else low_vram_blocks.skeleton(self.patcher, module)

    @override
    def weights(self, module: torch.nn.Module) -> contextlib.AbstractContextManager[torch.nn.Module | Refused]:
        if self.paged is not None:
            return self.paged.held()
        refusal = None if self.blocks is None else low_vram_blocks.whole_refusal(self.patcher)
        return contextlib.nullcontext(module if refusal is None else Refused(refusal))

    @override
    def timesteps(self, options: Any) -> Sequence[float]:
        sigmas = options.get("sample_sigmas") if isinstance(options, dict) else None
        model, sampling = self.patcher.model.diffusion_model, getattr(self.patcher.model, "model_sampling", None)
        if sampling is None or not isinstance(sigmas, torch.Tensor):
            return ()
        # Of what is called once more, nothing may be somebody else's, who may count.
        hooked = any(any(hook_tables(one)) for one in model.modules()) or any(every_modules_hooks())
        wrapped = any(options.get("wrappers", {}).get("diffusion_model", {}).values())
        if hooked or wrapped or type(model).__module__.partition(".")[0] != "comfy":
            return ()
        return [*sampling.timestep(sigmas[:-1]).float().tolist()]

    def weight_source(self, module: torch.nn.Module, refusal: Reason) -> WeightSource | None:
        """DynamicVRAM's pages and buffers, or system memory, block by block, where there is no room for all weights."""
        if isinstance(refusal, reasons.LowVram | reasons.WeightComputed):
            return low_vram_blocks.staged(self.patcher, module, self.block_versions)
        if self.paged is None or not isinstance(refusal, reasons.NoRoomForWeights):
            return None
        return paged_blocks.streamed(module, self.paged, self.patcher.load_device)


def start_run(patcher: Any, module: torch.nn.Module, prefix: str, guards: GuardCache | None = None) -> HostRun:
    """Inspect the model at the start of a run, when its weights are loaded. Never raises.

    `guards` are those of earlier runs: with them a model that is as it was costs a millisecond, else some 50.
    """
    try:
        registry().release_orphans()
        host_memory.announce_run(patcher.load_device)
        guard = (guards or GuardCache()).of(module, eligibility.rules())
        refusal = eligibility.refusal(patcher, guard, prefix)
        paged = None
        if refusal is None and paged_weights.is_paged(patcher):
            access = paged_weights.paged(patcher, module, guard.version)
            if isinstance(access, Refused):
                refusal = access.reason
            else:
                paged = access
        return HostRun(
            refusal=refusal,
            version=guard.version,
            patcher=patcher,
            guard=guard,
            epoch=eligibility.epoch(patcher),
            paged=paged,
            prefix=prefix,
        )
    except Exception as error:  # never into the queue
        return HostRun(reasons.NotInspected("model", type(error).__name__, in_brief(error)), patcher=patcher)
