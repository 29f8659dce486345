"""The VAE: a copy of ComfyUI's VAE object whose first_stage_model is a proxy that serves decode and encode by graphs.

One VAE output wired to several nodes is one Python object, so neither it nor its module is ever changed. The copy's
class tells the proxy which call it is in: only a whole decode or encode may compile, never a tile of one.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ....common import reasons
from ....common.errors import NoEncoderError
from ....common.log import logger
from ....common.outputs import Output
from ....common.reasons import Reason
from ....common.refused import Refused
from ....graph_cache.model_hash import ModelSource
from ....runtime.calls import backend_choice
from ....runtime.calls.component import Choice
from ....runtime.calls.dispatch import Accepted, Call, count_eager
from ....runtime.family import Shapes
from ....runtime.guards.guard_cache import GuardCache
from ....runtime.obtain.registry import registry
from ....runtime.request import Request, WhenMissing
from ...comfyui import contract, model_source
from ...families import Half, VaeHalf
from ..component import NodeComponent, eager_text, wait_for
from ..module_proxy import hooked, plain, stand_in, unhooked
from ..run import HostRun, start_run
from .by_blocks import VaeBlocks
from .call import Chunk, EagerRerun, Served, VaeCall, call_bytes, resolve_not_finite
from .eligibility import changed, halves_of, has_encoder, replaced
from .finite import gather, not_finite, random_state, recomputed_in_float32, set_random_state
from .proxy import Calls, VaeProxy
from .resolutions import DynamicResolution, ResolutionDecision, sizes_of

log = logger("host")

Parts = Literal["decoder", "encoder", "both"]


@dataclass(frozen=True)
class VaeNodeOptions:
    """The choices of the node."""

    backend: str = "auto"
    parts: Parts = "decoder"
    dynamic_resolution: DynamicResolution = "auto"
    when_missing: WhenMissing = "wait"


class VaeHook:
    """One node's hook on one VAE: options, reports and the call under way, never weights."""

    def __init__(
        self, halves: Mapping[Half, VaeHalf], options: VaeNodeOptions, node_id: str | None, source: ModelSource
    ) -> None:
        self.options = options
        self.node_id = node_id
        self._source = source
        self._halves = halves
        self._components = {part: NodeComponent(family, node_id, source, part) for part, family in halves.items()}
        self._blocks = VaeBlocks(options, node_id, source)
        self._has_encoder = has_encoder(source.path)
        self._guards = GuardCache()
        self._active = threading.local()

    def __copy__(self) -> VaeHook:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> VaeHook:
        """Itself: copies of a VAE that other nodes make belong to the same node of ours."""
        return self

    def preload(self, vae: Any, module: torch.nn.Module, dynprompt: Any = None) -> None:
        """Begin to restore the graphs for any size before the first image."""
        if self.options.dynamic_resolution not in ("auto", "any size"):
            return
        for part, component in self._components.items():
            if self._chosen(part) and self._halves[part].refusal(module) is None:
                examples = functools.partial(component.family.examples, module, vae, dynprompt)
                component.preload(vae.patcher, module, self.options.backend, examples, self._guards)
        if self.options.parts != "encoder":
            self._blocks.preload(vae, module)

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

    def run(self, part: Half, vae: Any, tiles: Literal["whole", "tiles"], function: Callable[[], Any]) -> Any:
        """A decode or encode of the VAE from outside: `function` is the host's own, which calls the proxy.

        Whether the results of tiles are finite is gathered on the device and looked at once, when all are done.
        """
        outer = self._current(vae)
        first = tiles == "tiles" and (outer is None or not outer.tiles)
        random = random_state(vae) if first and part == "encoder" else None
        with self.call(part, vae, tiles) as call:
            result = function()
            wrong = not_finite(call.finite) if first else []
            if wrong and call.run is not None:
                if random is not None:
                    set_random_state(vae, random)
                result = self._again(call, call.run, wrong, function)
            return result

    @contextlib.contextmanager
    def call(self, part: Half, vae: Any, tiles: Literal["whole", "tiles"]) -> Iterator[VaeCall]:
        """A decode or encode begins; nested calls of the VAE (the fallback to tiles) belong to the outer one."""
        outer = self._current(vae)
        if outer is not None:
            before, outer.tiles = outer.tiles, outer.tiles or tiles == "tiles"
            try:
                yield outer
            finally:
                outer.tiles = before
            return
        another = getattr(self._active, "call", None)  # of a copy of the VAE, which has the same hook
        call = self._active.call = VaeCall(part, vae, tiles == "tiles")
        try:
            with call.lasting:
                tiles_itself = getattr(vae, "handles_tiling", False)  # its tiles do not come to the proxy
                if tiles_itself and part not in self._halves and self._chosen(part):
                    self._blocks.begin(call, plain(vae.first_stage_model))
                yield call
            if call.run is None and self._chosen(part):
                call.run = HostRun(patcher=getattr(vae, "patcher", None))
                count_eager(call.run, replaced(part, vae))
        finally:
            self._active.call = another
            if call.by_blocks:
                self._blocks.finish(call)
            elif call.run is not None:
                self._components[part].finish(call.run)

    def _current(self, vae: Any) -> VaeCall | None:
        """The call of this VAE that is under way in this thread."""
        call: VaeCall | None = getattr(self._active, "call", None)
        return call if call is not None and call.vae is vae else None

    def _chosen(self, part: Half) -> bool:
        return self.options.parts in (part, "both")

    def _again(
        self, call: VaeCall, run: HostRun, wrong: list[Request], function: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        """All tiles once more without a graph, because these requests' graphs gave values that are not finite."""
        run.report.restart()
        call.rerun = rerun = EagerRerun()
        try:
            result = function()
        finally:
            call.rerun = None
        reason = rerun.overflow
        if reason is None:
            reason = reasons.GraphNotFinite()
            for request in wrong:
                registry().retire(request, reason)
        count_eager(run, reason, rerun.tiles)
        return result

    # One chunk or tile --------------------------------------------------------------------------------------

    def _asked(
        self, part: Half, module: torch.nn.Module, x: torch.Tensor | None = None
    ) -> tuple[VaeCall, HostRun] | None:
        """The call that the proxy is in, if its part is one to compile. `x`: what the module is called with."""
        call: VaeCall | None = getattr(self._active, "call", None)
        if call is None or call.part != part or not self._chosen(part):
            return None
        if call.run is None:
            patcher = call.vae.patcher
            if part not in self._halves or (x is not None and self._blocks.serves(module, x)):
                self._blocks.begin(call, module)
            else:
                call.run = start_run(patcher, module, "", self._guards)
                call.run.refusal = call.run.refusal or changed(patcher, module, self._halves[part])
        assert call.run is not None
        return call, call.run

    def regularization(self, module: torch.nn.Module) -> Any:
        """What follows an encoder's graph and is the host's own; None: nothing does."""
        return self._halves["encoder"].regularization(module)

    def bypassed(self, part: Half, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """The proxy was called in a way that only the module itself knows."""
        asked = self._asked(part, module)
        if asked is not None and asked[0].by_blocks:
            self._blocks.show(asked[0], args, kwargs)
        elif asked is not None:
            count_eager(asked[1], reasons.VaeOptions("decode" if part == "decoder" else "encode"))

    def serve(
        self, part: Half, module: torch.nn.Module, x: torch.Tensor, class_method: Callable[[torch.Tensor], Any]
    ) -> Served:
        """What the proxy's decode and encode return: from a graph, else from `class_method`, image by image."""
        asked = self._asked(part, module, x)
        if asked is not None and asked[0].by_blocks:
            self._blocks.show(asked[0], (x,), {})
        if asked is None or asked[0].by_blocks:
            return Served(class_method(x), whole=True)
        call, run = asked
        run.call_bytes = run.call_bytes or call_bytes(part, call.vae, x)
        chunk = Chunk(self._halves[part], call, run, module)
        if call.rerun is not None:
            run.report.call_starts()
            return self._without_graph(chunk, call.rerun, x, class_method)
        started = time.perf_counter()
        component = self._components[part]
        prepare = functools.partial(self._prepare, chunk, component, x)
        served = component.dispatch(run, module, prepare, lambda: Served(class_method(x), whole=True))
        if not call.tiles:  # to wait for each tile would leave the device idle in between
            wait_for(x.device)
            run.report.call_ms = 1e3 * (time.perf_counter() - started)
        return served if isinstance(served, Served) else Served(served, whole=False)

    def _prepare(self, chunk: Chunk, component: NodeComponent, x: torch.Tensor) -> Call | Refused:
        """What to run through a graph for one chunk or tile, or why not."""

        def plan(any_size: bool) -> Shapes | Reason:
            """By the rule for changing resolutions, which is decided once for each call."""
            decided = self._decision(chunk.call, component, x, any_size)
            chunk.run.report.rule = decided.why.text
            return decided.why if decided.shapes == "none" else decided.shapes

        when_missing = "eager" if chunk.call.tiles else self.options.when_missing
        call = component.prepared(chunk.run, chunk.module, (x,), {}, Choice(self.options.backend, plan, when_missing))
        if isinstance(call, Refused):
            return call
        request, eager = call.request, call.eager

        def accept(inputs: Sequence[torch.Tensor], output: Output) -> Accepted:
            assert isinstance(output, torch.Tensor)
            if chunk.call.tiles:
                gather(chunk.call.finite, request, output)
                return output
            if bool(torch.isfinite(output).all()):
                return output
            return resolve_not_finite(chunk, request, inputs[0], eager(inputs[0]))

        return dataclasses.replace(call, accept=accept)

    def _decision(self, call: VaeCall, component: NodeComponent, x: torch.Tensor, any_size: bool) -> ResolutionDecision:
        """The rule's decision, for all chunks of a call together; each call counts its size once."""
        if call.tiles:
            return ResolutionDecision("any size" if any_size else "exact", reasons.TilesNeverCompile())
        if any_size not in call.decisions:
            sizes, size = sizes_of(self._source.digest, component.family.component), (x.shape[-2], x.shape[-1])
            if not call.decisions:
                sizes.count(size)
            call.decisions[any_size] = sizes.decide(self.options.dynamic_resolution, size, any_size)
        return call.decisions[any_size]

    def _without_graph(
        self, chunk: Chunk, rerun: EagerRerun, x: torch.Tensor, class_method: Callable[[torch.Tensor], Any]
    ) -> Served:
        """A tile by eager, in float32 where that overflows."""
        run, state = chunk.run, random_state(chunk.call.vae)
        result = Served(class_method(x), whole=True)
        rerun.tiles += 1
        if bool(torch.isfinite(result.tensor).all()):
            return result
        if run.refusal is not None:
            rerun.overflow = rerun.overflow or run.refusal
            return result
        exact = None
        try:
            exact, rerun.overflow = recomputed_in_float32(chunk.family, run, chunk.module, x)
        except Exception as error:  # never into the queue
            log.exception("a tile could not be computed in float32")
            rerun.overflow = reasons.Float32Failed(type(error).__name__)
        if exact is None:
            run.refusal = rerun.overflow
            return result
        set_random_state(chunk.call.vae, state)  # what follows an encoder draws its numbers once
        return Served(exact, whole=False)


def _without_hook(vae: Any) -> Any:
    """A VAE as it was before it came through our node: where the node comes twice, the later one counts."""
    module = getattr(vae, "first_stage_model", None)
    if not isinstance(vae, Calls) and not isinstance(module, VaeProxy):
        return vae
    plain_vae = unhooked(vae, Calls)
    plain_vae.first_stage_model = plain(module)
    return plain_vae


def compile_vae(
    vae: Any, options: VaeNodeOptions, node_id: str | None = None, dynprompt: Any = None
) -> tuple[Any, str]:
    """A copy of a VAE that runs through graphs, and a sentence for the node. Cheap: compiles nothing."""
    plain_vae = _without_hook(vae)
    if options.backend == "off":
        return plain_vae, "off: the VAE runs uncompiled"
    halves = contract.refusal("VAE") or halves_of(plain_vae)
    if isinstance(halves, Reason):
        return plain_vae, eager_text(halves)
    chosen = [family for part, family in halves.items() if options.parts in (part, "both")]
    refusals = [family.refusal(plain_vae.first_stage_model) for family in chosen]
    if refusals and refusals[0] is not None and None not in refusals:
        return plain_vae, eager_text(refusals[0])
    source = model_source.source_of(plain_vae.patcher, plain_vae.first_stage_model, dynprompt, node_id)
    hook = VaeHook(halves, options, node_id, source)
    compiled = hooked(copy.copy(plain_vae), Calls, hook)
    compiled.first_stage_model = stand_in(VaeProxy, plain_vae.first_stage_model, hook)
    hook.preload(plain_vae, plain_vae.first_stage_model, dynprompt)
    backend = backend_choice.describe(options.backend, plain_vae.device)
    ready = f"ready: {options.parts}, {options.dynamic_resolution}, {backend}; starts with the first image"
    return compiled, ready
