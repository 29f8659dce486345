"""Sentences: why a graph cannot use the model's weights or functions, or turned out wrong."""

from __future__ import annotations

from .. import reasons
from .base import text


@text.register
def _(r: reasons.OtherHostVersion) -> str:
    return f"this ComfyUI has another version of {r.name} than the graph was compiled from"


@text.register
def _(r: reasons.FunctionReplaced) -> str:
    return f"another custom node replaced {r.name}{r.by and f' ({r.by})'}"


@text.register
def _(r: reasons.ForwardHook) -> str:
    return f"a forward hook sits on {r.where}"


@text.register
def _(r: reasons.ReplacedPart) -> str:
    return f"another custom node replaced the {r.what} of {r.where}{r.by and f' ({r.by})'}"


@text.register
def _(r: reasons.NoSuchWeight) -> str:
    return f"the model has no weight {r.name}"


@text.register
def _(r: reasons.NotPlainWeight) -> str:
    return f"a weight is a {r.type}, not a plain tensor"


@text.register
def _(r: reasons.WeightElsewhere) -> str:
    return f"part of the model is on {r.got}, not on {r.wanted}"


@text.register
def _(r: reasons.WeightDiffers) -> str:
    return f"weight {r.name} is {r.got}, the graph was compiled for {r.wanted}"


@text.register
def _(r: reasons.BindFailed) -> str:
    return r.detail


@text.register
def _(r: reasons.SlowerThanEager) -> str:
    return f"the compiled graph is slower than eager here ({r.speedup:.2f}x)"


@text.register
def _(r: reasons.OtherResult) -> str:
    return f"it returns {r.got} where eager returns {r.wanted}"


@text.register
def _(r: reasons.NotFinite) -> str:
    return "it returns values that are not finite where eager's are"


@text.register
def _(r: reasons.EagerNotFinite) -> str:
    return "eager is not finite here either, and the graph differs from it"


@text.register
def _(r: reasons.TooFarFromEager) -> str:
    return f"it differs from eager by {r.rel_l2:.2g} (relative L2, at most {r.bound:.2g} is rounding)"


@text.register
def _(r: reasons.FirstUseFailed) -> str:
    return f"the graph failed its first-use check: {text(r.because)}"


@text.register
def _(r: reasons.SpotCheckFailed) -> str:
    return f"the graph failed a later check: {text(r.because)}"


@text.register
def _(r: reasons.GraphNotFinite) -> str:
    return "the graph returned values that are not finite where eager's are; it is not used again"


@text.register
def _(r: reasons.MemoryRanOut) -> str:
    return "memory ran out in a compiled call, also after captured CUDA graphs were released"
