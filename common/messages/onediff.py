"""Sentences: what OneDiff's nodes did and these do not do."""

from __future__ import annotations

from .. import reasons
from .base import text


@text.register
def _(r: reasons.NodeOfOneDiff) -> str:
    if not r.now:
        return f"{r.node} is a node of OneDiff's that has nothing left to do; take it out of the workflow"
    return f"{r.node} is a node of OneDiff's; put {r.now} in its place"


@text.register
def _(r: reasons.NothingQuantized) -> str:
    return "no weights are quantized: OneGraph computes in the model's own precision"


@text.register
def _(r: reasons.NoStepSkipped) -> str:
    return "DeepCache is not applied: every step is computed in full; ComfyUI's EasyCache skips steps"


@text.register
def _(r: reasons.OwnCompilerOptions) -> str:
    return "the compiler's options have no effect: OneGraph chooses them itself"


@text.register
def _(r: reasons.GraphsByThemselves) -> str:
    return "no graph file is read or written here: graphs are stored beside the checkpoint and restored by themselves"


@text.register
def _(r: reasons.OneGraphServesAll) -> str:
    return f"nothing to do here: graphs are not bound to one {r.what}"


@text.register
def _(r: reasons.NodeIdTaken) -> str:
    return f"another custom node pack has a node {r.node}, which stays as it is"
