"""How much memory a job will hold for its life, and whether that much is free.

On CPU, OneFlow 0.9.0 gives every result its own memory and keeps it until its session ends: nothing is reused between
operations or calls. A decode of a 512x512 image by SD's VAE takes 38 GiB, so the sum is known before anything is
allocated. On CUDA, where memory is reused, the sum is an upper bound that nobody has measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...common.memory import in_words
from .library import Library

FreeMemory = Callable[[torch.device], int]
_PER_OPERATION = 110 * 1024  # of plan and actors: measured 90 to 177 KiB on small UNets and VAEs
_BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2}


def shortage(needed: int, free: int) -> str | None:
    """Return a sentence where `needed` bytes for a graph are more than are free, else None."""
    if needed <= free:
        return None
    return (
        f"OneFlow would hold {in_words(needed)} for this graph, {in_words(free)} are free; "
        "use a smaller size or the inductor backend."
    )


def estimate(library: Library, job: Any) -> int:
    """Estimate the bytes that a job's results and its operations' work space take, without the weights.

    Within 5 % of what ending OneFlow's session gives back (small SDXL UNet, KL and TAESD decoders).
    """
    blobs = job.helper.lbn2logical_blob_desc
    weights = set(library.job_tensors(job, "variable"))

    def size(name: str) -> int:
        blob, count = blobs[name], 1
        for length in blob.shape.dim:
            count *= length
        return count * _BYTES.get(library.dtype_name(blob.data_type), 1)

    held = sum(size(name) for name in blobs if name.partition("/")[0] not in weights)
    for op in job.net.op:
        held += _PER_OPERATION
        if not op.HasField("user_conf"):
            continue
        kind = op.user_conf.op_type_name
        if kind.startswith("conv"):
            held += _unfolded(op.user_conf, blobs, size)
        elif kind.startswith("reduce_"):  # works on a copy of its input
            held += size(op.user_conf.input["input_tensor"].s[0])
    return held


def _unfolded(conf: Any, blobs: Any, size: Callable[[str], int]) -> int:
    """Bytes of the columns that a convolution makes of one image of its input."""
    kernel = list(conf.attr["kernel_size"].at_list_int32.val)
    if all(k == 1 for k in kernel):
        return 0
    source, result = conf.input["in"].s[0], conf.output["out"].s[0]
    columns = blobs[source].shape.dim[1]
    for length in (*kernel, *blobs[result].shape.dim[2:]):
        columns *= length
    element = size(source)
    for length in blobs[source].shape.dim:
        element //= length
    return columns * element
