"""From a program to a OneFlow job at exact sizes, and the files that hold the job and its description."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from blake3 import blake3
from pydantic import Field, ValidationError

from ...common.errors import LoadError
from ...common.strict import Strict
from . import library as oneflow
from . import lowering, memory
from .library import Library
from .program import Program

JOB_FILE = "graph.oneflow"
DESCRIPTION_FILE = "graph.json"
_numbers = itertools.count()


@dataclass
class Counters:
    """What this process did: lowerings of a program to a job, and initialisations of a job's runtime."""

    traces: int = 0
    inits: int = 0


counters = Counters()


class TensorRecord(Strict):
    """An input, weight or output: `op` in the job, its name in the module, and what it must be."""

    op: str
    name: str
    shape: tuple[int, ...]
    dtype: str


class Description(Strict):
    """What a job is for and what it takes to run.

    Attributes:
        device: torch's name of the device that the job was built for.
        held_bytes: estimate of what a loaded graph allocates for its life besides the weights.
        blake3: of the uncompressed job; OneFlow ends the process over a damaged one.
        job_bytes: its length, uncompressed.
        output: what it returns; of several outputs, each.
    """

    version: Literal[1] = 1
    oneflow: str
    device: str
    inputs: tuple[TensorRecord, ...]
    weights: tuple[TensorRecord, ...]
    output: TensorRecord | tuple[TensorRecord, ...]
    held_bytes: int = Field(ge=0)
    blake3: str = Field(pattern=r"^[0-9a-f]{64}$")
    job_bytes: int = Field(ge=0)

    @property
    def outputs(self) -> tuple[TensorRecord, ...]:
        """All that it returns, in order."""
        return (self.output,) if isinstance(self.output, TensorRecord) else self.output


def trace(program: Program, shapes: Sequence[Sequence[int]], device: str) -> tuple[bytes, Description]:
    """Lower `program` for inputs of `shapes` on `device`: the job's bytes and their description.

    Runs nothing and reads no weights; takes about a millisecond per operation.

    Raises:
        CompileError: an operation has no lowering, or none for these dtypes on this device.
    """
    lowering.check(program)
    library = oneflow.load()
    with oneflow.lock:
        counters.traces += 1
        inputs = tuple(
            TensorRecord(op=f"input{i}", name=spec.node, shape=tuple(shape), dtype=spec.dtype)
            for i, (spec, shape) in enumerate(zip(program.inputs, shapes, strict=True))
        )
        weights = tuple(
            TensorRecord(op=f"weight{i}", name=w.name, shape=w.shape, dtype=w.dtype)
            for i, w in enumerate(program.weights)
        )
        job_name = f"onegraph_trace_{next(_numbers)}"
        examples = _examples(library, (*inputs, *weights), device)
        with library.tracing(job_name):
            values: dict[str, Any] = {}
            for spec, record in zip(program.inputs, inputs, strict=True):
                values[spec.node] = library.feed_input(record.op, examples[record.op])
            for weight, record in zip(program.weights, weights, strict=True):
                values[weight.node] = library.feed_weight(record.op, examples[record.op])
            results = lowering.walk(program, values, lowering.Ops(library, device))
            names = ["output"] if len(results) == 1 else [f"output{number}" for number in range(len(results))]
            for name, result in zip(names, results, strict=True):
                library.fetch_output(name, result)
            job = library.finished_job({r.op: examples[r.op] for r in weights})
        library.trim()
    described = library.job_tensors(job, "output")
    outputs = tuple(
        TensorRecord(op=op, name=name, shape=described[op][0], dtype=described[op][1])
        for op, name in zip(names, program.results, strict=True)
    )
    data: bytes = job.SerializeToString()
    return data, Description(
        oneflow=oneflow.VERSION,
        device=device,
        inputs=inputs,
        weights=weights,
        output=outputs[0] if len(outputs) == 1 else outputs,
        held_bytes=memory.estimate(library, job),
        blake3=blake3(data).hexdigest(),
        job_bytes=len(data),
    )


def _examples(library: Library, records: Sequence[TensorRecord], device: str) -> dict[str, Any]:
    """Tensors by op of which only shapes and dtypes count: all on one buffer as large as the largest of their dtype."""
    largest: dict[str, int] = {}
    for record in records:
        largest[record.dtype] = max(largest.get(record.dtype, 0), math.prod(record.shape))
    buffers = {d: torch.empty(count, dtype=getattr(torch, d), device=device) for d, count in largest.items()}
    return {r.op: library.share(buffers[r.dtype][: math.prod(r.shape)].view(r.shape)) for r in records}


def write(data: bytes, description: Description, folder: Path) -> None:
    (folder / JOB_FILE).write_bytes(zlib.compress(data, 1))
    (folder / DESCRIPTION_FILE).write_text(description.model_dump_json(indent=1), encoding="utf-8")


def read_description(folder: Path) -> Description:
    """Raises LoadError when it is missing, damaged, or of another OneFlow."""
    try:
        description = Description.model_validate_json((folder / DESCRIPTION_FILE).read_bytes())
    except (OSError, ValidationError) as error:
        raise LoadError("The OneFlow graph's description cannot be read; it runs uncompiled instead.") from error
    if description.oneflow != oneflow.VERSION:
        raise LoadError(
            f"The graph was built by OneFlow {description.oneflow}, only {oneflow.VERSION} can be used; it runs "
            "uncompiled instead."
        )
    return description


def read_job(folder: Path, description: Description) -> bytes:
    """Read a job's bytes. Raises LoadError where they are not those that were described."""
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress((folder / JOB_FILE).read_bytes(), description.job_bytes + 1)
    except (OSError, zlib.error) as error:
        raise LoadError("The OneFlow graph's file cannot be read; it runs uncompiled instead.") from error
    if blake3(data).hexdigest() != description.blake3:
        raise LoadError("The OneFlow graph's file is damaged; it runs uncompiled instead.")
    return data
