"""A model of diffusers whose blocks are compiled: its own forward runs, and its blocks' calls go through graphs."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from typing_extensions import override

from ..common import reasons
from ..common.errors import in_brief
from ..common.reasons import Reason
from ..common.refused import Refused
from ..compiler.blocks.other_sizes import FORWARD
from ..compiler.blocks.outer_call import ModelCall
from ..compiler.code.fingerprint import Rules
from ..runtime.calls.dispatch import count_eager
from ..runtime.calls.routing import MethodSlot
from ..runtime.calls.session import BlockRun
from ..runtime.calls.weight_source import WeightSource
from ..runtime.guards.module_guard import ModuleGuard
from ..runtime.obtain.registry import registry
from ..runtime.request import Request
from ..signature.call_rules import Attention
from . import adapters, callers, library_weights, module_facts, offloading
from .component import PipeComponent
from .run import PipeRun, state_of

_PACKAGE = "diffusers"  # whose objects blocks' arguments are taken apart by


class BlockComponent(PipeComponent):
    """The calls of one model whose blocks are compiled."""

    @override
    def serve(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], original: Callable[..., Any]
    ) -> Any:
        caller = callers.calling()
        run = self.run_of(module, caller)
        if not isinstance(run, _BlocksRun) or run.blocks is None:
            run.report.call_starts()
            count_eager(run, run.refusal or reasons.NoGraph())
            return original(*args, **kwargs)
        with run.blocks.call(ModelCall(args, dict(kwargs))):
            result = original(*args, **kwargs)
        if run.served:
            self.after_first()
        return result

    @override
    def start_run(self, module: torch.nn.Module) -> PipeRun:
        run = _BlocksRun(report=self.report, live=weakref.ref(module))
        try:
            registry().release_orphans()
            state = state_of(module)
            run.blocks = BlockRun(PipeBlockClient(self, module), run, module, state.guards, state.lock)
        except Exception as error:  # never into the pipeline
            run.refusal = reasons.NotInspected("model", type(error).__name__, in_brief(error))
        return run


class _BlocksRun(PipeRun):
    """A run of a model whose blocks are compiled."""

    blocks: BlockRun | None = None

    @override
    def skeleton(self, module: torch.nn.Module) -> torch.nn.Module:
        skeletons = {block: facts.bare for block, (_, facts) in state_of(module).blocks.items()}
        return _skeleton(module, skeletons)

    @override
    def weights(self, module: torch.nn.Module) -> contextlib.AbstractContextManager[torch.nn.Module | Refused]:
        offloaded = any(map(offloading.is_offloaded, state_of(module).blocks))
        return contextlib.nullcontext(Refused(reasons.OffloadedWeights()) if offloaded else module)

    @override
    def weight_source(self, module: torch.nn.Module, refusal: Reason) -> WeightSource | None:
        if refusal != reasons.OffloadedWeights():
            return None
        blocks, model = state_of(module).blocks, weakref.ref(module)

        def block_of(name: str) -> tuple[torch.nn.Module, torch.nn.Module]:
            live = model()
            assert live is not None  # it is called
            block = live.get_submodule(name)
            return block, blocks[block][1].bare

        return offloading.OffloadedBlocks(block_of)


def _skeleton(module: torch.nn.Module, skeletons: Mapping[torch.nn.Module, torch.nn.Module]) -> torch.nn.Module:
    """A copy of a model that shares its weights, without what sits on its modules.

    Args:
        skeletons: of its blocks. Adapters elsewhere are left out: they change no sizes.
    """
    skeleton = skeletons.get(module)
    return module_facts.with_children(
        skeleton if skeleton is not None else adapters.plain(module), lambda child: _skeleton(child, skeletons)
    )


class PipeBlockClient:
    """What a run of blocks asks pipelines."""

    entries = FORWARD

    def __init__(self, component: BlockComponent, model: torch.nn.Module) -> None:
        self._component_of = weakref.ref(component)
        self._model = weakref.ref(model)
        self.backend = component.options.backend
        self.when_missing = component.options.when_missing
        self.packages = tuple(dict.fromkeys((_PACKAGE, type(model).__module__.partition(".")[0])))

    @property
    def component(self) -> BlockComponent:
        component = self._component_of()
        assert component is not None  # its run is under way
        return component

    @property
    def model(self) -> torch.nn.Module:
        model = self._model()
        assert model is not None  # it is called
        return model

    def rules(self) -> Rules:
        return module_facts.rules()

    def refusal(self, run: PipeRun) -> Reason | None:
        return None  # what holds for all blocks is seen when their weights are asked for: a block may just have changed

    def skeleton(
        self, run: PipeRun, name: str, block: torch.nn.Module, guard: ModuleGuard
    ) -> torch.nn.Module | Refused:
        blocks = state_of(self.model).blocks
        version, facts = blocks.get(block, (None, None))
        if facts is None or version != guard.version or not facts.holds():
            facts = module_facts.read(block, module_facts.is_own, library_weights.refusal)
            blocks[block] = guard.version, facts
        refusal = facts.refusal or facts.refusal_now()
        if refusal is not None:
            return Refused(refusal)
        return facts.bare  # another one when the facts change: an attention processor may, and no guard sees that

    def slots(self, block: torch.nn.Module) -> Sequence[MethodSlot]:
        return [offloading.slot(block)]

    def before_call(self, run: PipeRun, block: torch.nn.Module) -> None:
        """The scale of a call's LoRAs is set within the model's forward."""
        entry = state_of(self.model).blocks.get(block)
        if entry is not None and entry[1].strengths is not None:
            entry[1].strengths.sync()

    def requested(self, request: Request) -> None:
        self.component.note(request)

    def call_refusal(self) -> Reason | None:
        return None

    def attention(self, options: Any) -> Attention:
        return "captured"  # a chosen backend or processor is a fact of the block

    def compared(self, options: Any) -> Any:
        return options
