"""Videos and audio: the host's own decode or encode runs, with its chunks, tiles and caches; its blocks by graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from ....common import reasons
from ....compiler.blocks.other_sizes import Scale
from ....compiler.blocks.outer_call import ModelCall
from ....graph_cache.model_hash import ModelSource
from ....runtime.guards.guard_cache import GuardCache
from ...families import Half
from ...families.vae_blocks import compiles, frames_of
from ..block_hook import Blocks, HostBlockClient, preload_blocks, start_blocks
from ..component import NodeComponent
from ..run import HostRun
from .call import VaeCall
from .eligibility import changed

if TYPE_CHECKING:
    from .hook import VaeNodeOptions

_METHODS: Mapping[Half, str] = {"decoder": "decode", "encoder": "encode"}
# Further calls are of small pictures and, since a chunk depends on those before it, of several chunks: 5, 7 and 9
# frames of latents, in pixels as many as these stand for.
_ENTRIES = {"decode": Scale(0.5, 2, 1), "encode": Scale(8, 8, 1)}


class VaeBlocks:
    """The blocks of one node's VAE."""

    def __init__(self, options: VaeNodeOptions, node_id: str | None, source: ModelSource) -> None:
        self._options = options
        self._components = {part: NodeComponent(Blocks(), node_id, source, part) for part in _METHODS}
        self._guards = GuardCache()

    def preload(self, vae: Any, module: torch.nn.Module) -> None:
        """Begin to restore the graphs that the store has."""
        if compiles(module, getattr(vae, "latent_dim", 2)):
            preload_blocks(self._components["decoder"], self._options, vae.patcher, module, "", self._guards)

    def serves(self, module: torch.nn.Module, x: torch.Tensor) -> bool:
        """Whether a call is of a video whose VAE has blocks."""
        return frames_of(x) > 1 and compiles(module)

    def begin(self, call: VaeCall, module: torch.nn.Module) -> None:
        """Serve the blocks until the whole decode or encode is over, and compile then what was missing."""
        patcher, component = call.vae.patcher, self._components[call.part]
        call.by_blocks = True
        refusal = changed(patcher, module, None)
        if refusal is not None:
            call.run = HostRun(refusal, patcher=patcher)
            return
        client = HostBlockClient(component, self._options, module, "", patcher.load_device, _ENTRIES)
        call.run = run = start_blocks(client, patcher, module, self._guards)
        if run.blocks is None:
            run.report.eager[run.refusal or reasons.NoNode()] += 1
        else:
            call.lasting.enter_context(run.blocks.call())

    def show(self, call: VaeCall, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Take down what the module is called with, which shows the compiling process how to call it."""
        if call.run is not None and call.run.blocks is not None:
            method = _METHODS[call.part]
            call.run.blocks.show(ModelCall(args, kwargs, method, _ENTRIES[method]))

    def finish(self, call: VaeCall) -> None:
        """Report the call's run."""
        assert call.run is not None
        self._components[call.part].finish(call.run)
