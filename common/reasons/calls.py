"""Why a call's inputs do not fit a graph's shape range."""

from __future__ import annotations

from .base import Reason


class InputCount(Reason):
    sentence = "{got} inputs instead of {wanted}"
    got: int
    wanted: int


class InputDevice(Reason):
    sentence = "{name} is on {got}, the graph is for {wanted}"
    name: str
    got: str
    wanted: str


class InputDtype(Reason):
    sentence = "{name} is {got}, the graph takes {wanted}"
    name: str
    got: str
    wanted: str


class InputRank(Reason):
    sentence = "{name} has {got} dimensions instead of {wanted}"
    name: str
    got: int
    wanted: int


class InputLength(Reason):
    name: str
    shape: tuple[int, ...]
    got: int
    wanted: int

    def clause(self) -> str:
        return f"{self.name} has shape {list(self.shape)}, {self.got} should be {self.wanted}"


class InputsDisagree(Reason):
    sentence = "{name} has {dim} {got}, another input has {other}"
    name: str
    dim: str
    got: int
    other: int


class OutOfRange(Reason):
    dim: str
    got: int
    low: int
    high: int
    unit: int = 0

    def clause(self) -> str:
        got, low, high = _sizes(self.unit, self.got, self.low, self.high)
        return f"{self.dim} {got} is outside {low}..{high}{_pixels(self.unit)}"


class OtherSize(Reason):
    dim: str
    got: int
    wanted: int
    unit: int = 0

    def clause(self) -> str:
        got, wanted = _sizes(self.unit, self.got, self.wanted)
        return f"{self.dim} {got} is not the {wanted}{_pixels(self.unit)} it was compiled for"


class NotAMultiple(Reason):
    dim: str
    got: int
    multiple: int
    unit: int = 0

    def clause(self) -> str:
        got, multiple = _sizes(self.unit, self.got, self.multiple)
        return f"{self.dim} {got} is not a multiple of {multiple}{_pixels(self.unit)}"


class NotAdmitted(Reason):
    sentence = "{because} ({label})"
    because: Reason
    label: str


def _sizes(unit: int, *values: int) -> tuple[int, ...]:
    """Sizes in pixels where a unit is given: those inside are in latent units, users think in pixels."""
    return tuple(value * (unit or 1) for value in values)


def _pixels(unit: int) -> str:
    return " pixels" if unit else ""
