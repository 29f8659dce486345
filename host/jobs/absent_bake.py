"""Graphs of a model's file for a GPU that is not here: `python -m onegraph.host.jobs.absent_bake TASK`.

TASK is JSON with the fields of `AbsentTask`. Of the file the header is read. Each line printed is JSON, an event; the
last one is `done` or `failed`. A process bakes for one GPU, which it pretends to have.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .bench import boot


@dataclass(frozen=True)
class AbsentTask:
    """What to bake.

    Attributes:
        comfyui: ComfyUI's folder, whose functions the graphs stand for.
        file: of a diffusion model, or a checkpoint.
        target: the GPU's architecture, such as `sm_90`.
    """

    comfyui: str
    file: str
    target: str


def bake(task: AbsentTask) -> Iterator[dict[str, Any]]:
    """Compile the graphs that a model needs for any size and put them into the graph folder; yield events.

    Raises:
        OneGraphError: it cannot be done.
        HeaderError, OSError: the file does not tell what model it holds.
    """
    from ...backends import CompilesForAbsent, get

    backend = get("inductor")
    assert isinstance(backend, CompilesForAbsent)
    backend.pretend(task.target)
    boot(Path(task.comfyui), cpu=False)
    import torch

    from ...graph_cache.lookup import Hit
    from ...runtime.obtain.registry import registry

    store, device = registry().store, torch.device("cuda", 0)
    for request in _requests(Path(task.file), backend, device):
        began = time.perf_counter()
        if isinstance(store.find(request.key), Hit):
            yield {"event": "found", "label": request.label}
            continue
        with store.staging() as folder:
            entry = _compiled(request, folder, began)
        yield {
            "event": "baked", "label": request.label, "seconds": round(time.perf_counter() - began, 1),
            "bytes": entry.manifest.bytes, "folder": str(entry.folder),
        }  # fmt: skip


def _compiled(request: Any, folder: Path, began: float) -> Any:
    from ...compiler.process import compile_job
    from ...compiler.process.job import Compiled
    from ...runtime.obtain.compiles import job_of, new_entry
    from ...runtime.obtain.registry import registry

    store = registry().store
    job = job_of(request, store.private.make_compiler_cache())
    done = compile_job.compile_for_absent(job, folder, lambda message: None)
    seconds = time.perf_counter() - began
    compiled = Compiled(
        done.files, done.constants, seconds, done.code, outputs=done.outputs, signature=done.signature
    )
    return store.publish(request.key, folder, new_entry(request, job, compiled))


def _requests(path: Path, backend: Any, device: Any) -> Iterator[Any]:
    """What to ask the registry for, for a model whose weights stay in its file."""
    from ...common.errors import CaptureError
    from ...common.reasons import Reason
    from ...common.refused import Refused
    from ...compiler.blocks.repeated import repeated_blocks
    from ...graph_cache.model_hash import ModelSource, hash_file
    from ..calls.block_hook import Blocks, HostBlockClient
    from ..calls.component import NodeComponent
    from ..comfyui.options import ModelNodeOptions
    from ..families import MODELS, family_of
    from ..weights import weightless
    from . import absent_calls

    header = weightless.read_header(path)
    whole = any(name.startswith("model.diffusion_model.") for name in header.tensors)
    patcher = weightless.load(header, whole)
    if patcher is None:
        raise CaptureError(f"This ComfyUI does not know the model of {path.name}; update it.")
    module, source = patcher.model.diffusion_model, ModelSource(path, hash_file(path))
    family = family_of(module, MODELS)
    if not isinstance(family, Reason):
        raise CaptureError(f"{type(module).__name__} is compiled as a whole, which needs the GPU; bake it there.")
    if not repeated_blocks(module):
        raise CaptureError(family.text)
    component = NodeComponent(Blocks(), None, source)
    options = ModelNodeOptions(backend.name, "any size", "eager")
    client = HostBlockClient(component, options, module, "diffusion_model.", device)
    yield from absent_calls.block_requests(patcher, client, backend, device)


def main() -> None:
    """Bake a task."""
    from ...common.errors import OneGraphError
    from ..weights.weightless import HeaderError

    try:
        for event in bake(AbsentTask(**json.loads(sys.argv[1]))):
            print(json.dumps(event), flush=True)
        print(json.dumps({"event": "done"}), flush=True)
    except (OneGraphError, HeaderError, OSError) as error:
        print(json.dumps({"event": "failed", "text": str(error)}), flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
