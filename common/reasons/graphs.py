"""Why a graph cannot use the model's weights or functions, or turned out wrong."""

from __future__ import annotations

from .base import Reason


class OtherHostVersion(Reason):
    """The host has another version of a function than the graph was captured from.

    Attributes:
        name: of the function, as users know it: `ResBlock._forward`, `openaimodel.timestep_embedding`.
    """

    sentence = "this ComfyUI has another version of {name} than the graph was compiled from"
    name: str


class FunctionReplaced(Reason):
    """A function of the host was replaced at run time, and may be put back.

    Attributes:
        name: of the function, as users know it.
        by: the custom node that the replacement comes from; empty where nobody can tell.
    """

    sentence = "another custom node replaced {name}{by:()}"
    name: str
    by: str = ""


class ForwardHook(Reason):
    """A forward hook sits on a module.

    Attributes:
        where: the module's path and class, e.g. `out.2 (Conv2d)`, or `every module`.
    """

    sentence = "a forward hook sits on {where}"
    where: str


class ReplacedPart(Reason):
    """An attribute of a module hides what its class computes with.

    Attributes:
        what: the attribute, e.g. `forward`.
        where: the module's path and class.
        by: the custom node that it comes from; empty where nobody can tell.
        own: whether the model's own package put it there.
    """

    what: str
    where: str
    by: str = ""
    own: bool = False

    def clause(self) -> str:
        if self.own:
            return f"the model has a {self.what} of its own on {self.where}, which no graph follows"
        return f"another custom node replaced the {self.what} of {self.where}{self.by and f' ({self.by})'}"


class NoSuchWeight(Reason):
    sentence = "the model has no weight {name}"
    name: str


class NotPlainWeight(Reason):
    sentence = "a weight is a {type}, not a plain tensor"
    type: str


class WeightFormat(Reason):
    sentence = "the weight of {where} is of the format {format}, with which no graph computes"
    format: str
    where: str


class LibraryWeight(Reason):
    """A weight is of a library's own class, in which only its own code finds the values.

    Attributes:
        type: name of the class.
        library: that defines it, a package or a custom node.
        where: the layer's path and class.
    """

    sentence = (
        "the weight of {where} is a {type} of {library}, with which no graph computes; "
        "a file in 16 bits, or in a format that is served, runs compiled"
    )
    type: str
    library: str
    where: str


class QuantisedLayer(Reason):
    sentence = "{where} has a quantised weight, which no graph reads in such a layer; files with it in 16 bits compile"
    where: str


class WeightElsewhere(Reason):
    sentence = "part of the model is on {got}, not on {wanted}"
    got: str
    wanted: str


class WeightDiffers(Reason):
    sentence = "weight {name} is {got}, the graph was compiled for {wanted}"
    name: str
    got: str
    wanted: str


class BindFailed(Reason):
    sentence = "{detail}"
    detail: str


class SlowerThanEager(Reason):
    sentence = "the compiled graph is slower than the uncompiled model here ({speedup:.2f}x)"
    speedup: float


class OtherResult(Reason):
    sentence = "it returns {got} where the uncompiled model returns {wanted}"
    got: str
    wanted: str


class NotFinite(Reason):
    sentence = "it returns values that are not finite where the uncompiled model's are"


class EagerNotFinite(Reason):
    sentence = "the uncompiled model's values are not finite here either, and the graph differs from it"


class TooFarFromEager(Reason):
    sentence = "it differs from the uncompiled model by {rel_l2:.2g} (relative L2, at most {bound:.2g} is rounding)"
    rel_l2: float
    bound: float


class TooFarFromExact(Reason):
    """A graph of quantised weights is further from the result in float32 than eager, by relative L2."""

    sentence = "it differs from the exact result by {graph:.2g}, the uncompiled model by {eager:.2g} (relative L2)"
    graph: float
    eager: float


class NotComparedExactly(Reason):
    """A quantised graph was compared with eager alone.

    Attributes:
        error: name of what was raised where it was computed in float32, such as `OutOfMemoryError`.
    """

    sentence = "graphs were compared with uncompiled blocks alone: float32 ended in {error}"
    error: str


class FirstUseFailed(Reason):
    sentence = "the graph failed its first-use check: {because}"
    because: Reason


class SpotCheckFailed(Reason):
    sentence = "the graph failed a later check: {because}"
    because: Reason


class GraphNotFinite(Reason):
    sentence = "the graph returned values that are not finite where the uncompiled model's are; it is not used again"


class MemoryRanOut(Reason):
    sentence = "memory ran out in a compiled call, also after captured CUDA graphs were released"
