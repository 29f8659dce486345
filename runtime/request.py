"""What a client asks the registry for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from ..backends import Backend, rebuilder
from ..common import reasons
from ..common.refused import Refused
from ..common.tensor_meta import dtype_name
from ..compiler import export
from ..compiler.blocks.kind import KindCalls
from ..compiler.composite_weights import NONE, Composites
from ..compiler.process.job import ClientModule
from ..compiler.process.progress import Progress
from ..graph_cache.key import GraphKey
from ..graph_cache.model_hash import ModelSource
from ..signature.call_rules import CallRules
from ..signature.declared import ShapeRange
from . import admission
from .family import PREFIX, Ranged

WhenMissing = Literal["wait", "background", "eager"]
Slot = tuple[str, str]  # key digest, device: what a process has one graph for


@dataclass(frozen=True)
class Request:
    """What a client wants to run compiled.

    Attributes:
        module: the live module.
        prefix: name under which the client's wrapper holds `module`, with a dot: graph weights are `prefix` + name.
        example_sizes: of the call at hand, by dimension name.
        export_shapes: a wider range to export under, for backends that rebuild graphs for other sizes.
        neighbours: folders whose checkpoints may have graphs of the same architecture.
        environment: versions of what surrounds a graph and is no part of its key, e.g. the host's. When they change, a
            graph is compared with eager again.
        planned_bytes: on the device, that the host will take for this run besides what it has.
        call_bytes: on the device, that a call at these sizes takes by the host's own estimate; 0 if it has none.
        make_room: has the host give up so many bytes on the device that it brings back by itself, such as weights that
            come and go. It may give up fewer, or none where that would not suffice.
        watch: follows the compile, also in the background: how far it is, then None when it has ended. Never raises.
        idle: tells whether the host has nothing to do. None: it cannot tell, so no compile waits for that.
        busy: tells whether the host computes or is about to. A background compile for a GPU is stopped meanwhile: it
            slows a run that launches kernels by 40 % (SDXL eager on an H200), whatever its priority.
        packages: of a block: whose objects its arguments are taken apart by. The shape range says nothing then.
        calls: of a block: what its graph is compiled for. None: the graph is only looked up.
        model: that a block belongs to, which the compiling process calls at other sizes.
        composites: weights of several plain tensors that may be in it.
    """

    key: GraphKey
    source: ModelSource
    shapes: ShapeRange
    label: str
    module: torch.nn.Module
    prefix: str
    backend: Backend
    device: torch.device
    example_sizes: Mapping[str, int]
    client: ClientModule
    neighbours: tuple[Path, ...] = ()
    export_shapes: ShapeRange | None = None
    environment: str = ""
    planned_bytes: int = 0
    call_bytes: int = 0
    make_room: Callable[[int], None] | None = None
    watch: Callable[[Progress | None], None] | None = None
    idle: Callable[[], bool] | None = None
    busy: Callable[[], bool] | None = None
    packages: tuple[str, ...] = ()
    calls: KindCalls | None = None
    model: torch.nn.Module | None = None
    composites: Composites = NONE

    @property
    def slot(self) -> Slot:
        """What a process has at most one loaded graph for."""
        return self.key.digest, str(self.device)

    def activation_bytes(self) -> int:
        """Activations of a compile's trial calls: the host's estimate, or ours where that is higher."""
        return max(admission.calls_bytes(self.shapes, self.example_sizes, self.module), self.call_bytes)

    def some_inputs(self, signature: Mapping[str, Any] | None) -> tuple[torch.Tensor, ...]:
        """Inputs of some call. `signature`: of a block's graph, which alone tells what that takes."""
        if signature is None:
            return export.example_inputs(self.shapes, self.example_sizes, self.device)
        return tuple(CallRules.from_json(signature, self.packages).trial_inputs(self.device))

    def without_module(self) -> Request:
        """The request as a compile needs it, which must not keep a model alive."""
        return dataclasses.replace(self, module=torch.nn.Module(), model=None, call_bytes=self.activation_bytes())


@dataclass(frozen=True)
class RequestContext:
    """Who asks for the graphs of a component; the attributes are those of `Request`."""

    component: str
    source: ModelSource
    client: ClientModule
    environment: str
    neighbours: tuple[Path, ...] = ()
    composites: Composites = NONE


def make_request(
    context: RequestContext,
    skeleton: torch.nn.Module,
    architecture: str,
    backend: Backend,
    ranged: Ranged,
    like: torch.Tensor,
) -> Request | Refused:
    """Make the request for a graph.

    Args:
        skeleton: the module as a graph is compiled for it, and its architecture digest.
        like: the call's main input: its dtype and device are the graph's.
    """
    if not backend.supports(ranged.shapes):
        return Refused(reasons.BackendCannotServe(backend.name, ranged.label))
    key = GraphKey(
        context.component,
        architecture,
        ranged.shapes.to_json(),
        dtype_name(like.dtype),
        backend.name,
        backend.target(like.device),
    )
    return Request(
        key=key,
        source=context.source,
        shapes=ranged.shapes,
        label=ranged.label,
        module=skeleton,
        prefix=PREFIX,
        backend=backend,
        device=like.device,
        example_sizes=ranged.sizes,
        client=context.client,
        neighbours=context.neighbours,
        export_shapes=(ranged.widest or ranged.shapes) if rebuilder(backend) is not None else None,
        environment=context.environment,
        composites=context.composites,
    )
