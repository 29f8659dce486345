"""Why a block of a model runs eager."""

from __future__ import annotations

from .base import Reason


class BlockRecorded(Reason):
    sentence = "the first call, by which graphs are compiled for its blocks"


class BlockReplaced(Reason):
    """Somebody replaced a block's own forward.

    Attributes:
        source: the custom node that it comes from; empty where nobody can tell.
    """

    sentence = "the forward of block {block} was replaced{source:()}"
    block: str
    source: str = ""


class BlockArgument(Reason):
    sentence = "a block is given {type}, which no graph takes"
    type: str


class BlockOption(Reason):
    """An option of the call is another than the graph was compiled for.

    Attributes:
        path: of keys in the model's options, with dots.
    """

    sentence = "the call has {path}, which changes what blocks compute"
    path: str


class BlockChanged(Reason):
    sentence = "block {block} was changed after this sampling began, and DynamicVRAM brings weights for what it was"
    block: str


class BlockSizes(Reason):
    sentence = "block graphs were not compiled for these sizes ({kind})"
    kind: str


class BlockShared(Reason):
    sentence = "a block changes a tensor that it is given twice ({kind})"
    kind: str


class BlockSmall(Reason):
    sentence = "{detail}"
    detail: str


class BlockInPieces(Reason):
    sentence = "frames of this size are computed in pieces, as many as fit into what this VAE may take at once"


class BlockWrites(Reason):
    sentence = "a block writes into a list, a dictionary or an object that it is given ({kind})"
    kind: str


class BlockElsewhere(Reason):
    sentence = "a block is given tensors on {device} ({kind})"
    kind: str
    device: str


class TooManyKinds(Reason):
    sentence = "its blocks are called in more than {most} ways, which is as many as are compiled"
    most: int


class BlocksNotCalled(Reason):
    sentence = "the model calls its blocks by other methods than forward, which no graph replaces"


class OuterReplaced(Reason):
    sentence = "the forward of {model} was replaced, so that its calls cannot be repeated for a compile"
    model: str


class MemoryPlanned(Reason):
    """ComfyUI records what a call allocates, to give it the same memory again (its model compiler)."""

    sentence = "ComfyUI plans the memory of this call (--disable-comfy-compiler turns that off)"


class CallCaptured(Reason):
    sentence = "the call is captured as a CUDA graph, outside of which no check of a block graph would be made"


class ChosenAttention(Reason):
    """The user chose an attention, and no graph of this process can call it.

    Attributes:
        name: of the function, e.g. `attention_sage`.
    """

    sentence = "{name} is in use, which block graphs do not replace"
    name: str


class AttentionCallsModel(Reason):
    sentence = "the attention function that a block calls runs a model itself ({kind})"
    kind: str


class AttentionResult(Reason):
    """The attention function that the user chose returned something else than torch's does.

    Attributes:
        found: what it returned, e.g. `[1, 64, 128] float16 on cpu`.
        kind: of block.
    """

    sentence = "the attention in use returns {found}, which no graph takes ({kind})"
    found: str
    kind: str
