"""A compile as the server orders it, and what the compiling process reports of it.

Both sides read and write these values here only. A job travels as files in the private folder of the compile, a message
as one line of JSON on the worker's standard output. The module imports neither torch nor pydantic: the worker reads its
job before it can import what the server's import path leads to.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ...common.errors import Cause
from ...common.tensor_meta import TensorMeta
from ...signature.declared import ShapeRange

if TYPE_CHECKING:
    from ...graph_cache.entry import Entry
    from ...graph_cache.manifest import CodeRecord

JSON = dict[str, Any]
JOB_FILE = "job.json"
SKELETON_FILE = "skeleton.bin"
LOG_FILE = "compile.log"


@dataclass(frozen=True)
class ClientModule:
    """The module of a client that rebuilds what is compiled, in the worker.

    It has `prepare(state)`, `wrap(component, module, inputs)`, `rules()`, and `block_settings()`, the `Settings` to
    capture a block with. Where its models may be of classes inside of functions, `class_of(name)` gives these.

    Attributes:
        module: a dotted name; with a leading dot it is relative to the pack, whatever the pack is called here.
    """

    module: str
    state: Mapping[str, Any]


@dataclass(frozen=True)
class Job:
    """One compile.

    Attributes:
        block: the calls of a kind of block (`KindCalls.to_json`), which decide its sizes; None: a whole module.
        export_shapes: the range to export under; wider than `shapes` where graphs for other sizes are rebuilt later.
        example_sizes: sizes that the compiler tunes for, by dimension name.
        skeleton: the module without weights, from `skeleton.dump`; empty when there is a graph to rebuild from.
        niceness: by how much the compile gives way to other processes (POSIX nice).
        sibling: a graph of the same architecture for other sizes, to rebuild from. It stays in the server.
        rebuild_from: folder with a private copy of its files.
        constants: the weights that the graph in `rebuild_from` reads.
        workers: how many processes compile regions of the graph besides the main worker.
        check_only: files of a finished graph in the private folder, which is only loaded and called once.
        cache: folder for what compilers share between compiles, where the user chose none; None: they share nothing.
        weights: how many the model has, for the estimate. It stays in the server.
    """

    component: str
    backend: str
    device: str
    shapes: ShapeRange
    export_shapes: ShapeRange
    example_sizes: Mapping[str, int]
    skeleton: bytes
    client: ClientModule
    niceness: int = 0
    sibling: Entry | None = None
    rebuild_from: Path | None = None
    constants: tuple[TensorMeta, ...] = ()
    workers: int = 0
    cache: Path | None = None
    weights: int = 0
    block: JSON | None = None
    check_only: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """What compiles have in common that take about as long for each weight."""
        exact = "exact" if all(dim.exact for dim in self.shapes.dims) else "any size"
        device = self.device.partition(":")[0]
        return f"{self.component}, {self.backend}, {device}, {exact}, {self.workers} workers"

    def to_json(self) -> JSON:
        """Return what the worker needs, the skeleton apart."""
        return {
            "component": self.component,
            "backend": self.backend,
            "device": self.device,
            "shapes": self.shapes.to_json(),
            "export_shapes": self.export_shapes.to_json(),
            "example_sizes": dict(self.example_sizes),
            "client": {"module": self.client.module, "state": dict(self.client.state)},
            "niceness": self.niceness,
            "rebuild_from": str(self.rebuild_from) if self.rebuild_from else None,
            "constants": [constant.to_json() for constant in self.constants],
            "workers": self.workers,
            "cache": str(self.cache) if self.cache else None,
            "check_only": list(self.check_only),
            "block": self.block,
        }

    @classmethod
    def from_json(cls, data: JSON, skeleton: bytes = b"") -> Job:
        """Read what `to_json` made, also after a way through JSON."""
        return cls(
            component=data["component"],
            backend=data["backend"],
            device=data["device"],
            shapes=ShapeRange.from_json(data["shapes"]),
            export_shapes=ShapeRange.from_json(data["export_shapes"]),
            example_sizes=data["example_sizes"],
            skeleton=skeleton,
            client=ClientModule(**data["client"]),
            niceness=data["niceness"],
            rebuild_from=Path(data["rebuild_from"]) if data["rebuild_from"] else None,
            constants=tuple(map(TensorMeta.from_json, data["constants"])),
            workers=data["workers"],
            cache=Path(data["cache"]) if data["cache"] else None,
            check_only=tuple(data["check_only"]),
            block=data["block"],
        )


def write_job(job: Job, folder: Path) -> None:
    """Write a job and this process' import path, as a worker expects them in its staging folder."""
    (folder / SKELETON_FILE).write_bytes(job.skeleton)
    data = {**job.to_json(), "import_path": [path for path in sys.path if path]}
    (folder / JOB_FILE).write_text(json.dumps(data), encoding="utf-8")


def read_job(folder: Path) -> tuple[Job, list[str]]:
    """Read a job and the import path of the process that wrote it."""
    data = json.loads((folder / JOB_FILE).read_text(encoding="utf-8"))
    return Job.from_json(data, (folder / SKELETON_FILE).read_bytes()), data["import_path"]


@dataclass(frozen=True)
class Compiled:
    """What the worker left in the staging folder.

    Attributes:
        files: names of the graph's files.
        constants: the weights that the graph reads.
        seconds: wall time of the compile.
        code: the functions that it was captured from; None where it was rebuilt from another graph.
        cuda_graphs: whether its calls may be captured.
        outputs: how many tensors it returns.
        signature: of a block's graph, `CallRules.to_json`.
        stages: seconds by stage; empty where the worker ended before it was done.
    """

    files: tuple[str, ...]
    constants: tuple[TensorMeta, ...]
    seconds: float
    code: CodeRecord | None = None
    cuda_graphs: bool = False
    outputs: int = 1
    signature: JSON | None = None
    stages: Mapping[str, float] = field(default_factory=dict)


# What the worker reports ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """A stage begins: one of `progress.STAGES`."""

    event: ClassVar[str] = "stage"
    stage: str


@dataclass(frozen=True)
class Regions:
    """The graph is compiled in regions: their sizes by the names of the files that are there when they are done."""

    event: ClassVar[str] = "regions"
    sizes: Mapping[str, float]


@dataclass(frozen=True)
class Checked:
    """The graph is whole and computes `outputs` tensors. At most a trial of CUDA graphs follows, which takes nothing
    from it. `signature`: of a block's graph."""

    event: ClassVar[str] = "checked"
    files: tuple[str, ...]
    constants: tuple[TensorMeta, ...]
    code: CodeRecord | None = None
    outputs: int = 1
    signature: JSON | None = None


@dataclass(frozen=True)
class Done(Checked):
    """As `Checked`, and nothing follows. `cuda_graphs` tells whether a call was captured and replayed."""

    event: ClassVar[str] = "done"
    cuda_graphs: bool = False


@dataclass(frozen=True)
class Failed:
    """There is no graph; the arguments of a `CompileError`."""

    event: ClassVar[str] = "failed"
    reason: str
    lasting: bool = True
    cause: Cause = ""


Message = Stage | Regions | Checked | Done | Failed
_MESSAGES: Mapping[str, type[Message]] = {cls.event: cls for cls in (Stage, Regions, Checked, Done, Failed)}


def to_json(message: Message) -> JSON:
    """Return a message's event and fields, ready for JSON."""
    data = {"event": message.event, **{one.name: getattr(message, one.name) for one in fields(message)}}
    if isinstance(message, Checked):
        data["constants"] = [constant.to_json() for constant in message.constants]
        data["code"] = message.code.model_dump(mode="json") if message.code is not None else None
    return data


def from_json(data: JSON) -> Message:
    """Read what `to_json` made, also after a way through JSON.

    Raises:
        ValueError: it is no message.
    """
    try:
        return _from_fields(_MESSAGES[data["event"]], {**data})
    except (KeyError, TypeError) as error:
        raise ValueError(f"no message of a compiling process: {data!r}") from error


def _from_fields(cls: type[Message], fields: JSON) -> Message:
    del fields["event"]
    if issubclass(cls, Checked):
        fields["files"] = tuple(fields["files"])
        fields["constants"] = tuple(map(TensorMeta.from_json, fields["constants"]))
        if fields["code"] is not None:
            from ...graph_cache.manifest import CodeRecord

            fields["code"] = CodeRecord.model_validate(fields["code"])
    return cls(**fields)
