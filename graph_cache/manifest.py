"""The manifest of an entry: JSON, validated, never pickle."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from blake3 import blake3
from pydantic import AliasChoices, Field, ValidationError

from ..common import strict
from ..common.installed import torch_version
from ..common.reasons import MadeForAnother
from .files import read_regular

if TYPE_CHECKING:
    from typing_extensions import Self

MANIFEST_FILE = "manifest.json"
CONSTANTS_FILE = "constants.json"  # the weights that the graph reads
VERSION: Literal[3] = 3  # of manifests; one of version 2 differs in a name
OLDEST = 2  # that is read
MOST_BYTES = 4 << 20  # of either; the largest of a UNet has a few hundred kilobytes


class Strict(strict.Strict):
    """Base of what is read from the store's files."""

    @classmethod
    def read(cls, path: Path, most: int) -> Self | None:
        """Read one from a file of at most that many bytes; None where no readable one is there."""
        try:
            return cls.model_validate_json(read_regular(path, most))
        except (OSError, ValidationError, MemoryError):
            return None


class FileRecord(Strict):
    """Size in bytes and blake3 of one of the graph's files."""

    bytes: int = Field(ge=0)
    blake3: str = Field(pattern=r"^[0-9a-f]{64}$")


class CodeRecord(Strict):
    """The Python functions that a graph was captured from; see `compiler.code.code_record`.

    Attributes:
        python: version whose bytecode was digested, e.g. `3.10`.
        torch: version whose functions are among them, e.g. `2.14`.
        functions: `module:path` of each function that ran -> digests of its bytecode and of its source text.
        references: `module:path` of each name that they use -> what it stood for.
        methods: `module:Class.method` -> the class that answers for it, for the classes of the model's modules.
    """

    python: str
    torch: str = ""
    functions: dict[str, tuple[str, str]]
    references: dict[str, str]
    methods: dict[str, str]

    @property
    def digest(self) -> str:
        """6 hex digits over the functions' sources, which are the same for all Python versions."""
        sources = sorted((name, digests[1]) for name, digests in self.functions.items())
        return blake3(repr(sources).encode()).hexdigest(length=3)


def needs_newer(at_least: Mapping[str, str]) -> MadeForAnother | None:
    """Say which version here is older than a graph asks for, or None. What nobody here knows is never new enough."""
    for what, least in at_least.items():
        here = torch_version() if what == "torch" else "none"
        if here and _numbers(here) < _numbers(least):  # an empty text: nobody can tell, so nothing is excluded
            return MadeForAnother(what, f"{least} or newer", here)
    return None


def _numbers(version: str) -> tuple[int, ...]:
    """Major and minor.

    >>> _numbers("2.14.1+cu130") < _numbers("2.9"), _numbers("none")
    (False, ())
    """
    return tuple(int(one) for one in re.findall(r"[0-9]+", version)[:2])


class Manifest(Strict):
    """Everything known of a graph when it was compiled.

    Attributes:
        version: layout of this file. Those of a higher version are left alone, older ones but the last are of no use.
        key: every field of the graph key; only these decide whether a look-up is a hit.
        label: the shapes for people, e.g. `any size 64-2048`.
        files: the graph's files by name.
        cuda_graphs: whether its calls may be captured as CUDA graphs, which was tried when it was compiled.
        outputs: how many tensors it returns.
        code: the functions that the graph stands for; None where its backend rebuilt it from another graph's program.
        call_rules: of a block's graph: which calls it serves, see `signature.call_rules`. None: a whole module's.
        compile_seconds: wall time of capture, compile and trial load.
        created: ISO 8601 time in UTC.
        made_by: version of the pack.
        unmeasured: whether it was compiled for a device that was not there: it has never run, and of its kernels'
            configurations the compiler's first were taken.
        at_least: the oldest versions that it runs with, by field of the target: `{"torch": "2.14"}`; empty for a graph
            whose target has them all. See `key.travelling`.
    """

    version: Literal[2, 3] = VERSION
    key: dict[str, Any]
    label: str
    files: dict[str, FileRecord]
    cuda_graphs: bool
    outputs: int = Field(ge=1)
    code: CodeRecord | None
    call_rules: dict[str, Any] | None = Field(None, validation_alias=AliasChoices("call_rules", "signature"))
    compile_seconds: float
    created: str
    made_by: str
    unmeasured: bool = False
    at_least: dict[str, str] = {}

    @property
    def needs_newer(self) -> MadeForAnother | None:
        """Why the versions here are too old for the graph, or None."""
        return needs_newer(self.at_least)

    @property
    def bytes(self) -> int:
        """Size of the graph's files."""
        return sum(file.bytes for file in self.files.values())
