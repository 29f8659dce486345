"""A component of a model as a client compiles it: the one place that builds requests and calls, for all families."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from ...backends import Backend, ServesBlocks
from ...common import reasons
from ...common.outputs import Output
from ...common.reasons import Reason
from ...common.refused import Refused
from ...common.torch_guards import TensorLooks
from ..family import Family, Shapes, Tensors
from ..graphs.first_use import QuantisingEager
from ..graphs.spot_check import cropped
from ..request import Request, WhenMissing, make_request
from . import backend_choice
from .dispatch import Call, Dispatcher
from .run import Run
from .seen_calls import MOST_SEEN

# Which sizes a graph is to serve, or why there is to be none, given whether the backend has graphs for any size.
ShapePolicy = Callable[[bool], Shapes | Reason]


def shape_policy_of(shapes: Shapes) -> ShapePolicy:
    """Return the policy of a user who has chosen for which sizes graphs are.

    >>> [shape_policy_of(chosen)(has_any_size) for chosen in ("any size", "exact") for has_any_size in (True, False)]
    ['any size', 'exact', 'exact', 'exact']
    """
    return lambda any_size: "any size" if any_size and shapes == "any size" else "exact"


class Choice(NamedTuple):
    """What a user has chosen for calls of a component.

    Attributes:
        backend: its name, or `auto`.
        when_missing: what to do where there is no graph.
    """

    backend: str
    shape_policy: ShapePolicy
    when_missing: WhenMissing


class Component(Dispatcher):
    """The calls of one family for one client. A subclass tells who asks, and what else the client knows."""

    def __init__(self, family: Family) -> None:
        super().__init__()
        self.family = family

    def prepared(
        self,
        run: Run,
        module: torch.nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        choice: Choice,
    ) -> Call | Refused:
        """What to run through a graph for one call of a module that the run has inspected, or why not."""
        inputs = self.family.read(module, args, kwargs)
        if isinstance(inputs, Refused):
            return inputs
        request = self.request(run, module, inputs, choice.backend, choice.shape_policy)
        if isinstance(request, Refused):
            return request
        names = [spec.name for spec in request.shapes.inputs]

        def of(computing: torch.nn.Module) -> Callable[..., Output]:
            return lambda *tensors: self.family.run(computing, dict(zip(names, tensors, strict=True)))

        eager = of(module)
        assert run.guard is not None
        exact = request.composites.exact
        if run.guard.composite and exact is not None:

            def exactly(*tensors: torch.Tensor) -> Output:
                floats = [one.float() if one.is_floating_point() else one for one in tensors]
                with torch.no_grad():
                    return of(exact(module))(*floats)

            eager = QuantisingEager(eager, exactly, functools.partial(cropped, request.shapes))
        chunk = self.family.chunk if self.family.chunk == 1 or not request.shapes.exact else 0
        return Call(request, [inputs[name] for name in names], eager, choice.when_missing, chunk)

    def request(
        self, run: Run, module: torch.nn.Module, inputs: Tensors, backend: str, shape_policy: ShapePolicy
    ) -> Request | Refused:
        """What to ask the registry for, given a graph's inputs.

        Args:
            module: that runs; a graph is compiled for the run's skeleton of it.
            backend: its name, or `auto`.
        """
        names, tensors = tuple(inputs), [*inputs.values()]
        for known, looks, request in run.requests:
            if known == names and looks.same_as(*tensors):
                return request
        main = tensors[0]
        widest, exact = (self.family.ranged(module, inputs, shapes) for shapes in ("any size", "exact"))

        def build(candidate: Backend) -> Request | Refused:
            shapes = shape_policy(candidate.supports(widest.shapes))
            if isinstance(shapes, Reason):
                return Refused(shapes)
            assert run.guard is not None
            if run.guard.composite and not isinstance(candidate, ServesBlocks):
                return Refused(reasons.BackendCannotServe(candidate.name, "quantised weights"))
            skeleton = run.skeleton(module)
            architecture = run.guard.architecture(skeleton)
            ranged = widest if shapes == "any size" else replace(exact, widest=widest.shapes)
            return make_request(self.context(module), skeleton, architecture, candidate, ranged, main)

        chosen = backend_choice.choose(backend, main.device, build)
        if isinstance(chosen, Request):
            run.requests[:] = [(names, TensorLooks(tensors), chosen), *run.requests[: MOST_SEEN - 1]]
        return chosen
