"""What OneDiff's nodes did and these do not do."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Reason


@dataclass(frozen=True)
class NodeOfOneDiff(Reason):
    code = "node_of_onediff"
    node: str
    now: str = ""


@dataclass(frozen=True)
class NothingQuantized(Reason):
    code = "nothing_quantized"


@dataclass(frozen=True)
class NoStepSkipped(Reason):
    code = "no_step_skipped"


@dataclass(frozen=True)
class OwnCompilerOptions(Reason):
    code = "own_compiler_options"


@dataclass(frozen=True)
class GraphsByThemselves(Reason):
    code = "graphs_by_themselves"


@dataclass(frozen=True)
class OneGraphServesAll(Reason):
    code = "one_graph_serves_all"
    what: str


@dataclass(frozen=True)
class NodeIdTaken(Reason):
    code = "node_id_taken"
    node: str
