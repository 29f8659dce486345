"""The manifest of an entry, and the record of its first use on each machine. JSON, validated, never pickle."""

from __future__ import annotations

from typing import Any, Literal

from blake3 import blake3
from pydantic import BaseModel, ConfigDict, Field

from ..common.tensor_meta import TensorMeta

MANIFEST_FILE = "manifest.json"
OUTCOME_FILE = "outcome.json"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FileRecord(_Strict):
    """Size in bytes and blake3 of one of the graph's files."""

    bytes: int = Field(ge=0)
    blake3: str = Field(pattern=r"^[0-9a-f]{64}$")


class CodeRecord(_Strict):
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


class Manifest(_Strict):
    """Everything known of a graph when it was compiled.

    Attributes:
        version: layout of this file.
        key: every field of the graph key; only these decide whether a look-up is a hit.
        label: the shapes for people, e.g. `any size 64-2048`.
        files: the graph's files by name.
        constants: what `bind` must find in the live model.
        code: the functions that the graph stands for; None where its backend rebuilt it from another graph's program.
        compile_seconds: wall time of capture, compile and trial load.
        created: ISO 8601 time in UTC.
        made_by: version of the pack.
    """

    version: Literal[1] = 1
    key: dict[str, Any]
    label: str
    files: dict[str, FileRecord]
    constants: tuple[TensorMeta, ...]
    code: CodeRecord | None = None
    compile_seconds: float
    created: str
    made_by: str


class Outcome(_Strict):
    """What the first use on one machine showed; later processes rely on it instead of measuring again.

    Attributes:
        checked: batch class (`1` or `n`) -> relative L2 against eager on real inputs.
        eager_ms, compiled_ms: one call on the inputs of the first use, milliseconds; None while unmeasured.
        slow_processes: how many processes in a row found the graph slower than eager.
        environment: versions around the graph when `checked` was filled.
        size: the sizes they were measured at, e.g. `batch 2, height 64, width 64, context 77`.
    """

    checked: dict[str, float] = {}
    eager_ms: float | None = None
    compiled_ms: float | None = None
    slow_processes: int = 0
    environment: str = ""
    size: str = ""

    @property
    def speedup(self) -> float | None:
        return self.eager_ms / self.compiled_ms if self.eager_ms and self.compiled_ms else None


class Outcomes(_Strict):
    """Outcomes by machine."""

    version: Literal[1] = 1
    machines: dict[str, Outcome] = {}
