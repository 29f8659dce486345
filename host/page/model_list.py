"""GET /onegraph/models: which model files have graphs that can be used here. No file is read."""

from __future__ import annotations

from collections.abc import Sequence

from ...graph_cache.disk import report
from ...graph_cache.disk.listing import Listed, bytes_on_disk
from . import model_files
from .graphs import all_graphs
from .models import ModelFile, ModelFiles, ModelState, NoFields


def list_models(fields: NoFields) -> ModelFiles:
    """GET models."""
    graphs = model_files.by_checkpoint(all_graphs())
    return ModelFiles(models=[_judge(file, graphs.get(file.beside, ())) for file in model_files.files()])


def _judge(file: model_files.HostFile, graphs: Sequence[Listed]) -> ModelFile:
    usable = [one for one in graphs if report.state_of(one) == "signed"]
    used = max(usable, key=lambda one: one.used, default=None)
    return ModelFile(
        name=file.name,
        folder=file.folder,
        state=_state(file, usable),
        graphs=len(usable),
        bytes=bytes_on_disk(usable),
        last_used=None if used is None else report.used_at(used),
    )


def _state(file: model_files.HostFile, usable: Sequence[Listed]) -> ModelState:
    """Whether a run finds graphs; `partly`: a checkpoint has those of its VAE alone."""
    if usable:
        of_model = file.folder == "vae" or any(not one.facts.component.startswith("vae_") for one in usable)
        return "ready" if of_model else "partly"
    return "would_compile"
