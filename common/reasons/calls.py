"""Why a call's inputs do not fit a graph's shape range."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Reason


@dataclass(frozen=True)
class InputCount(Reason):
    code = "input_count"
    got: int
    wanted: int


@dataclass(frozen=True)
class InputDevice(Reason):
    code = "input_device"
    name: str
    got: str
    wanted: str


@dataclass(frozen=True)
class InputDtype(Reason):
    code = "input_dtype"
    name: str
    got: str
    wanted: str


@dataclass(frozen=True)
class InputRank(Reason):
    code = "input_rank"
    name: str
    got: int
    wanted: int


@dataclass(frozen=True)
class InputLength(Reason):
    code = "input_length"
    name: str
    shape: tuple[int, ...]
    got: int
    wanted: int


@dataclass(frozen=True)
class InputsDisagree(Reason):
    code = "inputs_disagree"
    name: str
    dim: str
    got: int
    other: int


@dataclass(frozen=True)
class OutOfRange(Reason):
    code = "out_of_range"
    dim: str
    got: int
    low: int
    high: int
    unit: int = 0


@dataclass(frozen=True)
class OtherSize(Reason):
    code = "other_size"
    dim: str
    got: int
    wanted: int
    unit: int = 0


@dataclass(frozen=True)
class NotAMultiple(Reason):
    code = "not_a_multiple"
    dim: str
    got: int
    multiple: int
    unit: int = 0


@dataclass(frozen=True)
class NotAdmitted(Reason):
    code = "not_admitted"
    because: Reason
    label: str
