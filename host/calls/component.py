"""A component of a ComfyUI model as one node compiles it: its requests, its preload, and the end of its runs."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from ...backends import rebuilder
from ...common import memory
from ...common.log import logger
from ...common.reasons import Reason
from ...common.refused import Refused
from ...compiler.process import ready_workers
from ...compiler.process.progress import Progress
from ...graph_cache.model_hash import ModelSource
from ...runtime.calls import component
from ...runtime.calls.component import shape_policy_of
from ...runtime.family import Arguments
from ...runtime.guards.guard_cache import GuardCache
from ...runtime.obtain import likely_compile
from ...runtime.obtain.registry import registry
from ...runtime.request import Request, RequestContext
from ..capture import compile_client
from ..comfyui import model_source
from ..comfyui.garbage import no_collection
from ..families import HostFamily
from ..show import badges, status
from ..show.progress import CompileProgress, report_run
from ..weights import eligibility, host_memory, paged_weights
from ..weights.quantised import composites
from .run import HostRun

log = logger("host")


class NodeComponent(component.Component):
    """One component of one node: the host's side of dispatching its calls.

    Args:
        part: names it where a node has several.
    """

    def __init__(self, family: HostFamily, node_id: str | None, source: ModelSource, part: str = "") -> None:
        super().__init__(family)
        self.family: HostFamily = family
        self.node_id = node_id
        self.source = source
        self.part = part

    def context(self, module: torch.nn.Module) -> RequestContext:
        """Who asks for graphs of a module."""
        return RequestContext(
            component=self.family.component,
            source=self.source,
            client=compile_client.client(),
            environment=compile_client.environment(),
            neighbours=model_source.model_folders(self.family.folders),
            composites=composites(),
        )

    def with_memory(self, run: HostRun, request: Request, x: torch.Tensor) -> Request:
        """The request with what the host knows of memory, for a graph that may have to be compiled."""
        try:
            call = run.call_bytes or host_memory.call_bytes(run.patcher, x)
            planned = host_memory.inference_bytes(call)
            make_room = None
            if run.can_stream:  # pages go where a compile takes their room, and come back later
                make_room = paged_weights.room_maker(run.patcher)
            else:
                planned += host_memory.missing_bytes(run.patcher)
        except Exception:  # of the host's own estimates
            log.debug("the host's need of memory is not known", exc_info=True)
            call, planned, make_room = 0, 0, None
        return dataclasses.replace(
            request,
            call_bytes=call,
            planned_bytes=planned,
            make_room=make_room,
            watch=functools.partial(badges.compiling, self.node_id, status.current_origin()),
            idle=host_memory.queue_is_idle,
            busy=host_memory.queue_is_busy,
        )

    def follow(self, label: str) -> Callable[[Progress], None]:
        """Show a compile on the node and in the queue, and stop it when the user interrupts."""
        return CompileProgress(self.node_id, label)

    def preload(
        self,
        patcher: Any,
        module: torch.nn.Module,
        backend: str,
        examples: Callable[[], Sequence[Arguments]],
        guards: GuardCache,
        compiles: bool = False,
    ) -> None:
        """Begin to restore graphs for any size that serve some calls, while the host encodes prompts. Never raises.

        Args:
            patcher: ComfyUI's, of the model.
            module: the patcher's model, or the part of it that will run.
            examples: makes calls that will come.
            compiles: whether a graph that is missing will be compiled.
        """

        def wanted() -> Iterator[tuple[Request, int]]:
            for request in self.expected(patcher, module, backend, examples, guards):
                if isinstance(request, Request) and rebuilder(request.backend) is None:
                    yield request, 1

        self.preload_requests(patcher, wanted, backend if compiles else "")

    def expected(
        self,
        patcher: Any,
        module: torch.nn.Module,
        backend: str,
        examples: Callable[[], Sequence[Arguments]],
        guards: GuardCache,
    ) -> Iterator[Request | Refused]:
        """Make the requests of calls that will come, or why none is made; the arguments are those of `preload`."""
        guard = guards.of(module, eligibility.rules())
        paged = paged_weights.paged(patcher, module, guard.version) if paged_weights.is_paged(patcher) else None
        if isinstance(paged, Refused):
            yield paged
            return
        run = HostRun(version=guard.version, patcher=patcher, guard=guard, paged=paged)
        for example in examples():
            tensors = self.family.read(module, example.args, example.kwargs)
            shape_policy = shape_policy_of("any size")
            yield tensors if isinstance(tensors, Refused) else self.request(run, module, tensors, backend, shape_policy)

    def preload_requests(
        self, patcher: Any, requests: Callable[[], Iterable[tuple[Request, int]]], compiles: str
    ) -> None:
        """Begin to restore graphs, each in a thread, where the device is one on which that pays. Never raises.

        Where there are none, compiling processes are started ahead.

        Args:
            requests: gives them, and how many modules each will serve.
            compiles: the choice of the backend by which one that is missing will be compiled; empty: none will.
        """
        try:
            device, policy = patcher.load_device, registry().policy
            room = patcher.model_size() + policy.preload_room
            if device.type not in policy.preload_on or memory.unused_bytes(device) < room:
                return
            has_requests = False
            for request, modules in requests():
                has_requests = True
                name = f"onegraph-preload-{request.key.digest}"
                args = (request, policy.preload_room, modules, compiles)
                # Not a daemon: a process that ends in the midst would leave the mark of a graph that takes it down.
                threading.Thread(target=_preload, args=args, name=name).start()
            if not has_requests and compiles:  # blocks, whose graphs are asked for by what the store has
                likely_compile.expect(compiles, device, ready_workers.MOST)
        except Exception:  # never into the queue; the first call does without
            log.debug("no graph was preloaded", exc_info=True)

    # The end of a run ---------------------------------------------------------------------------------------

    def finish(self, run: HostRun) -> None:
        """Say on the node, in the log and to the status route what happened in a run. Never raises."""
        try:
            self._finish(run)
        except Exception:  # never into the queue: the image is there
            log.exception("the end of a run could not be reported")

    def _finish(self, run: HostRun) -> None:
        run.release()
        report = run.report
        if run.refusal is not None and not report.calls:
            report.eager[run.refusal] += 1
        device = getattr(run.patcher, "load_device", None)
        wait_for(device)
        if device is not None:
            registry().trim(device)
            held = host_memory.announce_captures(device)
            report.captured_bytes = held if report.compiled_calls else 0
        report.finish()
        report_run(self.node_id, self.part, report)


def _preload(request: Request, room: int, modules: int, compiles: str) -> None:
    with no_collection():
        missing = registry().preloads.run(request, room, modules)
    if missing and compiles:
        likely_compile.expect(compiles, request.device, 1)


def wait_for(device: torch.device | None) -> None:
    """Let a GPU finish what was asked of it, so that a time is the work's and not the asking's."""
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)


def eager_text(reason: Reason) -> str:
    """What a node shows that runs nothing compiled."""
    return status.EagerText(reason)
