"""What is asked of the registry for the graph of a kind of block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ...backends import Backend, ServesBlocks
from ...common import reasons
from ...common.refused import Refused
from ...compiler.blocks.repeated import repeated_blocks
from ...graph_cache.key import GraphKey
from ...signature.declared import ShapeRange
from ...signature.modulation import Given, given_in_json
from ..guards.guard_cache import GuardCache
from ..obtain.registry import registry
from ..request import PREFIX, Request, Slot
from . import backend_choice
from .client import BlockClient

COMPONENT = "block"
_LABELS: Mapping[Any, str] = {"called": ", attention called"}


def block_request(
    client: BlockClient,
    block: torch.nn.Module,
    architecture: str,
    shapes: dict[str, Any],
    dtype: str,
    device: torch.device,
) -> Request | Refused:
    """Make the request for the graph that serves a block's calls of one form, at those sizes that its capture admits.

    Args:
        architecture: the block's digest.
        shapes: of the key: the form of the arguments by name, how it attends where the graph calls that, and by which
            sizes of 1 its calls differ from those of another graph.
        dtype: of the first tensor among them, without `torch.`.
    """
    context = client.component.context(client.model)

    def build(candidate: Backend) -> Request | Refused:
        if not isinstance(candidate, ServesBlocks):
            return Refused(reasons.BackendCannotServe(candidate.name, "block graphs"))
        target = candidate.target(device)
        return Request(
            key=GraphKey(COMPONENT, architecture, shapes, dtype, candidate.name, target),
            source=context.source,
            shapes=ShapeRange((), ()),
            label=type(block).__name__
            + _LABELS.get(shapes.get("attention"), "")
            + (", modulation given" if given_in_json(shapes["form"]) else "")
            + (", other sizes of 1" if "ones" in shapes else ""),
            module=block,
            prefix=PREFIX,
            backend=candidate,
            device=device,
            example_sizes={},
            client=context.client,
            neighbours=context.neighbours,
            environment=context.environment,
            packages=client.packages,
            composites=client.rules().composites,
        )

    return backend_choice.choose(client.backend, device, build)


def stored_modulation(client: BlockClient, architecture: str) -> tuple[Given, ...]:
    """The modules whose results stored graphs for blocks of an architecture take as arguments; empty: none does."""
    context = client.component.context(client.model)
    keys = registry().store.keys(COMPONENT, [architecture], context.source, context.neighbours)
    return next((given for key in keys if (given := given_in_json(key["shapes"]["form"]))), ())


def stored_requests(
    client: BlockClient, model: torch.nn.Module, device: torch.device, guards: GuardCache
) -> Iterator[tuple[Request, int]]:
    """Yield the requests for graphs that the store has for blocks of a model, and how many blocks each may serve."""
    rules = client.rules()
    counts: Counter[str] = Counter()
    block_of: dict[str, torch.nn.Module] = {}
    for block in repeated_blocks(model).values():
        architecture = guards.of(block, rules).architecture(block)
        counts[architecture] += 1
        block_of[architecture] = block
    context, attends = client.component.context(client.model), client.attention({})
    yielded: set[Slot] = set()
    for key in registry().store.keys(COMPONENT, counts.keys(), context.source, context.neighbours):
        architecture, shapes, dtype = key["architecture"], key["shapes"], key["dtype"]
        if shapes.get("attention", "captured") != attends:
            continue
        request = block_request(client, block_of[architecture], architecture, shapes, dtype, device)
        if not isinstance(request, Request) or key not in [one.fields() for one in request.key.alternatives]:
            continue
        if request.slot not in yielded:  # a graph made here and one made for all machines of the kind serve one request
            yielded.add(request.slot)
            yield request, counts[architecture]
