"""What OneDiff's nodes did and these do not do."""

from __future__ import annotations

from .base import Reason


class NodeOfOneDiff(Reason):
    code = "node_of_onediff"
    node: str
    now: str = ""

    def clause(self) -> str:
        if not self.now:
            return f"{self.node} is a node of OneDiff's that has nothing left to do; take it out of the workflow"
        return f"{self.node} is a node of OneDiff's; put {self.now} in its place"


class NothingQuantized(Reason):
    sentence = "no weights are quantized: OneGraph computes in the model's own precision"


class NoStepSkipped(Reason):
    sentence = "DeepCache is not applied: every step is computed in full; ComfyUI's EasyCache skips steps"


class OwnCompilerOptions(Reason):
    sentence = "the compiler's options have no effect: OneGraph chooses them itself"


class GraphsByThemselves(Reason):
    sentence = (
        "no graph file is read or written here: graphs are stored beside the checkpoint and restored by themselves"
    )


class OneGraphServesAll(Reason):
    sentence = "nothing to do here: graphs are not bound to one {what}"
    what: str


class NodeIdTaken(Reason):
    sentence = "another custom node pack has a node {node}, which stays as it is"
    node: str
