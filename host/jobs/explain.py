"""Would a checkpoint's graphs be found? Asked in a process of its own: `python -m onegraph.host.jobs.explain TASK`.

TASK is JSON with the fields of `ExplainTask`; the last line printed is JSON, a list of `Finding`. Requests are made as
a node makes them before a run, so what is looked up is what a run looks up. Nothing is compiled, sampled or written.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .bench import boot


@dataclass(frozen=True)
class ExplainTask:
    """What to explain.

    Attributes:
        comfyui: ComfyUI's folder.
        checkpoint: the checkpoint's file.
        backend: `auto` or the name of a backend, as on the node.
        cpu: for the CPU although there is a GPU.
        custom_node: a custom node pack to import first, for model families that ComfyUI does not know by itself.
    """

    comfyui: str
    checkpoint: str
    backend: str
    cpu: bool
    custom_node: str = ""


@dataclass(frozen=True)
class Finding:
    """What is known of one graph that the checkpoint's nodes would ask for.

    Attributes:
        component: of the model.
        verdict: `hit`; `miss`: it would be compiled; `refused`: it would run eager; `recorded`: calls must be seen
            first.
        code, text: of the reason.
        folder: of the graph that is found, or of the nearest one.
        fields: of the key: name, what is wanted, what the nearest graph has, and whether these are equal.
    """

    component: str
    verdict: str
    shapes: str = ""
    code: str = ""
    text: str = ""
    folder: str = ""
    fields: tuple[dict[str, Any], ...] = ()


def explain(task: ExplainTask) -> list[Finding]:
    """Look up the graphs of a checkpoint's model, VAE and text models. ComfyUI must be booted."""
    import comfy.sd
    import folder_paths

    path = Path(task.checkpoint)
    folders, kinds = folder_paths.folder_names_and_paths["checkpoints"]
    folder_paths.folder_names_and_paths["checkpoints"] = ([*dict.fromkeys([*folders, str(path.parent)])], kinds)
    model, clip, vae = comfy.sd.load_checkpoint_guess_config(str(path), output_vae=True, output_clip=True)[:3]
    findings = [*model_findings(model, path, task.backend)]
    findings += _vae(vae, path, task.backend) if vae is not None else ()
    return [*findings, *(text_findings(clip, path, task.backend) if clip is not None else ())]


def model_findings(patcher: Any, path: Path, backend: str) -> Iterator[Finding]:
    """Look up the graphs of a model for any size, or those that the store has for its blocks.

    Args:
        patcher: the host's; its weights may be on the meta device.
        path: the file that it is loaded from.
        backend: as on the node.
    """
    from ...common.reasons import Reason
    from ...compiler.blocks.repeated import repeated_blocks
    from ...graph_cache.model_hash import ModelSource, hash_file
    from ...runtime.calls.requests import COMPONENT
    from ..calls.component import NodeComponent
    from ..families import MODELS, family_of

    module, source = patcher.model.diffusion_model, ModelSource(path, hash_file(path))
    family = family_of(module, MODELS)
    if isinstance(family, Reason):
        if not repeated_blocks(module):
            yield Finding("model", "refused", code=family.code, text=family.text)
            return
        found = [*_blocks(patcher, module, "diffusion_model.", backend, source)]
        yield from found
        if not found:
            text = (
                "no graph of these blocks is cached; a run records its first calls, and compiles one for each kind of "
                "block"
            )
            yield Finding(COMPONENT, "recorded", code="no_graph", text=text)
        return
    yield from _whole(NodeComponent(family, None, source), module, patcher, patcher, backend)


def _whole(component: Any, module: Any, patcher: Any, owner: Any, backend: str) -> Iterator[Finding]:
    """The graphs of a module that is compiled as a whole; `owner`: the host's object that its examples are read of."""
    from ...runtime.guards.guard_cache import GuardCache

    family = component.family
    refusal = family.refusal(module)
    if refusal is not None:
        yield Finding(family.component, "refused", code=refusal.code, text=refusal.text)
        return
    examples = functools.partial(family.examples, module, owner, None)
    for request in component.expected(patcher, module, backend, examples, GuardCache()):
        yield _judge(family.component, request)


def _vae(vae: Any, path: Path, backend: str) -> Iterator[Finding]:
    from ...common.reasons import Reason
    from ...graph_cache.model_hash import ModelSource, hash_file
    from ..calls.component import NodeComponent
    from ..calls.vae.eligibility import halves_of

    halves = halves_of(vae)
    if isinstance(halves, Reason):
        yield Finding("vae", "refused", code=halves.code, text=halves.text)
        return
    module, source = vae.first_stage_model, ModelSource(path, hash_file(path))
    for half, family in halves.items():
        yield from _whole(NodeComponent(family, None, source, half), module, vae.patcher, vae, backend)


def text_findings(clip: Any, path: Path, backend: str) -> Iterator[Finding]:
    """Graphs of a checkpoint's text models. Few workflows compile these: what is not there is not missed."""
    from ...graph_cache.model_hash import ModelSource, hash_file
    from ..families.text_blocks import text_models

    source = ModelSource(path, hash_file(path))
    for prefix, module in text_models(clip.cond_stage_model).items():
        yield from _blocks(clip.patcher, module, prefix, backend, source)


def _blocks(patcher: Any, module: Any, prefix: str, backend: str, source: Any) -> Iterator[Finding]:
    """Graphs of blocks that the store has: which others a run needs only its calls tell."""
    from ...runtime.calls.requests import COMPONENT, stored_requests
    from ...runtime.guards.guard_cache import GuardCache
    from ..calls.block_hook import Blocks, HostBlockClient
    from ..calls.component import NodeComponent
    from ..comfyui.options import ModelNodeOptions

    options = ModelNodeOptions(backend, "any size", "eager")
    client = HostBlockClient(NodeComponent(Blocks(), None, source), options, module, prefix, patcher.load_device)
    for request, _ in stored_requests(client, module, patcher.load_device, GuardCache()):
        yield _judge(COMPONENT, request)


def _judge(component: str, request: Any) -> Finding:
    """Look up the graph that a request would get, without obtaining it; a refused request is a finding, too."""
    from ...common.reasons import Reason
    from ...common.refused import Refused
    from ...graph_cache.lookup import Hit, Miss
    from ...runtime.guards import code_guard
    from ...runtime.obtain.registry import registry

    if isinstance(request, Refused):
        return Finding(component, "refused", code=request.reason.code, text=request.reason.text)
    store = registry().store
    unable = request.backend.can_run(request.device).reason
    if unable is not None:
        return Finding(component, "refused", request.label, unable.code, unable.text)
    judged = store.lookup(request.key, request.source, request.neighbours, code_guard.difference)
    nearest = judged.entry if isinstance(judged, Hit) else store.nearest(request.key)
    found = nearest.manifest.key if nearest is not None else {}
    wanted = next((one.fields() for one in request.key.alternatives if one.fields() == found), request.key.fields())
    fields = _fields(wanted, found)
    folder = str(nearest.folder) if nearest is not None else ""
    if isinstance(judged, Hit):
        text = "it is copied to the graph folder and verified first" if judged.source is not None else ""
        return Finding(component, "hit", request.label, "", text, folder, fields)
    reason: Reason = judged.reason
    failed = registry().compiles.failures.why_not(request)
    waits = failed.reason if failed is not None else request.backend.can_compile(request.device).reason
    if isinstance(judged, Miss) and waits is None:
        return Finding(component, "miss", request.label, reason.code, reason.text, folder, fields)
    why: Reason = waits or reason
    return Finding(component, "refused", request.label, why.code, why.text, folder, fields)


def _fields(wanted: dict[str, Any], nearest: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """The fields of a key beside those of the nearest graph; those of the target one by one."""
    rows = []
    for name, value in wanted.items():
        nearest_value = nearest.get(name)
        if name == "target" and isinstance(value, dict):
            other = nearest_value if isinstance(nearest_value, dict) else {}
            names = sorted({*value, *other})
            rows += [(f"target.{one}", value.get(one), other.get(one)) for one in names]
        else:
            rows.append((name, value, nearest_value))
    return tuple({"field": n, "wanted": w, "found": f, "equal": bool(nearest) and w == f} for n, w, f in rows)


def main() -> None:
    task = ExplainTask(**json.loads(sys.argv[1]))
    boot(Path(task.comfyui), task.cpu, task.custom_node)
    sys.stdout.write(json.dumps([asdict(one) for one in explain(task)]) + "\n")


if __name__ == "__main__":
    main()
