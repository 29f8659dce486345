"""Whether a compile may start: its memory on a GPU beside the host's.

A compile on a GPU takes a CUDA context for each of its processes and, in the first of them, the activations of one
call; of the weights it holds no copy (`compiler.skeleton`). On the CPU none of this applies: pages there are swapped or
dropped, and a compiler's own memory is small beside a model's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from ..common import memory, reasons
from ..common.refused import Refused
from ..compiler.process.supervisor import limit_seconds
from ..signature.declared import ShapeRange

CONTEXT_BYTES = int(1.1 * 2**30)  # of one process: 0.6 GiB for the context alone, 1.1 with cuBLAS and cuDNN
CAPTURED_TWICE = 2  # a captured call keeps its activations from the direct one


@dataclass(frozen=True)
class Limits:
    """What a registry goes by when it compiles.

    Attributes:
        seconds: a compile may take in all; 0 is no limit.
        poll_seconds: between two checks whether a deferred compile may start.
        applies: whether memory on a device is checked before a compile.
        free: bytes on a device that a compile could take.
        total: bytes that a device has.
    """

    seconds: float = field(default_factory=limit_seconds)
    poll_seconds: float = 2.0
    applies: Callable[[torch.device], bool] = lambda device: device.type == "cuda"
    free: Callable[[torch.device], int] = memory.unused_bytes
    total: Callable[[torch.device], int] = memory.total_bytes


def calls_bytes(shapes: ShapeRange, example_sizes: Mapping[str, int], module: torch.nn.Module) -> int:
    """Roughly the activations of a compile's trial calls at the example sizes, in bytes.

    Two tensors of the module's widest layer at the input's resolution, for the finished graph is called once and
    captured once: such a layer's result is the largest value of a UNet. For a module that works at a higher resolution
    than its input's, a VAE's decoder for one, that is far too low: the host knows better (`Request.call_bytes`).
    """
    if not shapes.inputs:
        return 0
    sizes = [
        d
        if isinstance(d, int)
        else max(shapes.dim(d).low, min(example_sizes.get(d, shapes.dim(d).low), shapes.dim(d).high))
        for d in shapes.inputs[0].dims
    ]
    elements = math.prod(sizes[:1] + sizes[2:])  # of one channel
    widest = max((p.shape[0] for p in module.parameters() if p.ndim > 1), default=1)
    return CAPTURED_TWICE * elements * widest * int(getattr(torch, shapes.inputs[0].dtype).itemsize)


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes on a device.

    Attributes:
        calls: of the activations in the first compiling process.
        planned: of the host meanwhile.
        workers: how many further processes would make the compile faster.
        context: of each process.
    """

    calls: int
    planned: int
    workers: int
    context: int = CONTEXT_BYTES

    @property
    def least(self) -> int:
        """What the compile takes without further workers."""
        return self.context + self.calls


@dataclass(frozen=True)
class Fits:
    """A compile may start, with that many further workers."""

    workers: int


@dataclass(frozen=True)
class TooLittle:
    """A compile may not start: so many bytes are missing."""

    missing: int
    refused: Refused


def admit(need: MemoryNeed, free: int) -> Fits | TooLittle:
    """Whether a compile fits into the free bytes beside what the host planned, with as many further workers as do."""
    left = free - need.planned - need.least
    if left >= 0:
        return Fits(min(need.workers, left // need.context))
    return TooLittle(-left, Refused(reasons.CompileDoesNotFit(need.least, need.planned, max(free, 0))))
