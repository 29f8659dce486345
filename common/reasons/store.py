"""Why the store has no usable graph."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Reason


@dataclass(frozen=True)
class NoGraph(Reason):
    """No cached graph of the model has the key; `difference` is how the nearest one's differs, empty without any."""

    code = "no_graph"
    difference: str = ""


@dataclass(frozen=True)
class OtherKey(Reason):
    """The entry in the folder that the key names has another key."""

    code = "other_key"
    difference: str


@dataclass(frozen=True)
class Damaged(Reason):
    """An entry's files are not what its manifest lists; each way has a class of its own."""

    code = "damaged"


@dataclass(frozen=True)
class MissingFile(Damaged):
    """A file is not there, or something else is in its place."""

    code = "missing_file"
    file: str


@dataclass(frozen=True)
class WrongSize(Damaged):
    """A file was cut short or grew; sizes in bytes."""

    code = "wrong_size"
    file: str
    got: int
    wanted: int


@dataclass(frozen=True)
class DigestDiffers(Damaged):
    """A file of the right size has other contents."""

    code = "digest_differs"
    file: str


@dataclass(frozen=True)
class UnreadableFile(Damaged):
    code = "unreadable_file"
    file: str
    detail: str


@dataclass(frozen=True)
class UnreadableManifest(Damaged):
    code = "unreadable_manifest"
    detail: str


@dataclass(frozen=True)
class DiedWhileLoading(Reason):
    """Two processes of this machine ended, in a row, while they loaded the entry or called it for the first time."""

    code = "died_while_loading"


@dataclass(frozen=True)
class DiedOnceWhileLoading(Reason):
    """One process ended so. That may be bad luck: the graph is tried once more, and only the log tells."""

    code = "died_once_while_loading"
