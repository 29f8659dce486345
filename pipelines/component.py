"""One module of a pipeline as it is compiled: its calls, its requests, and what happened in them."""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..common import reasons
from ..common.log import logger
from ..common.outputs import Output, is_finite, tensors_of
from ..common.refused import Refused
from ..common.tensor_meta import dtype_name
from ..compiler.process.progress import Progress
from ..graph_cache.model_hash import ModelSource
from ..runtime.calls import component
from ..runtime.calls.component import Choice, ShapePolicy, shape_policy_of
from ..runtime.calls.dispatch import Accepted, Call, Substituted, fault_of
from ..runtime.calls.run import Run
from ..runtime.calls.run_report import RunReport
from ..runtime.family import Shapes, Tensors
from ..runtime.request import Request, RequestContext, WhenMissing
from ..runtime.weights_digest import weights_digest
from . import callers, compile_client
from .callers import Caller
from .families import PipeFamily
from .interception import Interception
from .progress import CompileBar
from .run import PipeRun, start_run, state_of

log = logger("pipelines")

_PAUSE_SECONDS = 2.0  # after which calls of a module without a pipeline ask again for a graph that was refused


@dataclass(frozen=True)
class PipelineOptions:
    """The choices of `compile_pipe`.

    Attributes:
        folders: with saved graphs, from `load_pipe`.
    """

    backend: str = "auto"
    shapes: Shapes = "any size"
    when_missing: WhenMissing = "wait"
    folders: tuple[Path, ...] = ()


@dataclass(frozen=True)
class _Eager:
    """What the module itself returned."""

    result: Any


class PipeComponent(component.Component):
    """The calls of one module, whichever pipelines it belongs to.

    Attributes:
        name: as in its pipeline, with dots.
        report: of all calls so far.
        used: requests for graphs, by key digest, without their modules.
        owners: the pipelines that were compiled with it, and its module where that was compiled by itself.
        most_sizes: how many graphs for one size each it may have; None: as many as the runtime allows.
        choices: how often the options have changed: a run that began before is over.
        then: to be called once, after the first call that a graph serves.
    """

    def __init__(self, name: str, module: torch.nn.Module, family: PipeFamily, options: PipelineOptions) -> None:
        super().__init__(family)
        self.family: PipeFamily = family
        self.name = name
        self.options = options
        self.report = RunReport()
        self.used: dict[str, Request] = {}
        self.owners: weakref.WeakSet[Any] = weakref.WeakSet()
        self.most_sizes: int | None = None
        self.choices = 0
        self.then: Callable[[], None] | None = None
        self._digest: str | None = None
        self.interception = Interception(module, family.method, self.serve)

    def set_options(self, options: PipelineOptions) -> None:
        """Go by other choices from the next run on; folders with saved graphs stay."""
        folders = tuple(dict.fromkeys([*self.options.folders, *options.folders]))
        self.options = dataclasses.replace(options, folders=folders)
        self.choices += 1

    def add_folder(self, folder: Path) -> None:
        """Look for graphs in a folder, too, from the next run on."""
        self.set_options(dataclasses.replace(self.options, folders=(folder,)))

    def release(self, owner: Any) -> None:
        """Let the module run as it did before, unless somebody else compiled it, too."""
        self.owners.discard(owner)
        if not self.owners:
            self.interception.remove()

    def device(self) -> torch.device | None:
        """Where the module's weights are; None where it has none."""
        module = self.interception.module()
        first = None if module is None else next(module.parameters(), None)
        return None if first is None else first.device

    # One call -----------------------------------------------------------------------------------------------

    def serve(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], original: Callable[..., Any]
    ) -> Any:
        """Run a call of the module: by a graph where one serves it, else by `original`."""
        caller = None if self.family.each_call_is_a_run else callers.calling()
        run = self.run_of(module, caller)
        prepare = functools.partial(self._prepare, run, module, args, kwargs)
        result = self.dispatch(run, module, prepare, lambda: _Eager(original(*args, **kwargs)))
        if isinstance(result, _Eager):
            return result.result
        self.after_first()
        return self.family.output(result, args, kwargs)

    def after_first(self) -> None:
        """Do what waits for a graph. Never raises."""
        then, self.then = self.then, None
        if then is not None:
            try:
                then()
            except Exception:  # never into the pipeline
                log.exception("what was to follow the first compiled call of %s failed", self.name)

    def run_of(self, module: torch.nn.Module, caller: Caller | None) -> PipeRun:
        """The run that a call of this thread belongs to."""
        state, thread = state_of(module), threading.get_ident()
        mark = self._mark(caller)
        entry = state.runs.get(thread)
        if entry is not None and mark is not None and _is_same(entry[0], mark):
            return entry[1]
        run = self.start_run(module)
        run.refusal = run.refusal or self.interception.refusal
        state.keep(thread, mark or (), run)
        return run

    def start_run(self, module: torch.nn.Module) -> PipeRun:
        """Inspect a module at the start of a run. Never raises."""
        run = start_run(module, self.family)
        run.report = self.report
        return run

    def _mark(self, caller: Caller | None) -> tuple[Any, ...] | None:
        """What tells one denoising loop from the next; None: each call is a run.

        Calls without a pipeline are all checked for everything, so that it makes no difference where their runs begin:
        in each one everything that was refused is tried again.
        """
        if self.family.each_call_is_a_run:
            return None
        if caller is None:
            return self.choices, int(time.monotonic() / _PAUSE_SECONDS)
        mark = caller.mark()
        return None if mark is None else (self.choices, *mark)

    def _prepare(
        self, run: PipeRun, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Call | Refused:
        """What to run through a graph for one call, or why not."""
        when_missing = "eager" if self.family.only_restores() else self.options.when_missing
        shape_policy = shape_policy_of(self.options.shapes)
        call = self.prepared(run, module, args, kwargs, Choice(self.options.backend, shape_policy, when_missing))
        if isinstance(call, Refused) or not self.family.checks_finite:
            return call
        request, eager = call.request, call.eager

        def accept(inputs: Sequence[torch.Tensor], output: Output) -> Accepted:
            if is_finite(output):
                return output
            reference = eager(*inputs)
            dtype = dtype_name(tensors_of(reference)[0].dtype)
            return Substituted(reference, fault_of(request, reference) or reasons.ResultNotFinite(dtype))

        return dataclasses.replace(call, accept=accept)

    # Requests -----------------------------------------------------------------------------------------------

    def request(
        self, run: Run, module: torch.nn.Module, tensors: Tensors, backend: str, shape_policy: ShapePolicy
    ) -> Request | Refused:
        """As every component's, with those that were made kept in `used`, as many as there may be."""
        request = super().request(run, module, tensors, backend, shape_policy)
        if isinstance(request, Refused):
            return request
        if self._is_one_too_many(request):
            return Refused(reasons.TooManyExactSizes(self.most_sizes or 0, request.label))
        self.note(request)
        return request

    def note(self, request: Request) -> None:
        """Remember what was asked for, to be saved."""
        if request.key.digest not in self.used:
            self.used[request.key.digest] = request.without_module()

    def _is_one_too_many(self, request: Request) -> bool:
        if self.most_sizes is None or not request.shapes.exact:
            return False
        used = self.used.items()
        others = [digest for digest, one in used if one.shapes.exact and digest != request.key.digest]
        return request.key.digest not in self.used and len(others) >= self.most_sizes

    # What this client tells ---------------------------------------------------------------------------------

    def context(self, module: torch.nn.Module) -> RequestContext:
        """Who asks for graphs of a module."""
        if self._digest is None:
            self._digest = weights_digest(module)
        return RequestContext(
            component=self.family.component,
            source=ModelSource(None, self._digest),
            client=compile_client.client(),
            environment=compile_client.environment(),
            neighbours=self.options.folders,
        )

    def follow(self, label: str) -> Callable[[Progress], None]:
        """Show a compile as a bar. Ctrl-C is an exception of Python's own, and stops it as it is."""
        config = next((getattr(pipe, "_progress_bar_config", {}) for pipe in list(self.owners)), {})
        return CompileBar(f"{self.name} ({label})", dict(config))


def _is_same(before: tuple[Any, ...], now: tuple[Any, ...]) -> bool:
    """Whether two marks name the same tensors, which have no equality of their own, or the same time."""
    if len(before) != len(now):
        return False
    return all(
        a() is b() is not None if isinstance(a, weakref.ref) and isinstance(b, weakref.ref) else a == b
        for a, b in zip(before, now, strict=True)
    )
