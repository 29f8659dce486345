"""The manifest of an entry: JSON, validated, never pickle."""

from __future__ import annotations

from typing import Any, Literal

from blake3 import blake3
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..common.tensor_meta import TensorMeta

MANIFEST_FILE = "manifest.json"
CONSTANTS_FILE = "constants.json"  # since version 2; see `constants`
MOST_BYTES = 4 << 20  # of either; the largest of a UNet has a few hundred kilobytes
_CAPTURABLE_FILE = "replays"  # in entries of older versions whose calls may be captured as CUDA graphs


class Strict(BaseModel):
    """Base of what is read from the store's files: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class FileRecord(Strict):
    """Size in bytes and blake3 of one of the graph's files."""

    bytes: int = Field(ge=0)
    blake3: str = Field(pattern=r"^[0-9a-f]{64}$")


class CodeRecord(Strict):
    """The Python functions that a graph was captured from; see `compiler.code_record`.

    Attributes:
        python: version whose bytecode was digested, e.g. `3.10`.
        functions: `module:path` of each function that ran -> digests of its bytecode and of its source text.
        references: `module:path` of each name that they use -> what it stood for.
        methods: `module:Class.method` -> the class that answers for it, for the classes of the model's modules.
    """

    python: str
    functions: dict[str, tuple[str, str]]
    references: dict[str, str]
    methods: dict[str, str]

    @property
    def digest(self) -> str:
        """6 hex digits over the functions' sources, which are the same for all Python versions."""
        sources = sorted((name, digests[1]) for name, digests in self.functions.items())
        return blake3(repr(sources).encode()).hexdigest(length=3)


class Manifest(Strict):
    """Everything known of a graph when it was compiled.

    Attributes:
        version: layout of this file. Entries of version 1 are read and used as they are.
        key: every field of the graph key; only these decide whether a look-up is a hit.
        label: the shapes for people, e.g. `any size 64-2048`.
        files: the graph's files by name.
        constants: what `bind` must find in the live model, in version 1. Later it is a file, see `constants.read`.
        cuda_graphs: whether its calls may be captured as CUDA graphs, which was tried when it was compiled.
        outputs: how many tensors it returns. Manifests that do not say so are of graphs that return one.
        code: the functions that the graph stands for; None where its backend rebuilt it from another graph's program.
        compile_seconds: wall time of capture, compile and trial load.
        created: ISO 8601 time in UTC.
        made_by: version of the pack.
    """

    version: Literal[1, 2] = 2
    key: dict[str, Any]
    label: str
    files: dict[str, FileRecord]
    constants: tuple[TensorMeta, ...] | None = None
    cuda_graphs: bool = False
    outputs: int = Field(default=1, ge=1)
    code: CodeRecord | None = None
    compile_seconds: float
    created: str
    made_by: str

    @model_validator(mode="before")
    @classmethod
    def _read_older(cls, data: Any) -> Any:
        """Older versions of the pack left a file where calls may be captured."""
        if isinstance(data, dict) and "cuda_graphs" not in data and _CAPTURABLE_FILE in data.get("files", {}):
            return {**data, "cuda_graphs": True}
        return data

    @model_validator(mode="after")
    def _has_constants_once(self) -> Manifest:
        if (self.constants is None) == (self.version == 1):
            raise ValueError("constants belong to version 1")
        return self
