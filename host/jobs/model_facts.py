"""What is told of a sampled model without loading it: its family, formats and LoRAs, and whether graphs are here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...common.errors import in_brief
from ...common.log import logger
from ...runtime.calls.requests import COMPONENT as BLOCK
from ..weights import weightless
from .explain import Finding, model_findings
from .sampled_models import SampledModel

log = logger("host")

# hit: graphs are here; miss: one would be compiled; refused: it runs uncompiled; recorded: blocks whose calls a run
# records first; unknown: only a run tells.
Verdict = Literal["hit", "miss", "refused", "recorded", "unknown"]
_NOT_HIT: tuple[Verdict, ...] = ("miss", "refused", "recorded", "unknown")


@dataclass(frozen=True)
class ModelFacts:
    """What is told of a model that a workflow samples.

    Attributes:
        node, type: of its loader.
        family: the host's class of models; empty: not known.
        formats: of its weights.
        graphs: how many graphs for it are here.
        text: a sentence about the verdict.
    """

    node: str
    type: str
    file: str
    family: str
    formats: tuple[str, ...]
    loras: tuple[str, ...]
    verdict: Verdict
    graphs: int
    text: str


def facts(model: SampledModel) -> ModelFacts:
    """Tell of a model what its file's header and the cached graphs do. Never raises; nothing is loaded or written."""
    import folder_paths

    full_path = folder_paths.get_full_path(model.folder, model.file) if model.file else None
    if full_path is None:
        missing = f"{model.file} is not in this ComfyUI's model folders, so its family is not known"
        return _facts(model, "unknown", missing if model.file else f"{model.type} names no file of a model")
    path = Path(full_path)
    family, formats = "", tuple[str, ...]()
    try:
        if path.suffix.lower() == ".gguf":
            family, formats = weightless.gguf_architecture(path), ("gguf",)
            return _facts(model, "unknown", "graphs for GGUF files are known once the model is loaded", family, formats)
        header = weightless.read_header(path)
        formats = header.formats()
        patcher = weightless.load(header, model.folder == "checkpoints")
        if patcher is None:
            return _facts(model, "unknown", f"this ComfyUI does not know the model of {path.name}", "", formats)
        family = type(patcher.model.model_config).__name__
        unclear = _unclear(model)
        if unclear is not None:
            return _facts(model, *unclear, family, formats)
        return _judged(model, family, formats, [*model_findings(patcher, path, model.backend)])
    except weightless.HeaderError as error:
        return _facts(model, "unknown", str(error), family, formats)
    except Exception as error:  # of the host's loaders, and of files that are replaced meanwhile
        log.debug("%s is not known without being loaded", path, exc_info=True)
        return _facts(model, "unknown", f"only a run tells ({in_brief(error)})", family, formats)


def _unclear(model: SampledModel) -> tuple[Verdict, str] | None:
    """What is told of a model's graphs by the workflow already."""
    if not model.backend:
        return "refused", "no node of OneGraph is between its loader and the sampler"
    if model.backend == "off":
        return "refused", "the backend of its node is off"
    if not model.any_size:
        return "unknown", "its node asks for exact shapes, and a run tells which"
    if not model.as_in_file:
        return "unknown", f"{model.type} changes what the file holds, and a run tells how"
    return None


def _judged(model: SampledModel, family: str, formats: tuple[str, ...], findings: Sequence[Finding]) -> ModelFacts:
    if not findings:
        return _facts(model, "unknown", "only a run tells which graphs it needs", family, formats)
    hits = sum(one.verdict == "hit" for one in findings)
    others = [one for one in findings if one.verdict != "hit"]
    if not others:
        text = "a run may need graphs of other calls of its blocks, too" if findings[0].component == BLOCK else ""
        return _facts(model, "hit", text, family, formats, hits)
    first = others[0]
    verdict = next(one for one in _NOT_HIT if one in (first.verdict, "unknown"))
    return _facts(model, verdict, first.text, family, formats, hits)


def _facts(
    model: SampledModel, verdict: Verdict, text: str, family: str = "", formats: tuple[str, ...] = (), graphs: int = 0
) -> ModelFacts:
    return ModelFacts(
        node=model.node, type=model.type, file=model.file, family=family, formats=formats, loras=model.loras,
        verdict=verdict, graphs=graphs, text=text,
    )  # fmt: skip
