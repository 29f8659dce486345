"""Sentences: why a call's inputs do not fit a graph's shape range."""

from __future__ import annotations

from .. import reasons
from .base import text


@text.register
def _(r: reasons.InputCount) -> str:
    return f"{r.got} inputs instead of {r.wanted}"


@text.register
def _(r: reasons.InputDevice) -> str:
    return f"{r.name} is on {r.got}, the graph is for {r.wanted}"


@text.register
def _(r: reasons.InputDtype) -> str:
    return f"{r.name} is {r.got}, the graph takes {r.wanted}"


@text.register
def _(r: reasons.InputRank) -> str:
    return f"{r.name} has {r.got} dimensions instead of {r.wanted}"


@text.register
def _(r: reasons.InputLength) -> str:
    return f"{r.name} has shape {list(r.shape)}, {r.got} should be {r.wanted}"


@text.register
def _(r: reasons.InputsDisagree) -> str:
    return f"{r.name} has {r.dim} {r.got}, another input has {r.other}"


@text.register
def _(r: reasons.OutOfRange) -> str:
    return f"{r.dim} {_size(r.got, r.unit)} is outside {_size(r.low, r.unit)}..{_size(r.high, r.unit)}{_pixels(r.unit)}"


@text.register
def _(r: reasons.OtherSize) -> str:
    return f"{r.dim} {_size(r.got, r.unit)} is not the {_size(r.wanted, r.unit)}{_pixels(r.unit)} it was compiled for"


@text.register
def _(r: reasons.NotAMultiple) -> str:
    return f"{r.dim} {_size(r.got, r.unit)} is not a multiple of {_size(r.multiple, r.unit)}{_pixels(r.unit)}"


@text.register
def _(r: reasons.NotAdmitted) -> str:
    return f"{text(r.because)} ({r.label})"


def _size(value: int, unit: int) -> int:
    """A size in pixels where a unit is given: sizes inside are in latent units, users think in pixels."""
    return value * unit if unit else value


def _pixels(unit: int) -> str:
    return " pixels" if unit else ""
