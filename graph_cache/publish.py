"""What is told of a graph that was compiled, and the manifest that it gets."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..common.reasons import ForeignFile
from ..common.tensor_meta import TensorMeta
from .entry import write_constants
from .file_names import check_names
from .integrity import record
from .key import GraphKey
from .manifest import CONSTANTS_FILE, MOST_BYTES, CodeRecord, Manifest


@dataclass(frozen=True)
class NewEntry:
    """A graph that was compiled into a private folder.

    Attributes:
        label: the shapes for people, e.g. `any size 64-2048`.
        files: the graph's files in that folder; others there are no part of the entry.
        constants: the weights that the graph reads.
        compile_seconds: wall time of capture, compile and trial load.
        made_by: version of the pack.
        unmeasured, at_least: see `Manifest`.
        code: the functions that the graph was captured from, where they are known.
        cuda_graphs: whether its calls may be captured as CUDA graphs.
        outputs: how many tensors it returns.
        call_rules: of a block's graph.
    """

    label: str
    files: Sequence[str]
    constants: tuple[TensorMeta, ...]
    compile_seconds: float
    made_by: str
    code: CodeRecord | None = None
    cuda_graphs: bool = False
    outputs: int = 1
    call_rules: dict[str, Any] | None = None
    unmeasured: bool = False
    at_least: Mapping[str, str] = field(default_factory=dict)


class NotPublishedError(OSError):
    """A graph could not be written to the home.

    Attributes:
        error: what went wrong there.
        location: where it was tried.
    """

    def __init__(self, error: OSError, location: Path) -> None:
        super().__init__(*error.args)
        self.error = error
        self.location = location


def manifest_of(key: GraphKey, compiled: Path, new: NewEntry) -> tuple[Manifest, bytes]:
    """Make the manifest of a graph's files, and its bytes. Raises OSError, also where look-ups would refuse it."""
    if CONSTANTS_FILE in new.files:
        raise OSError(errno.EINVAL, ForeignFile(CONSTANTS_FILE).damage)
    write_constants(compiled, new.constants)
    names = [*sorted(new.files), CONSTANTS_FILE] if new.files else []
    manifest = Manifest(
        key=key.fields(),
        label=new.label,
        files={name: record(compiled / name) for name in names},
        cuda_graphs=new.cuda_graphs,
        outputs=new.outputs,
        code=new.code,
        call_rules=new.call_rules,
        compile_seconds=round(new.compile_seconds, 3),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        made_by=new.made_by,
        unmeasured=new.unmeasured,
        at_least={**new.at_least},
    )
    wrong = check_names(manifest)
    if wrong is not None:
        raise OSError(errno.EINVAL, wrong.damage)
    text = manifest.model_dump_json(indent=1).encode()
    for what, size in (("a manifest", len(text)), ("weights", manifest.files[CONSTANTS_FILE].bytes)):
        if size > MOST_BYTES:
            raise OSError(errno.EFBIG, f"{what} of more than {MOST_BYTES} bytes")
    return manifest, text
