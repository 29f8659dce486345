"""Why a graph cannot use the model's weights or functions, or turned out wrong."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Reason


@dataclass(frozen=True)
class OtherHostVersion(Reason):
    """The host has another version of a function than the graph was captured from.

    Attributes:
        name: of the function, as users know it: `ResBlock._forward`, `openaimodel.timestep_embedding`.
    """

    code = "other_host_version"
    name: str


@dataclass(frozen=True)
class FunctionReplaced(Reason):
    """A function of the host was replaced at run time, and may be put back.

    Attributes:
        name: of the function, as users know it.
        by: the custom node that the replacement comes from; empty where nobody can tell.
    """

    code = "function_replaced"
    name: str
    by: str = ""


@dataclass(frozen=True)
class ForwardHook(Reason):
    """A forward hook sits on a module.

    Attributes:
        where: the module's path and class, e.g. `out.2 (Conv2d)`, or `every module`.
    """

    code = "forward_hook"
    where: str


@dataclass(frozen=True)
class ReplacedPart(Reason):
    """An attribute of a module hides what its class computes with.

    Attributes:
        what: the attribute, e.g. `forward`.
        where: the module's path and class.
        by: the custom node that it comes from; empty where nobody can tell.
    """

    code = "replaced_part"
    what: str
    where: str
    by: str = ""


@dataclass(frozen=True)
class NoSuchWeight(Reason):
    code = "no_such_weight"
    name: str


@dataclass(frozen=True)
class NotPlainWeight(Reason):
    code = "not_plain_weight"
    type: str


@dataclass(frozen=True)
class WeightElsewhere(Reason):
    code = "weight_elsewhere"
    got: str
    wanted: str


@dataclass(frozen=True)
class WeightDiffers(Reason):
    code = "weight_differs"
    name: str
    got: str
    wanted: str


@dataclass(frozen=True)
class BindFailed(Reason):
    code = "bind_failed"
    detail: str


@dataclass(frozen=True)
class SlowerThanEager(Reason):
    code = "slower_than_eager"
    speedup: float


@dataclass(frozen=True)
class OtherResult(Reason):
    code = "other_result"
    got: str
    wanted: str


@dataclass(frozen=True)
class NotFinite(Reason):
    code = "not_finite"


@dataclass(frozen=True)
class EagerNotFinite(Reason):
    code = "eager_not_finite"


@dataclass(frozen=True)
class TooFarFromEager(Reason):
    code = "too_far_from_eager"
    rel_l2: float
    bound: float


@dataclass(frozen=True)
class FirstUseFailed(Reason):
    code = "first_use_failed"
    because: Reason


@dataclass(frozen=True)
class SpotCheckFailed(Reason):
    code = "spot_check_failed"
    because: Reason


@dataclass(frozen=True)
class GraphNotFinite(Reason):
    code = "graph_not_finite"


@dataclass(frozen=True)
class MemoryRanOut(Reason):
    code = "memory_ran_out"
