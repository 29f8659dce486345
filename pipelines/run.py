"""A run of one module: a denoising loop, a decode or an encode, in one thread."""

from __future__ import annotations

import contextlib
import threading
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from typing_extensions import override

from ..common import reasons
from ..common.errors import in_brief
from ..common.reasons import Reason
from ..common.refused import Refused
from ..runtime.calls.run import Run
from ..runtime.guards.guard_cache import GuardCache
from ..runtime.guards.module_guard import ModuleGuard
from ..runtime.obtain.registry import registry
from . import module_facts
from .families import PipeFamily
from .module_facts import ModuleFacts


@dataclass
class ModuleState:
    """What this process knows of a module whose calls are taken, gone when the module is.

    Attributes:
        runs: the run under way in each thread, and by what the next one is told from it.
        facts: what the module is to a graph, by its version.
        blocks: the same of its blocks, where those are compiled.
        lock: held while the module is inspected; several threads may call it.
    """

    guards: GuardCache = field(default_factory=GuardCache)
    runs: dict[int, tuple[tuple[Any, ...], PipeRun]] = field(default_factory=dict)
    facts: tuple[int, ModuleFacts] | None = None
    blocks: weakref.WeakKeyDictionary[torch.nn.Module, tuple[int, ModuleFacts]] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    lock: threading.RLock = field(default_factory=threading.RLock)

    def keep(self, thread: int, mark: tuple[Any, ...], run: PipeRun) -> None:
        """Keep the run of a thread, and forget those of threads that are gone."""
        with self.lock:
            alive = {one.ident for one in threading.enumerate()} | {thread}
            for gone in self.runs.keys() - alive:
                del self.runs[gone]
            self.runs[thread] = mark, run

    def read(self, module: torch.nn.Module, guard: ModuleGuard) -> ModuleFacts:
        """The facts of a module as its guard last saw it."""
        cached = self.facts
        if cached is not None and cached[0] == guard.version and cached[1].holds():
            return cached[1]
        facts = module_facts.read(module)
        self.facts = guard.version, facts
        return facts


@dataclass
class PipeRun(Run):
    """What is known of a module during a run.

    Attributes:
        structure: why no graph serves a module that is built and configured like this, or None.
    """

    live: weakref.ref[torch.nn.Module] | None = None
    family: PipeFamily | None = None
    structure: Reason | None = None
    facts: ModuleFacts | None = None

    @override
    def inspect(self, module: torch.nn.Module) -> Reason | None:
        if self.refusal is not None or self.guard is None:
            return self.refusal
        version, facts = self._read(module, self.guard)
        if version != self.version or facts is not self.facts:
            self.version, self.bound, self.requests = version, set(), []
            self.facts = facts
            assert self.family is not None
            self.structure = facts.refusal or self.guard.patched or self.family.refusal(module)
        if facts.strengths is not None:
            facts.strengths.sync()
        return self.structure or facts.refusal_now()

    @override
    def unchanged(self, module: torch.nn.Module) -> bool:
        if self.refusal is not None or self.guard is None:
            return False
        version, facts = self._read(module, self.guard)
        same = version == self.version and facts is self.facts
        return same and (self.structure or facts.refusal_now()) is None

    @property
    @override
    def may_check_later(self) -> bool:
        """Not where each call brings adapters' strengths to where the graph reads them."""
        return self.facts is None or self.facts.strengths is None

    def _read(self, module: torch.nn.Module, guard: ModuleGuard) -> tuple[int, ModuleFacts]:
        """The module's version and facts as they are now."""
        state = state_of(module)
        with state.lock:
            return guard.refresh(module), state.read(module, guard)

    def skeleton(self, module: torch.nn.Module) -> torch.nn.Module:
        """The module without what sits on the instance."""
        assert self.facts is not None
        return self.facts.bare

    @override
    def weights(self, module: torch.nn.Module) -> contextlib.AbstractContextManager[torch.nn.Module | Refused]:
        """The module whose weights a graph reads: the live one, where the names are its own."""
        assert self.facts is not None
        live = None if self.live is None or self.facts.own_weights else self.live()
        return contextlib.nullcontext(module if live is None else live)


def state_of(module: torch.nn.Module) -> ModuleState:
    """The state of a module, made at its first call."""
    states = registry().module_states
    state = states.get(module)
    if state is None:
        state = states.setdefault(module, ModuleState())
    assert isinstance(state, ModuleState)
    return state


def start_run(module: torch.nn.Module, family: PipeFamily) -> PipeRun:
    """Inspect a module at the start of a run. Never raises."""
    try:
        registry().release_orphans()
        state = state_of(module)
        with state.lock:
            guard = state.guards.of(module, module_facts.rules())
        return PipeRun(version=guard.version, guard=guard, live=weakref.ref(module), family=family)
    except Exception as error:  # never into the pipeline
        return PipeRun(reasons.NotInspected("model", type(error).__name__, in_brief(error)))
