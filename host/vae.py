"""The VAE: a copy of ComfyUI's VAE object whose first_stage_model is a proxy that serves decode and encode by graphs.

One VAE output wired to several nodes is one Python object, so neither it nor its module is ever changed. The copy's
class tells the proxy which call it is in: only a whole decode or encode may compile, never a tile of one.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from ..compiler.backends import Backend
from ..compiler.engine import Request, WhenMissing, engine
from ..compiler.shapes import Dim, Refused, ShapeRange, TensorSpec
from ..errors import NoEncoderError, in_brief
from ..graph_cache.identity import ModelSource
from . import checkpoint, child
from .resolutions import DynamicResolution, Plan, sizes_of
from .serve import PIXELS, Run, Service, backend_in_words, choose, preload, start_run, wait_for

log = logging.getLogger("onegraph.host")

Parts = Literal["decoder", "encoder", "both"]
Part = Literal["decoder", "encoder"]
SMALLEST, LARGEST = 2, 256  # latent units; tiles leave slim remainders at the borders
_FIRST_SIDE = 32  # the same, of the call by which a graph is taken up early
_COMPONENTS: dict[Part, str] = {"decoder": child.VAE_DECODER, "encoder": child.VAE_ENCODER}
_PREFIXES = ("first_stage_model.", "vae.", "")  # of a VAE's weights in a checkpoint, in diffusers' files, in a VAE file


@dataclass(frozen=True)
class Options:
    """The choices of the node."""

    backend: str = "auto"
    parts: Parts = "decoder"
    dynamic_resolution: DynamicResolution = "auto"
    when_missing: WhenMissing = "wait"


@dataclass
class _Call:
    """A whole decode or encode of the VAE, from outside; its chunks and tiles all belong to it."""

    part: Part
    vae: Any
    tiles: bool
    run: Run | None = None
    plans: dict[bool, Plan] = field(default_factory=dict)  # by whether the backend has graphs for any size
    rescued: bool = False  # the chunk at hand overflowed and ran in float32


def unsupported(vae: Any) -> str | None:
    """Why this VAE passes through unchanged, or None."""
    from comfy.ldm.models.autoencoder import AutoencoderKL, AutoencodingEngine
    from comfy.ldm.modules.diffusionmodules import model as blocks
    from comfy.taesd.taesd import TAESD

    module: Any = getattr(vae, "first_stage_model", None)
    name = type(module).__name__
    if getattr(vae, "latent_dim", 2) != 2:
        return f"{name} is a video or audio VAE"
    if getattr(vae, "handles_tiling", False) or getattr(module, "comfy_has_chunked_io", False):
        return f"{name} tiles its own work"
    if type(module) is TAESD:
        return None
    if type(module) not in (AutoencoderKL, AutoencodingEngine):
        return f"{name} is not a VAE that OneGraph compiles"
    if type(module.encoder) is not blocks.Encoder or type(module.decoder) is not blocks.Decoder:
        return f"{name} has an unusual encoder or decoder"
    if getattr(module, "bn", None) is not None or getattr(module, "max_batch_size", None) is not None:
        return f"{name} normalises its latents or splits its batches"
    return None


def has_encoder(path: Path | None) -> bool:
    """Whether the file holds an encoder; False only when it holds a decoder and no encoder beside it."""
    if path is None or path.suffix != ".safetensors":
        return True
    from safetensors import safe_open

    try:
        with safe_open(path, "pt") as file:
            names = list(file.keys())
    except Exception as error:  # not a safetensors file after all
        log.debug("cannot read the names in %s: %s", path, error)
        return True
    found = [p for p in _PREFIXES if any(name.startswith(f"{p}decoder.") for name in names)]
    return not found or any(name.startswith(f"{found[0]}encoder.") for name in names)


def _shape_range(part: Part, x: torch.Tensor, exact: bool, levels: int) -> tuple[ShapeRange, str, dict[str, int]]:
    """One image at a time: more make no difference to a VAE's speed, and a large batch would double its memory."""
    _, channels, height, width = x.shape
    sizes = {"height": height, "width": width}
    unit = 1 if part == "decoder" else PIXELS
    if exact:
        dims = tuple(Dim(name, size, size) for name, size in sizes.items())
        label = f"{width * PIXELS // unit}x{height * PIXELS // unit}"
    else:
        dims = tuple(Dim(name, SMALLEST * unit, LARGEST * unit, levels) for name in sizes)
        label = f"any size {SMALLEST * PIXELS}-{LARGEST * PIXELS}"
    dtype = str(x.dtype).removeprefix("torch.")
    return ShapeRange(dims, (TensorSpec("x", (1, channels, "height", "width"), dtype),)), label, sizes


class VaeHook:
    """One node's hook on one VAE: options, reports and the call under way, never weights."""

    def __init__(self, options: Options, node_id: str | None, source: ModelSource) -> None:
        self.options = options
        self.node_id = node_id
        self._source = source
        self._services = {part: Service(name, node_id, source, part) for part, name in _COMPONENTS.items()}
        self._has_encoder = has_encoder(source.path)
        self._active = threading.local()

    def preload(self, vae: Any, module: torch.nn.Module) -> None:
        """Begin to take up the graphs for any size before the first image."""
        if self.options.dynamic_resolution not in ("auto", "any size"):
            return
        for part in _COMPONENTS:
            if self.options.parts in (part, "both"):
                preload(vae.patcher, module, functools.partial(self._first_request, part, vae, module))

    def _first_request(self, part: Part, vae: Any, module: torch.nn.Module, run: Run) -> Request | Refused:
        step = 1 if part == "decoder" else PIXELS
        channels = vae.latent_channels if part == "decoder" else 3
        side = _FIRST_SIDE * step
        x = torch.zeros(1, channels, side, side, dtype=vae.vae_dtype, device=vae.device)

        def build(backend: Backend) -> Request | Refused:
            shapes, label, sizes = _shape_range(part, x, False, step)
            return self._services[part].request(run.form(module), backend, shapes, shapes, label, sizes, x)

        return choose(self.options.backend, vae.device, build)

    # The call from outside ----------------------------------------------------------------------------------

    def check_encoder(self) -> None:
        """Refuse to encode by a VAE without an encoder: ComfyUI's is uninitialised memory then, its latents are noise.

        The one place where the pack raises into the queue, because there is no right result to fall back to.

        Raises:
            NoEncoderError: the VAE's file has a decoder only.
        """
        if self.options.parts != "decoder" and not self._has_encoder:
            raise NoEncoderError(
                "This VAE's file has no encoder, so it can only decode; load a complete VAE to encode."
            )

    @contextlib.contextmanager
    def call(self, part: Part, vae: Any, tiles: Literal["whole", "tiles"]) -> Iterator[None]:
        """A decode or encode begins; nested calls (the fallback to tiles) belong to the outer one."""
        outer: _Call | None = getattr(self._active, "call", None)
        if outer is not None:
            before, outer.tiles = outer.tiles, outer.tiles or tiles == "tiles"
            try:
                yield
            finally:
                outer.tiles = before
            return
        self._active.call = _Call(part, vae, tiles == "tiles")
        try:
            yield
        finally:
            call, self._active.call = self._active.call, None
            if call.run is not None:
                self._services[part].finish(call.run)

    # One chunk or tile --------------------------------------------------------------------------------------

    def serve(
        self, part: Part, module: torch.nn.Module, x: torch.Tensor, eager: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """What the proxy's decode and encode return: from a graph, else from `eager`, image by image."""
        call: _Call | None = getattr(self._active, "call", None)
        if call is None or call.part != part or (self.options.parts not in (part, "both")):
            return eager(x)
        if call.run is None:
            call.run = start_run(call.vae.patcher, module, "")
            call.run.call_bytes = _call_bytes(part, call.vae, x)
        run = call.run
        started = time.perf_counter()
        run.report.call_starts()
        call.rescued = False
        try:
            served = self._serve(part, call, run, module, x, eager, started)
        except Exception as error:  # never into the queue; an interrupt is a BaseException and goes through
            log.exception("a compiled %s call failed, eager takes over", part)
            run.refusal = f"a compiled call failed ({type(error).__name__}: {in_brief(error, 120)})"
            served = Refused(run.refusal)
        if isinstance(served, torch.Tensor) and not call.rescued:
            run.report.compiled_calls += 1
        elif isinstance(served, Refused):
            run.report.eager[served.reason] += 1
            engine().counters.eager_calls += 1
            engine().counters.reasons[served.reason] += 1
            started = time.perf_counter()
            served = eager(x)
        wait_for(x.device)
        run.report.call_ms = 1e3 * (time.perf_counter() - started)
        return served

    def _serve(
        self,
        part: Part,
        call: _Call,
        run: Run,
        module: torch.nn.Module,
        x: torch.Tensor,
        eager: Callable[[torch.Tensor], torch.Tensor],
        started: float,
    ) -> torch.Tensor | Refused:
        stopped = run.still_refused(module, "")
        if stopped is not None:
            return Refused(stopped)
        if type(x) is not torch.Tensor or x.ndim != 4:
            return Refused("the call's input is not a batch of images")
        when_missing = "eager" if call.tiles else self.options.when_missing
        request = self._request(part, call, run, module, x)
        if isinstance(request, Refused):
            return request
        service = self._services[part]
        parts: list[torch.Tensor] = []
        for image in x.split(1):
            served = service.serve(run, request, [image], functools.partial(eager, image), when_missing, started)
            if isinstance(served, torch.Tensor) and not bool(torch.isfinite(served).all()):
                served = self._not_finite(part, call, run, request, module, image, eager(image))
            if isinstance(served, Refused):
                return served
            parts.append(served)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _request(
        self, part: Part, call: _Call, run: Run, module: torch.nn.Module, x: torch.Tensor
    ) -> Request | Refused:
        """What to ask the engine for under the rule for changing resolutions, which is decided once for each call."""
        known = run.requests.get((x.shape[1:], x.dtype, x.device))
        if known is not None:
            return known
        step = 1 if part == "decoder" else PIXELS
        widest, exact = (_shape_range(part, x, exactly, step) for exactly in (False, True))

        def build(backend: Backend) -> Request | Refused:
            any_size = backend.supports(widest[0])
            if call.tiles:
                plan = Plan("any size" if any_size else "exact", "tiles never compile")
            else:
                plan = self._plan(part, call, x, any_size)
            run.report.rule = plan.why
            if plan.shapes == "none":
                return Refused(plan.why)
            shapes, label, sizes = widest if plan.shapes == "any size" else exact
            return self._services[part].request(run.form(module), backend, shapes, widest[0], label, sizes, x)

        request = choose(self.options.backend, x.device, build)
        if isinstance(request, Request):
            run.requests[(x.shape[1:], x.dtype, x.device)] = request
        return request

    def _plan(self, part: Part, call: _Call, x: torch.Tensor, any_size: bool) -> Plan:
        """The rule's decision, for all chunks of a call together; each call counts its size once."""
        if any_size not in call.plans:
            sizes, size = sizes_of(self._source.digest, _COMPONENTS[part]), (x.shape[2], x.shape[3])
            if not call.plans:
                sizes.count(size)
            call.plans[any_size] = sizes.plan(self.options.dynamic_resolution, size, any_size)
        return call.plans[any_size]

    def _not_finite(
        self,
        part: Part,
        call: _Call,
        run: Run,
        request: Request,
        module: torch.nn.Module,
        image: torch.Tensor,
        reference: torch.Tensor,
    ) -> torch.Tensor | Refused:
        """A result that must not leave: is it the graph or the model itself? `reference` is eager's."""
        if bool(torch.isfinite(reference).all()):
            reason = "the graph returned values that are not finite where eager's are; it is not used again"
            engine().retire(request, reason)
            return Refused(reason)
        overflows = f"this VAE itself overflows in {str(image.dtype).removeprefix('torch.')} on this image"
        exact = None
        if image.dtype in (torch.float16, torch.bfloat16):
            with run.weights(module) as whole:
                exact = None if isinstance(whole, Refused) else _in_float32(part, whole, image)
        if exact is None:
            run.refusal = f"{overflows}; use another VAE"
            return Refused(run.refusal)
        if not call.rescued:
            call.rescued = True
            run.report.eager[f"{overflows}, so it ran in float32; start ComfyUI with --fp32-vae"] += 1
            engine().counters.eager_calls += 1
        return exact


def _call_bytes(part: Part, vae: Any, x: torch.Tensor) -> int:
    """What decoding or encoding one image takes by the host's own estimate; 0: it has none."""
    try:
        estimate = vae.memory_used_decode if part == "decoder" else vae.memory_used_encode
        return int(estimate((1, *x.shape[1:]), x.dtype))
    except Exception:  # of the host's own
        return 0


def _in_float32(part: Part, module: torch.nn.Module, image: torch.Tensor) -> torch.Tensor | None:
    """Decode or encode by a float32 copy of the weights, gone afterwards; None when that overflows too."""
    exact: Any = copy.deepcopy(module).float()
    result = exact.decode(image.float()) if part == "decoder" else child.encode_moments(exact, image.float())
    result = result.to(image.dtype)
    return result if bool(torch.isfinite(result).all()) else None


class Proxy:
    """Stands where first_stage_model stood; everything but decode and encode is the module's own."""

    def __init__(self, module: torch.nn.Module, hook: VaeHook) -> None:
        self.onegraph_module = module
        self.onegraph_hook = hook

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["onegraph_module"], name)

    def decode(self, z: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        module: Any = self.onegraph_module
        if args or kwargs:
            return module.decode(z, *args, **kwargs)
        return self.onegraph_hook.serve("decoder", module, z, module.decode)

    def encode(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        module: Any = self.onegraph_module
        if args or kwargs:
            return module.encode(x, *args, **kwargs)
        moments = self.onegraph_hook.serve("encoder", module, x, functools.partial(child.encode_moments, module))
        # The rest may draw random numbers, so it stays the host's own.
        regularization = getattr(module, "regularization", None)
        return moments if regularization is None else regularization(moments)[0]


class _Calls:
    """Mixed into the VAE's class: tells the hook which call the proxy is in."""

    onegraph: VaeHook

    def decode(self, *args: Any, **kwargs: Any) -> Any:
        with self.onegraph.call("decoder", self, "whole"):
            return super().decode(*args, **kwargs)  # type: ignore[misc]

    def encode(self, *args: Any, **kwargs: Any) -> Any:
        self.onegraph.check_encoder()
        with self.onegraph.call("encoder", self, "whole"):
            return super().encode(*args, **kwargs)  # type: ignore[misc]

    def decode_tiled(self, *args: Any, **kwargs: Any) -> Any:
        with self.onegraph.call("decoder", self, "tiles"):
            return super().decode_tiled(*args, **kwargs)  # type: ignore[misc]

    def encode_tiled(self, *args: Any, **kwargs: Any) -> Any:
        self.onegraph.check_encoder()
        with self.onegraph.call("encoder", self, "tiles"):
            return super().encode_tiled(*args, **kwargs)  # type: ignore[misc]

    def decode_tiled_(self, *args: Any, **kwargs: Any) -> Any:
        with self.onegraph.call("decoder", self, "tiles"):
            return super().decode_tiled_(*args, **kwargs)  # type: ignore[misc]

    def encode_tiled_(self, *args: Any, **kwargs: Any) -> Any:
        with self.onegraph.call("encoder", self, "tiles"):
            return super().encode_tiled_(*args, **kwargs)  # type: ignore[misc]


@functools.cache
def _class_for(vae_class: Any) -> Any:
    return type(vae_class.__name__, (_Calls, vae_class), {"__module__": vae_class.__module__})


def compile_vae(vae: Any, options: Options, node_id: str | None = None, dynprompt: Any = None) -> tuple[Any, str]:
    """A copy of a VAE that runs through graphs, and a sentence for the node. Cheap: compiles nothing."""
    plain = vae
    if isinstance(getattr(vae, "first_stage_model", None), Proxy):  # the node twice: the later one counts
        plain = copy.copy(vae)
        plain.__class__ = type(vae).__mro__[2]
        plain.first_stage_model = vae.first_stage_model.onegraph_module
        del plain.onegraph
    if options.backend == "off":
        return plain, "off: the VAE runs eager"
    reason = unsupported(plain)
    if reason is not None:
        return plain, f"eager: {reason}"
    source = checkpoint.source_of(plain.patcher, plain.first_stage_model, dynprompt, node_id)
    hook = VaeHook(options, node_id, source)
    compiled = copy.copy(plain)
    vae_class: Any = type(plain)
    compiled.__class__ = _class_for(vae_class)
    compiled.onegraph = hook
    compiled.first_stage_model = Proxy(plain.first_stage_model, hook)
    hook.preload(plain, plain.first_stage_model)
    engine_name = backend_in_words(options.backend, plain.device)
    ready = f"ready: {options.parts}, {options.dynamic_resolution}, {engine_name}; starts with the first image"
    return compiled, ready
