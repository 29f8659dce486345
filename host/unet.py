"""The hook on ComfyUI's UNetModel: every call is admitted to a graph or runs eager with a reason.

A DIFFUSION_MODEL wrapper, because object patches lose LoRA and other hooks hold stale weights. It replaces the
innermost function of the chain instead of answering itself, so that wrappers added after it still run.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from ..compiler import architecture, backends
from ..compiler.engine import Graph, Request, WhenMissing, engine
from ..compiler.shapes import Dim, Refused, ShapeRange, TensorCall, TensorSpec
from ..graph_cache.identity import ModelSource
from ..graph_cache.key import GraphKey
from . import checkpoint, child, weights
from .progress import CompileWatch, say
from .report import RunReport

log = logging.getLogger("onegraph.host")

KEY = "onegraph"
Shapes = Literal["any size", "exact"]

# Latent units; ComfyUI's latents of these families are 1/8 of the image.
PIXELS = 8
SMALLEST, LARGEST = 8, 256
MOST_BATCH = 8
MOST_TOKENS = 1024
MOST_EXACT = 8  # exact compiles per architecture and process, so that changing sizes cannot compile without end
_ARGUMENTS = ("x", "timesteps", "context", "y", "control", "transformer_options")  # UNetModel.forward, in order

# transformer_options that do not change what the UNet computes.
_NEUTRAL = {
    "wrappers",
    "callbacks",
    "cond_or_uncond",
    "uuids",
    "sigmas",
    "sample_sigmas",
    "prefetch_dynamic_vbars",
    "multigpu_thread_device",
    "original_shape",
    "transformer_index",
    "block",
}

last_runs: dict[str, RunReport] = {}
_exact_compiles: dict[str, set[str]] = {}  # architecture -> key digests for which this process started a compile


@dataclass(frozen=True)
class Options:
    """The choices of the node."""

    backend: str = "auto"
    shapes: Shapes = "any size"
    when_missing: WhenMissing = "wait"


@dataclass
class _Run:
    """One sampling run of one UNet."""

    patcher: Any
    refusal: str | None
    epoch: tuple[Any, ...] | None
    report: RunReport = field(default_factory=RunReport)
    refused: dict[str, str] = field(default_factory=dict)  # key digest -> why there is no graph in this run
    bound: set[int] = field(default_factory=set)  # graphs whose binding was checked in full in this run
    requests: dict[Any, Request] = field(default_factory=dict)  # by what a request depends on, until the epoch changes


def is_unet(module: Any) -> bool:
    """Whether this is exactly ComfyUI's UNetModel (SD 1.x, SD 2.x, SDXL, the refiner): nothing else is compiled."""
    from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel

    return type(module) is UNetModel


def shape_range(
    options: Options, x: torch.Tensor, context: torch.Tensor, y: torch.Tensor | None, device: torch.device, levels: int
) -> tuple[ShapeRange, str, dict[str, int]]:
    """The range a graph for this call should have, its label, and the call's sizes."""
    batch, channels, height, width = x.shape
    sizes = {"batch": batch, "height": height, "width": width, "context": context.shape[1]}
    dtype = str(x.dtype).removeprefix("torch.")
    if options.shapes == "exact":
        dims = tuple(Dim(name, size, size) for name, size in sizes.items())
        label = f"{width * PIXELS}x{height * PIXELS} batch {batch} {context.shape[1]} tokens"
    else:
        # On a GPU, kernels read wider where sizes are known multiples; on the CPU a step of one costs nothing
        # (measured), and then every size that the UNet takes is served.
        multiple = 2 ** (levels - 1) if device.type == "cuda" else 1
        dims = (
            Dim("batch", 1, MOST_BATCH),
            Dim("height", SMALLEST, LARGEST, multiple),
            Dim("width", SMALLEST, LARGEST, multiple),
            Dim("context", 1, MOST_TOKENS),
        )
        label = f"any size {SMALLEST * PIXELS}-{LARGEST * PIXELS}"
    inputs = [
        TensorSpec("x", ("batch", channels, "height", "width"), dtype),
        TensorSpec("timesteps", ("batch",), "float32"),
        TensorSpec("context", ("batch", "context", context.shape[2]), dtype),
    ]
    if y is not None:
        inputs.append(TensorSpec("y", ("batch", y.shape[1]), dtype))
    return ShapeRange(dims, tuple(inputs)), label, sizes


def _patch_name(function: Any) -> str:
    """The name a user knows a patch by: its outermost class or function, e.g. FreeU_V2."""
    name = getattr(function, "__qualname__", type(function).__name__)
    return str(name).partition(".")[0]


def options_refusal(options: Mapping[str, Any]) -> str | None:
    """Why transformer_options ask for something no graph does, or None."""
    for key, value in options.items():
        if key in _NEUTRAL:
            continue
        if key == "patches":
            found = {name: patches for name, patches in value.items() if patches}
            if found:
                name, patches = next(iter(found.items()))
                return f"{_patch_name(patches[0])} patches this model ({name})"
        elif key == "patches_replace":
            replaced = {name: patches for name, patches in value.items() if patches}
            if replaced:
                name, by_block = next(iter(replaced.items()))
                return f"{_patch_name(next(iter(by_block.values())))} replaces parts of this model ({name})"
        elif value is not None and value != {} and value != []:
            return f"the workflow sets the model option {key}, which no graph honours"
    return None


class UnetHook:
    """One node's hook. Clones of the patcher share it, so it holds options and reports, never weights."""

    def __init__(self, options: Options, node_id: str | None, source: ModelSource) -> None:
        self.options = options
        self.node_id = node_id
        self.source = source
        self._runs: dict[int, _Run] = {}
        self._architectures: dict[int, tuple[Any, str]] = {}

    # ComfyUI's callbacks ------------------------------------------------------------------------------------

    def attach(self, patcher: Any) -> None:
        """Put this hook on a patcher (a fresh clone), in place of any hook of ours already there."""
        from comfy.patcher_extension import CallbacksMP, WrappersMP

        detach(patcher)
        patcher.add_wrapper_with_key(WrappersMP.DIFFUSION_MODEL, KEY, self.wrapper)
        patcher.add_callback_with_key(CallbacksMP.ON_PRE_RUN, KEY, self.on_pre_run)
        patcher.add_callback_with_key(CallbacksMP.ON_CLEANUP, KEY, self.on_cleanup)

    def on_pre_run(self, patcher: Any) -> None:
        unet = patcher.model.diffusion_model
        try:
            refusal = weights.patcher_refusal(patcher) or weights.module_refusal(unet)
            self._runs[id(unet)] = _Run(patcher, refusal, weights.epoch(patcher))
        except Exception as error:  # never into the queue
            log.exception("could not inspect the model")
            self._runs[id(unet)] = _Run(patcher, f"the model could not be inspected ({error})", None)

    def on_cleanup(self, patcher: Any) -> None:
        run = self._runs.pop(id(patcher.model.diffusion_model), None)
        if run is None:
            return
        report = run.report
        if run.refusal is not None and not report.calls:
            report.eager[run.refusal] += 1
        report.finish()
        text = report.text()
        if self.node_id is not None:
            last_runs[self.node_id] = report
        level = logging.WARNING if report.eager else logging.INFO
        log.log(level, "OneGraph%s: %s", f" (node {self.node_id})" if self.node_id else "", text)
        say(self.node_id, text)

    def wrapper(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        """The DIFFUSION_MODEL wrapper: serve the innermost call of the chain, let the rest of the chain run."""
        if (
            torch.compiler.is_compiling()
        ):  # another node's torch.compile traces through here; see weights.patcher_refusal
            return executor(*args, **kwargs)
        executor.original = functools.partial(self._innermost, executor.class_obj, executor.original)
        return executor(*args, **kwargs)

    # One call -----------------------------------------------------------------------------------------------

    def _innermost(self, unet: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        run = self._runs.get(id(unet))
        if run is None:
            engine().counters.eager_calls += 1
            return original(*args, **kwargs)
        run.report.call_starts()
        served = self._try(unet, run, original, args, kwargs)
        if not isinstance(served, Refused):
            return served
        run.report.eager[served.reason] += 1
        engine().counters.eager_calls += 1
        engine().counters.reasons[served.reason] += 1
        return original(*args, **kwargs)

    def _try(
        self, unet: Any, run: _Run, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> torch.Tensor | Refused:
        try:
            return self._serve(unet, run, original, args, kwargs)
        except Exception as error:  # never into the queue; an interrupt is a BaseException and goes through
            log.exception("a compiled call failed, eager takes over")
            run.refusal = f"a compiled call failed ({type(error).__name__}: {str(error)[:120]})"
            return Refused(run.refusal)

    def _serve(
        self, unet: Any, run: _Run, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> torch.Tensor | Refused:
        started = time.perf_counter()
        if not is_unet(unet):
            return Refused(f"{type(unet).__name__} is not a model that OneGraph compiles")
        if run.refusal is not None:
            return Refused(run.refusal)
        call = {**dict(zip(_ARGUMENTS, args, strict=False)), **kwargs}
        options = call.get("transformer_options") or {}
        for name, value in call.items():
            if name not in _ARGUMENTS and value is not None:
                return Refused(f"the workflow passes {name} to the model")
        if call.get("control"):
            return Refused("a ControlNet steers this model")
        refusal = options_refusal(options)
        if refusal is not None:
            return Refused(refusal)
        epoch = weights.epoch(run.patcher)
        if epoch != run.epoch:
            run.epoch, run.bound, run.requests = epoch, set(), {}
            run.refusal = weights.patcher_refusal(run.patcher) or weights.module_refusal(unet)
            if run.refusal is not None:
                return Refused(run.refusal)
        x, timesteps, context, y = (call.get(name) for name in ("x", "timesteps", "context", "y"))
        given = [t for t in (x, timesteps, context, y) if t is not None]
        if x is None or timesteps is None or context is None or not all(type(t) is torch.Tensor for t in given):
            return Refused("the call's inputs are not plain tensors")
        if x.ndim != 4 or context.ndim != 3 or (y is not None and y.ndim != 2):
            return Refused("the call's inputs have unusual dimensions")
        return self._through_graph(unet, run, given, functools.partial(original, *args, **kwargs), started)

    def _through_graph(
        self, unet: Any, run: _Run, given: list[torch.Tensor], eager: Callable[[], Any], started: float
    ) -> torch.Tensor | Refused:
        x = given[0]
        exact = tuple(tuple(t.shape) for t in given) if self.options.shapes == "exact" else ()
        depends_on = (x.dtype, x.device, tuple(t.shape[-1] for t in given[2:]), x.shape[1], exact)
        request = run.requests.get(depends_on) or self._request(unet, given)
        if isinstance(request, Refused):
            return request
        run.requests[depends_on] = request
        chunks = [slice(i, i + MOST_BATCH) for i in range(0, x.shape[0], MOST_BATCH)]
        if len(chunks) > 1 and self.options.shapes == "any size":
            parts: list[torch.Tensor] = []
            for chunk in chunks:
                part = [t[chunk] for t in given]
                served = self._one(unet, run, request, part, None, started)
                if isinstance(served, Refused):
                    return served
                parts.append(served)
            run.report.compiled_calls += 1
            return torch.cat(parts)
        served = self._one(unet, run, request, given, eager, started)
        if isinstance(served, torch.Tensor):
            run.report.compiled_calls += 1
        return served

    def _one(
        self,
        unet: Any,
        run: _Run,
        request: Request,
        given: list[torch.Tensor],
        eager: Callable[[], Any] | None,
        started: float,
    ) -> torch.Tensor | Refused:
        """One call of a graph. `eager` is None for a part of a split batch, which eager computes by itself."""
        calls = [TensorCall(tuple(t.shape), str(t.dtype).removeprefix("torch."), str(t.device)) for t in given]
        admitted = request.shapes.admits(calls, str(request.device))
        if isinstance(admitted, Refused):
            return Refused(f"{_in_pixels(admitted.reason)} ({request.label})")
        loaded = engine().loaded(request.key, request.device)
        graph = loaded if loaded is not None and loaded.retired is None else self._obtain(run, request)
        if isinstance(graph, Refused):
            return graph
        if id(graph) not in run.bound:
            graph.unbind()  # bind with the full check of every weight at the start of each run
            run.bound.add(id(graph))
        first = graph.fresh
        inputs = tuple(_plain(t) for t in given)
        if eager is None:
            unet_eager: Callable[[], Any] = functools.partial(_eager_part, unet, inputs)
        else:
            unet_eager = eager
        result = graph.call(unet, inputs, admitted.sizes, unet_eager, engine().counters)
        if isinstance(result, Refused):
            return result
        if result.note is not None:
            return Refused(result.note)
        report = run.report
        report.label, report.speedup = request.label, graph.outcome.speedup
        if first and graph.origin == "compiled":
            report.compile_s = graph.entry.manifest.compile_seconds
        elif first:
            report.restore_s = time.perf_counter() - started
        return result.output

    def _obtain(self, run: _Run, request: Request) -> Graph | Refused:
        digest = request.key.digest
        if digest in run.refused:
            return Refused(run.refused[digest])
        compiled = _exact_compiles.setdefault(request.key.architecture, set())
        full = request.shapes.exact and digest not in compiled and len(compiled) >= MOST_EXACT
        when_missing = "eager" if full else self.options.when_missing
        graph = engine().obtain(request, when_missing, CompileWatch(self.node_id, request.label))
        if request.shapes.exact and not full and not (isinstance(graph, Graph) and graph.origin == "restored"):
            compiled.add(digest)
        if isinstance(graph, Refused):
            if full:
                graph = Refused(f"{MOST_EXACT} exact shapes were compiled already and {request.label} has no graph")
            run.refused[digest] = graph.reason
        return graph

    def _request(self, unet: Any, given: list[torch.Tensor]) -> Request | Refused:
        backend = choose_backend(self.options.backend)
        if isinstance(backend, Refused):
            return backend
        x, _, context = given[:3]
        y = given[3] if len(given) > 3 else None
        device = x.device
        shapes, label, sizes = shape_range(self.options, x, context, y, device, len(unet.channel_mult))
        if not backend.supports(shapes):
            return Refused(f"the {backend.name} backend cannot serve {label}")
        key = GraphKey(
            child.UNET,
            self._architecture(unet),
            shapes.to_json(),
            str(x.dtype).removeprefix("torch."),
            backend.name,
            backend.target(device),
        )
        return Request(
            key, self.source, shapes, label, unet, child.UNET_PREFIX, backend, device, sizes, child.client(),
            checkpoint.model_folders(),
        )  # fmt: skip

    def _architecture(self, unet: Any) -> str:
        """Digest of the UNet's architecture, remembered as long as the metadata of its weights stays."""
        signature = tuple((id(p), p.shape, p.stride(), p.dtype) for p in unet.parameters())
        known = self._architectures.get(id(unet))
        if known is None or known[0] != signature:
            digest = architecture.digest(unet, volatile=weights.volatile, sources=weights.SOURCES)
            known = (signature, digest)
            self._architectures[id(unet)] = known
        return known[1]


def _eager_part(unet: Any, inputs: tuple[torch.Tensor, ...]) -> Any:
    x, timesteps, context = inputs[:3]
    return unet._forward(x, timesteps, context, inputs[3] if len(inputs) > 3 else None, None, {})


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous and aligned as compiled code expects (it checks neither)."""
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % 16 else tensor


def _in_pixels(reason: str) -> str:
    """Heights and widths are in latent units inside; users think in pixels."""
    words = reason.split(" ")
    if words[0] not in ("height", "width"):
        return reason
    return " ".join(_pixel_word(word) for word in words) + " pixels"


def _pixel_word(word: str) -> str:
    low, dots, high = word.partition("..")
    if low.isdigit() and (not dots or high.isdigit()):
        return str(int(low) * PIXELS) + (dots and f"..{int(high) * PIXELS}")
    return word


def choose_backend(name: str) -> backends.Backend | Refused:
    """The backend for a node's choice; `auto` takes the first one that exists."""
    wanted = backends.known() if name == "auto" else (name,)
    for candidate in wanted:
        backend = backends.get(candidate)
        if backend is not None:
            return backend
    return Refused(backends.missing_reason(wanted[0]))


def detach(patcher: Any) -> None:
    """Take any hook of ours off a patcher."""
    from comfy.patcher_extension import CallbacksMP, WrappersMP

    patcher.remove_wrappers_with_key(WrappersMP.DIFFUSION_MODEL, KEY)
    patcher.remove_callbacks_with_key(CallbacksMP.ON_PRE_RUN, KEY)
    patcher.remove_callbacks_with_key(CallbacksMP.ON_CLEANUP, KEY)


def compile_model(patcher: Any, options: Options, node_id: str | None = None, dynprompt: Any = None) -> tuple[Any, str]:
    """A clone of a MODEL that runs through graphs, and a sentence for the node. Cheap: compiles nothing."""
    clone = patcher.clone()
    detach(clone)
    unet = getattr(clone.model, "diffusion_model", None)
    if options.backend == "off":
        return clone, "off: the model runs eager"
    if not is_unet(unet):
        return (
            clone,
            f"eager: {type(unet).__name__} is not a model that OneGraph compiles (SD 1.x, SD 2.x, SDXL, refiner)",
        )
    backend = choose_backend(options.backend)
    source = checkpoint.source_of(patcher, unet, dynprompt, node_id)
    UnetHook(options, node_id, source).attach(clone)
    if isinstance(backend, Refused):
        return clone, f"eager: {backend.reason}"
    return clone, f"ready: {options.shapes}, {backend.name}; starts with the first sampling step"
