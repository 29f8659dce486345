"""Graphs of a model's file for a GPU that is not here: `python -m onegraph.host.jobs.absent_bake TASK`.

TASK is JSON with the fields of `AbsentTask`. Of the file the header is read. Each line printed is JSON, an event; the
last one is `done`. A process bakes for one GPU, which it pretends to have.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
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
        file: of a diffusion model, a VAE or a checkpoint; or a workflow, which names some.
        target: the GPU's architecture, such as `sm_90`.
        platform: the system, `linux` or `windows`.
    """

    comfyui: str
    file: str
    target: str
    platform: str


def bake(task: AbsentTask) -> Iterator[dict[str, Any]]:
    """Compile the graphs that models need for any size and put them into the graph folder; yield events.

    Raises:
        OneGraphError: this machine cannot bake for others.
    """
    from ...backends import CompilesForAbsent, get

    backend = get("inductor")
    assert isinstance(backend, CompilesForAbsent)
    backend.pretend(task.target, task.platform)
    boot(Path(task.comfyui), cpu=False)
    from ...common.errors import OneGraphError, in_brief
    from ..weights.weightless import HeaderError

    files = _models(Path(task.file))
    if not files:
        text = "it names no diffusion model or VAE that is in this ComfyUI's model folders"
        yield {"event": "failed", "model": Path(task.file).name, "text": text}
    for file in files:
        try:
            for event in _baked(file, backend):
                yield {**event, "model": file.name}
        except (OneGraphError, HeaderError, OSError) as error:
            yield {"event": "failed", "model": file.name, "text": str(error)}
        except Exception as error:  # of the host's own code, which has never seen such a model
            text = f"only a run tells ({type(error).__name__}: {in_brief(error)})"
            yield {"event": "failed", "model": file.name, "text": text}


def _models(path: Path) -> list[Path]:
    """A model's file, or those that a workflow names and this ComfyUI has, whoever saved it."""
    if path.suffix.lower() != ".json":
        return [path]
    import folder_paths

    names = re.findall(r'"((?:[^"\\\n]|\\.)+\.(?:safetensors|sft))"', path.read_text(encoding="utf-8"))
    found = (
        folder_paths.get_full_path(folder, json.loads(f'"{name}"'))
        for name in dict.fromkeys(names)
        for folder in ("diffusion_models", "checkpoints", "vae")
    )
    return [Path(one) for one in dict.fromkeys(found) if one]


def _baked(file: Path, backend: Any) -> Iterator[dict[str, Any]]:
    """Compile what a model needs and the graph folder lacks. Raises OneGraphError, HeaderError, OSError."""
    import torch

    from ...graph_cache.lookup import Hit
    from ...runtime.calls.requests import COMPONENT as BLOCKS
    from ...runtime.guards import code_guard
    from ...runtime.obtain.registry import registry

    store, device = registry().store, torch.device("cuda", 0)
    store.sweep()  # a bake may have been killed
    for request in _requests(file, backend, device):
        began = time.perf_counter()
        label = request.label if request.key.component == BLOCKS else f"{request.key.component}, {request.label}"
        if isinstance(store.find(request.key.alternatives[-1], code_guard.difference), Hit):
            yield {"event": "found", "label": label}
            continue
        with store.staging() as folder:
            entry = _compiled(request, folder, began)
        yield {
            "event": "baked", "label": label, "seconds": round(time.perf_counter() - began, 1),
            "bytes": entry.manifest.bytes, "folder": str(entry.folder),
        }  # fmt: skip


def _compiled(request: Any, folder: Path, began: float) -> Any:
    from ...common.torch_private import version
    from ...compiler.process import compile_job
    from ...compiler.process.job import Compiled
    from ...runtime.obtain.compiles import job_of, new_entry
    from ...runtime.obtain.registry import registry

    store = registry().store
    job = job_of(request, store.private.make_compiler_cache())
    done = compile_job.compile_for_absent(job, folder, lambda message: None)
    seconds = time.perf_counter() - began
    compiled = Compiled(done.files, done.constants, seconds, done.code, outputs=done.outputs, signature=done.signature)
    at_least = {"torch": "{}.{}".format(*version())}
    entry = dataclasses.replace(new_entry(request, job, compiled), unmeasured=True, at_least=at_least)
    return store.publish(request.key.alternatives[-1], folder, entry)  # for all machines of the kind


def _requests(path: Path, backend: Any, device: Any) -> Iterator[Any]:
    """What to ask the registry for, for the VAE and the diffusion model of a file, where their weights stay."""
    from ...common.errors import CaptureError
    from ...common.reasons import Reason
    from ...compiler.blocks.repeated import repeated_blocks
    from ...graph_cache.model_hash import ModelSource, hash_file
    from ..calls.block_hook import Blocks, HostBlockClient
    from ..calls.component import NodeComponent
    from ..comfyui.options import ModelNodeOptions
    from ..families import MODELS, family_of, half_of
    from ..families.vae import HALVES
    from ..weights import weightless
    from . import absent_calls

    header, source = weightless.read_header(path), ModelSource(path, hash_file(path))
    # As a diffusion model, also of a checkpoint: the host brings the other's parts to the GPU while it loads them.
    vae, patcher = weightless.load_vae(header), weightless.load(header, checkpoint=False)
    if vae is None and patcher is None:
        raise CaptureError(f"This ComfyUI does not know the model of {path.name}; update it.")
    for half in HALVES if vae is not None else ():
        found = half_of(vae.first_stage_model, half)
        why = found if isinstance(found, Reason) else found.refusal(vae.first_stage_model)
        if not isinstance(found, Reason) and why is None:
            half_component = NodeComponent(found, None, source, half)
            yield from _whole(half_component, vae.first_stage_model, vae.patcher, vae, backend)
        elif why is not None and patcher is None:
            raise CaptureError(why.text)
    if patcher is None:
        return
    module = patcher.model.diffusion_model
    family = family_of(module, MODELS)
    if not isinstance(family, Reason):
        yield from _whole(NodeComponent(family, None, source), module, patcher, patcher, backend)
        return
    if not repeated_blocks(module):
        raise CaptureError(family.text)
    component = NodeComponent(Blocks(), None, source)
    options = ModelNodeOptions(backend.name, "any size", "eager")
    client = HostBlockClient(component, options, module, "diffusion_model.", device)
    yield from absent_calls.block_requests(patcher, client, backend, device)


def _whole(component: Any, module: Any, patcher: Any, like: Any, backend: Any) -> Iterator[Any]:
    """The requests of a model that is compiled as a whole. `like`: what its family makes examples of."""
    from ...common.errors import CaptureError
    from ...common.refused import Refused
    from ...common.torch_private import fake_tensor_class
    from ...runtime.family import TENSORS
    from ...runtime.guards.guard_cache import GuardCache

    TENSORS.add(fake_tensor_class())
    examples = functools.partial(component.family.examples, module, like, None)
    with backend.capture_settings():
        requests = [*component.expected(patcher, module, backend.name, examples, GuardCache())]
    for request in requests:
        if isinstance(request, Refused):
            raise CaptureError(request.text)
        yield request


def main() -> None:
    """Bake a task."""
    from ...common.errors import OneGraphError

    out, sys.stdout = sys.stdout, sys.stderr  # for what the host and its packages print

    def tell(event: dict[str, Any]) -> None:
        out.write(json.dumps(event) + "\n")
        out.flush()

    task = AbsentTask(**json.loads(sys.argv[1]))
    try:
        for event in bake(task):
            tell(event)
    except OneGraphError as error:
        tell({"event": "failed", "model": Path(task.file).name, "text": str(error)})
    tell({"event": "done"})


if __name__ == "__main__":
    main()
