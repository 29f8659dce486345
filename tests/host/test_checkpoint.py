"""Which file a model came from: ComfyUI's record, the workflow's loader, a fingerprint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from headless import host

from onegraph.graph_cache.model_hash import hash_file
from onegraph.host.comfyui import model_source as where


class Workflow:
    """ComfyUI's DynamicPrompt, as far as it is read."""

    def __init__(self, nodes: dict[str, Any]) -> None:
        self._nodes = nodes

    def get_node(self, node_id: str) -> Any:
        return self._nodes[node_id]


def test_comfyui_records_the_path(checkpoint: Callable[..., Path]) -> None:
    path = checkpoint()
    model = host.load(path)
    source = where.source_of(model.clone(), model.model.diffusion_model)
    assert (source.path, source.digest) == (path, hash_file(path))


def test_without_a_record_the_workflows_loader_tells(checkpoint: Callable[..., Path]) -> None:
    path = checkpoint()
    model = host.load(path)
    model.cached_patcher_init = None
    workflow = Workflow(
        {
            "1": {"inputs": {"ckpt_name": path.name}},
            "2": {"inputs": {"model": ["1", 0], "strength_model": 1.0}},
            "3": {"inputs": {"model": ["2", 0]}},
        }
    )
    assert where.source_of(model, model.model.diffusion_model, workflow, "3").path == path


def test_a_loop_or_a_missing_node_ends_the_search() -> None:
    workflow = Workflow({"1": {"inputs": {"a": ["2", 0], "b": ["9", 0]}}, "2": {"inputs": {"a": ["1", 0]}}})
    assert where.workflow_path(workflow, "1") is None


def test_without_a_path_a_weight_fingerprint_is_used(checkpoint: Callable[..., Path]) -> None:
    digests = []
    for seed in (1, 1, 2):
        model = host.load(checkpoint(seed=seed))
        model.cached_patcher_init = None
        source = where.source_of(model, model.model.diffusion_model)
        assert source.path is None
        digests.append(source.digest)
    assert digests[0] == digests[1] != digests[2]
    assert len(digests[0]) == 12
