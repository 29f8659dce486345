"""Which file does this model come from? ComfyUI's record, else the workflow's loader, else a fingerprint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...common.log import logger
from ...graph_cache.model_hash import ModelSource, hash_file
from ...runtime.weights_digest import weights_digest
from .comfyui_nodes import comfyui_nodes

log = logger("host")

# Loader inputs that name a model file, and ComfyUI's folder for it.
_LOADER_INPUTS = {
    "ckpt_name": "checkpoints",
    "unet_name": "diffusion_models",
    "vae_name": "vae",
    "model_name": "diffusion_models",
}
_FARTHEST = 100  # nodes to walk upstream before giving up


def recorded_path(patcher: Any) -> Path | None:
    """The file ComfyUI records for a patcher: `cached_patcher_init`, semi-private and absent in older versions."""
    record = getattr(patcher, "cached_patcher_init", None)
    if not isinstance(record, tuple) or len(record) < 2 or not isinstance(record[1], tuple) or not record[1]:
        return None
    first = record[1][0]
    return Path(first) if isinstance(first, str) and Path(first).is_file() else None


def workflow_path(
    dynprompt: Any, node_id: str | None, loader_inputs: Mapping[str, str] = _LOADER_INPUTS
) -> Path | None:
    """The file named by the nearest loader upstream of `node_id` in the running workflow.

    Args:
        loader_inputs: inputs of loaders that name a file, and ComfyUI's folder for it.
    """
    if dynprompt is None or node_id is None:
        return None
    import folder_paths

    queue, seen = [str(node_id)], set[str]()
    while queue and len(seen) < _FARTHEST:
        current = queue.pop(0)
        if current in seen:
            continue
        seen.add(current)
        try:
            inputs = dynprompt.get_node(current).get("inputs", {})
        except Exception:  # a node that expanded away: ComfyUI raises NodeNotFoundError, not part of its API
            continue
        for name, folder in loader_inputs.items():
            value = inputs.get(name)
            if isinstance(value, str):
                path = folder_paths.get_full_path(folder, value)
                if path:
                    return Path(path)
        links = [v for v in inputs.values() if isinstance(v, list) and len(v) == 2 and isinstance(v[0], str)]
        queue += [link[0] for link in links]
    return None


def has_controlnet(dynprompt: Any) -> bool:
    """Tell whether a node of the running workflow gives a CONTROL_NET."""
    try:
        registered = comfyui_nodes().NODE_CLASS_MAPPINGS
        types = {dynprompt.get_node(node)["class_type"] for node in dynprompt.all_node_ids()}
        classes = (registered.get(name) for name in types)
        return any("CONTROL_NET" in (getattr(cls, "RETURN_TYPES", None) or ()) for cls in classes)
    except Exception:  # of custom nodes and of a workflow that changes
        log.debug("the workflow could not be looked through", exc_info=True)
        return False


def source_of(
    patcher: Any,
    module: Any,
    dynprompt: Any = None,
    node_id: str | None = None,
    loader_inputs: Mapping[str, str] = _LOADER_INPUTS,
) -> ModelSource:
    """Where the graphs of `module` belong. Never raises: at worst they go to the user's folder by fingerprint."""
    for path in (recorded_path(patcher), workflow_path(dynprompt, node_id, loader_inputs)):
        if path is not None:
            try:
                return ModelSource(path, hash_file(path))
            except OSError as error:
                log.debug("cannot read %s: %s", path, error)
    try:
        return ModelSource(None, weights_digest(module))
    except Exception as error:  # whatever odd tensor a loader put there
        log.debug("no fingerprint: %s", error)
        return ModelSource(None, "unknown")


def model_folders(kinds: Sequence[str] = ("checkpoints", "diffusion_models")) -> tuple[Path, ...]:
    """ComfyUI's folders of these kinds of models: others there may have graphs of the same architecture."""
    import folder_paths

    folders: dict[Path, None] = {}
    for kind in kinds:
        roots = [Path(root) for root in folder_paths.get_folder_paths(kind)]
        below = {Path(name).parent for name in folder_paths.get_filename_list(kind)}  # listed once, kept by ComfyUI
        folders |= dict.fromkeys(root / folder for folder in [Path(), *sorted(below)] for root in roots)
    return tuple(folders)
