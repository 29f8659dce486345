"""Serving one call of a component through a graph: what every hook does alike once it knows what it wants.

A hook (the UNet's wrapper, the VAE's proxy) decides what a call asks for and whether anything in the workflow forbids a
graph; from there on a `Service` finds, loads or compiles the graph, binds it, runs it and keeps the report.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import backends
from ..common import memory, messages
from ..common.errors import in_brief
from ..common.shapes import Refused, ShapeRange, TensorCall
from ..graph_cache.key import GraphKey
from ..graph_cache.model_hash import ModelSource
from ..runtime.engine import Graph, Request, WhenMissing, engine
from ..runtime.module_watch import ModuleWatch, Watches
from ..runtime.out_of_memory import Exhausted
from . import compile_client, custom_nodes, dynamic_vram, eligibility, host_memory, model_source
from .progress import CompileWatch, report_run
from .run_report import RunReport

log = logging.getLogger("onegraph.host")

PIXELS = 8  # image pixels per latent unit, in the families compiled here
MOST_EXACT = 8  # exact compiles per architecture and process, so that changing sizes cannot compile without end

PRELOAD_ON = ("cuda",)  # device types where a first call costs so much that it is worth to begin before it
PRELOAD_ROOM = 6 << 30  # bytes of memory besides the model's own: taking up a graph early never competes for it

last_runs: dict[str, RunReport] = {}  # by node
_exact_compiles: dict[str, set[str]] = {}  # architecture -> key digests for which this process started a compile


@dataclass
class Run:
    """One run of one component: a sampling, a decode, an encode.

    Attributes:
        patcher: ComfyUI's patcher of the model that runs.
        watch: on the module that runs.
        refusal: why no graph serves this run at all, or None.
        epoch: ComfyUI's counters of weight moves when the weights were last looked at.
        version: the watch's when the requests were made.
        paged: under DynamicVRAM, the access to the weights.
        foreign: whether other custom nodes' functions may run between the calls.
        served: whether the last call was checked and served by a graph.
        part: of what a call is to be checked for, as in `Graph.call`; None: everything.
        call_bytes: that one eager call takes by the host's own estimate, where the patcher's model has none.
    """

    patcher: Any
    watch: ModuleWatch | None
    refusal: str | None
    epoch: tuple[Any, ...] | None
    version: int = 0
    paged: dynamic_vram.Paged | None = None
    foreign: bool = True
    served: bool = False
    part: int | None = None
    call_bytes: int = 0
    report: RunReport = field(default_factory=RunReport)
    refused: dict[str, str] = field(default_factory=dict)  # key digest -> why there is no graph in this run
    bound: set[int] = field(default_factory=set)  # graphs whose binding was checked in full in this run
    requests: dict[Any, Request] = field(default_factory=dict)  # by what a request depends on, until something changes

    def still_refused(self, module: torch.nn.Module, prefix: str) -> str | None:
        """Why no graph serves this call. Looks at the module, and at the weights when ComfyUI moved or patched them."""
        if self.refusal is not None or self.watch is None:
            return self.refusal
        epoch = eligibility.epoch(self.patcher)
        if epoch != self.epoch:
            self.epoch, self.bound, self.requests = epoch, set(), {}
            self.watch.refresh_fully(module)
            self.refusal = _refusal(self.patcher, self.watch, prefix)
        watch, part = self.watch, self.part
        version = watch.refresh(module) if part is None else watch.refresh_part(module, part)
        if version != self.version:
            self.version, self.bound, self.requests = version, set(), {}
            self.refusal = self.refusal or self._page_anew(module)
        patched = self.watch.patched
        return self.refusal or (messages.text(patched) if patched is not None else None)

    def _page_anew(self, module: torch.nn.Module) -> str | None:
        """The module is another one now, and so is its skeleton."""
        if self.paged is None:
            return None
        self.paged.release()
        found = dynamic_vram.paged(self.patcher, module, self.version)
        if isinstance(found, Refused):
            return found.reason
        self.paged = found
        return None

    def form(self, module: torch.nn.Module) -> torch.nn.Module:
        """The module as a graph is made for it: under DynamicVRAM not the live one, which is busy with paging."""
        return module if self.paged is None else self.paged.form

    @contextlib.contextmanager
    def weights(self, module: torch.nn.Module) -> Iterator[torch.nn.Module | Refused]:
        """The module with all its weights where a graph can read them, as long as this lasts."""
        if self.paged is None:
            yield module
        else:
            with self.paged.held() as held:
                yield held


def start_run(patcher: Any, module: torch.nn.Module, prefix: str, watches: Watches | None = None) -> Run:
    """Inspect the model at the start of a run, when its weights are loaded. Never raises.

    `watches` are those of earlier runs: with them a model that is as it was costs a millisecond, else some 50.
    """
    try:
        engine().release_orphans()
        watch = (watches or Watches()).of(module, eligibility.rules())
        refusal = _refusal(patcher, watch, prefix)
        paged = None
        if refusal is None and dynamic_vram.is_paged(patcher):
            found = dynamic_vram.paged(patcher, module, watch.version)
            if isinstance(found, Refused):
                refusal = found.reason
            else:
                paged = found
        brings = custom_nodes.in_patcher(patcher)
        return Run(patcher, watch, refusal, eligibility.epoch(patcher), watch.version, paged, brings)
    except Exception as error:  # never into the queue
        return Run(patcher, None, f"the model could not be inspected ({type(error).__name__}: {in_brief(error)})", None)


def preload(patcher: Any, module: torch.nn.Module, build: Callable[[Run], Request | Refused], watches: Watches) -> None:
    """Begin to restore a graph in a thread, while the host still encodes prompts and reads weights. Never raises.

    Args:
        module: the patcher's model, or the part of it that will run.
        build: makes the request of the calls that will come, for a run of which nothing is known yet.
    """
    try:
        device = patcher.load_device
        if device.type not in PRELOAD_ON or memory.unused_bytes(device) < patcher.model_size() + PRELOAD_ROOM:
            return
        watch = watches.of(module, eligibility.rules())
        paged = dynamic_vram.paged(patcher, module, watch.version) if dynamic_vram.is_paged(patcher) else None
        if isinstance(paged, Refused):
            return
        request = build(Run(patcher, watch, None, None, watch.version, paged))
        if isinstance(request, Request) and not request.backend.rebuilds:
            name = f"onegraph-preload-{request.key.digest}"
            # Not a daemon: a process that ends in the midst of it would leave the mark of a graph that takes it down.
            threading.Thread(target=engine().preload, args=(request, PRELOAD_ROOM), name=name).start()
    except Exception:  # never into the queue; the first call does without
        log.debug("no graph was preloaded", exc_info=True)


def _refusal(patcher: Any, watch: ModuleWatch, prefix: str) -> str | None:
    return eligibility.patcher_refusal(patcher, prefix) or eligibility.placement_refusal(
        watch, dynamic_vram.is_paged(patcher)
    )


class Service:
    """Serves the calls of one node for one component; `part` names it where a node has several."""

    def __init__(self, component: str, node_id: str | None, source: ModelSource, part: str = "") -> None:
        self.component = component
        self.node_id = node_id
        self.source = source
        self.part = part
        self._served: weakref.WeakSet[Graph] = weakref.WeakSet()

    def request(
        self,
        run: Run,
        module: torch.nn.Module,
        backend: backends.Backend,
        shapes: ShapeRange,
        widest: ShapeRange,
        label: str,
        sizes: Mapping[str, int],
        like: torch.Tensor,
    ) -> Request | Refused:
        """What to ask the engine for.

        Args:
            module: that runs; what a graph is made for is the run's form of it.
            widest: the range of all calls that could come; a backend that rebuilds graphs captures under it.
            like: the call's main input: its dtype and device are the graph's.
        """
        if not backend.supports(shapes):
            return Refused(f"the {backend.name} backend cannot serve {label}")
        form = run.form(module)
        assert run.watch is not None
        key = GraphKey(
            self.component,
            run.watch.architecture(form),
            shapes.to_json(),
            str(like.dtype).removeprefix("torch."),
            backend.name,
            backend.target(like.device),
        )
        return Request(
            key=key,
            source=self.source,
            shapes=shapes,
            label=label,
            module=form,
            prefix=compile_client.PREFIX,
            backend=backend,
            device=like.device,
            hint=sizes,
            client=compile_client.client(),
            neighbours=model_source.model_folders(),
            capture=widest if backend.rebuilds else None,
            environment=compile_client.environment(),
        )

    def serve(
        self,
        run: Run,
        request: Request,
        given: list[torch.Tensor],
        eager: Callable[..., torch.Tensor],
        when_missing: WhenMissing,
        started: float,
    ) -> torch.Tensor | Refused:
        """One call of a graph.

        Args:
            given: the inputs of the shape range, in order.
            eager: the same function of such inputs without a graph, to compare with at times.
            started: perf_counter when the call came in; `restore_s` counts from there.
        """
        calls = [TensorCall(tuple(t.shape), str(t.dtype).removeprefix("torch."), str(t.device)) for t in given]
        admitted = request.shapes.admits(calls, str(request.device))
        if isinstance(admitted, Refused):
            unit = 1 if self.component == compile_client.VAE_ENCODER else PIXELS
            return Refused(f"{in_pixels(admitted.reason, unit)} ({request.label})")
        if request.key.digest in run.refused:
            return Refused(run.refused[request.key.digest])
        graph = engine().loaded(request.key, request.device)
        if graph is None or graph.retired is not None:
            obtained = self._obtain(run, self._with_memory(run, request, given[0]), when_missing)
            if isinstance(obtained, Refused):
                return obtained
            graph = obtained
        replaced = graph.replaced() if run.part is None else None
        if replaced is not None:
            return Refused(replaced)
        surroundings = eligibility.surroundings_refusal(request.module, given)
        if surroundings is not None:
            return Refused(surroundings)
        if id(graph) not in run.bound:
            graph.start_run(run.version if run.paged is None else None)
            run.bound.add(id(graph))
        first = graph.fresh
        inputs = tuple(_plain(t) for t in given)
        with run.weights(request.module) as module:
            if isinstance(module, Refused):
                return module
            result = graph.call(module, inputs, admitted.sizes, eager, engine().counters, run.part)
        if isinstance(result, Exhausted):
            run.refused[request.key.digest] = result.reason  # in this run: the next one may have more memory
        if isinstance(result, Refused):
            return result
        self._served.add(graph)
        if result.note is not None:
            return Refused(result.note)
        run.report.label, run.report.speedup = request.label, graph.outcome.speedup
        if first and graph.origin == "compiled":
            run.report.compile_s = graph.entry.manifest.compile_seconds
        elif first:
            filling_s = 0.0 if run.paged is None else run.paged.filling_s
            run.report.restore_s = time.perf_counter() - started - filling_s
        return result.output

    def finish(self, run: Run) -> None:
        """The run is over: say on the node, in the log and to the status route what happened. Never raises."""
        try:
            self._finish(run)
        except Exception:  # never into the queue: the image is there
            log.exception("the end of a run could not be reported")

    def _finish(self, run: Run) -> None:
        if run.paged is not None:
            run.paged.release()
        report = run.report
        if run.refusal is not None and not report.calls:
            report.eager[run.refusal] += 1
        device = getattr(run.patcher, "load_device", None)
        wait_for(device)
        if device is not None:
            engine().trim(device)
            held = host_memory.announce_captures(device)
            report.captured_bytes = held if report.compiled_calls else 0
        report.finish()
        text = f"{self.part}: {report.text()}" if self.part else report.text()
        if self.node_id is not None:
            last_runs[f"{self.node_id}:{self.part}" if self.part else self.node_id] = report
        level = logging.WARNING if report.eager else logging.INFO
        log.log(level, "OneGraph%s: %s", f" (node {self.node_id})" if self.node_id else "", text)
        report_run(self.node_id, self.part, report)

    def release_captures(self) -> None:
        """Give back the captured CUDA graphs of the graphs that served here: their model leaves the device."""
        for graph in list(self._served):
            try:
                graph.release_captures("freed")
            except Exception:  # the host is about to unload the model, which must go on
                log.exception("captured CUDA graphs could not be released")

    def _with_memory(self, run: Run, request: Request, x: torch.Tensor) -> Request:
        """The request with what the host knows of memory, for a graph that may have to be compiled."""
        try:
            call = run.call_bytes or host_memory.call_bytes(run.patcher, x)
            planned = host_memory.planned_bytes(run.patcher, call)
        except Exception:  # of the host's own estimates
            log.debug("the host's need of memory is not known", exc_info=True)
            call = planned = 0
        return dataclasses.replace(
            request,
            call_bytes=call,
            planned_bytes=planned,
            idle=host_memory.queue_is_idle,
            busy=host_memory.queue_is_busy,
        )

    def _obtain(self, run: Run, request: Request, when_missing: WhenMissing) -> Graph | Refused:
        digest = request.key.digest
        if digest in run.refused:
            return Refused(run.refused[digest])
        compiled = _exact_compiles.setdefault(request.key.architecture, set())
        exact = request.shapes.dim("height").exact
        full = exact and digest not in compiled and len(compiled) >= MOST_EXACT
        watch = CompileWatch(self.node_id, request.label)
        graph = engine().obtain(request, "eager" if full else when_missing, watch)
        if exact and not full and not (isinstance(graph, Graph) and graph.origin == "restored"):
            compiled.add(digest)
        if isinstance(graph, Refused):
            if full:
                graph = Refused(f"{MOST_EXACT} exact sizes were compiled already and {request.label} has no graph")
            if not graph.passing:
                run.refused[digest] = graph.reason
        return graph


def choose(
    name: str, device: torch.device, build: Callable[[backends.Backend], Request | Refused]
) -> Request | Refused:
    """The request for a node's choice of backend.

    `auto` takes the first backend that can compile here or has the graph already; `build` makes its request.
    """
    if name != "auto":
        backend = backends.get(name)
        runs = backend.can_run(device)
        return build(backend) if runs.ok else Refused(runs.reason)
    reasons: list[str] = []
    for candidate in backends.known():
        backend = backends.get(candidate)
        runs = backend.can_run(device)
        if not runs.ok:
            reasons.append(runs.reason)
            continue
        request = build(backend)
        compiles = backend.can_compile(device)
        if isinstance(request, Request) and (compiles.ok or engine().has(request)):
            return request
        reasons.append(request.reason if isinstance(request, Refused) else compiles.reason)
    return Refused(reasons[0])


def backend_in_words(name: str, device: torch.device) -> str:
    """What a node says at first: the backend of its choice, and for `auto` why not the one before."""
    if name != "auto":
        runs = backends.get(name).can_run(device)
        return name if runs.ok else f"{name}, which cannot run here: {runs.reason}"
    reasons: list[str] = []
    for candidate in backends.known():
        compiles = backends.get(candidate).can_compile(device)
        if compiles.ok:
            return f"{candidate} ({'; '.join(reasons)})" if reasons else candidate
        reasons.append(f"no {candidate}: {compiles.reason}")
    return f"kept graphs only ({'; '.join(reasons)})"


def wait_for(device: torch.device | None) -> None:
    """Let a GPU finish what was asked of it, so that a time is the work's and not the asking's."""
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous and aligned as compiled code expects (it checks neither)."""
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % 16 else tensor


def in_pixels(reason: str, unit: int) -> str:
    """Heights and widths are in units of `unit` pixels inside; users think in pixels."""
    words = reason.split(" ")
    if words[0] not in ("height", "width"):
        return reason
    return " ".join(_pixel_word(word, unit) for word in words) + " pixels"


def _pixel_word(word: str, unit: int) -> str:
    low, dots, high = word.partition("..")
    if low.isdigit() and (not dots or high.isdigit()):
        return str(int(low) * unit) + (dots and f"..{int(high) * unit}")
    return word
