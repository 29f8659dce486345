"""The stream on which a thread captures CUDA graphs."""

from __future__ import annotations

import threading

import torch

_streams = threading.local()


def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which this thread captures, always the same one.

    torch's cuBLAS keeps a workspace of 32 MiB for each stream that it was ever called on. The first call on it is
    a plain one, or the workspace would belong to the capture and never be given back.
    """
    streams = getattr(_streams, "by_device", None)
    if streams is None:
        streams = _streams.by_device = {}
    if device not in streams:
        side = torch.cuda.Stream(device)
        with torch.cuda.stream(side):
            _warm_up(device)
        side.synchronize()
        streams[device] = side
    side = streams[device]
    assert isinstance(side, torch.cuda.Stream)
    return side


def _warm_up(device: torch.device) -> None:
    """Have cuBLAS and cuBLASLt take their workspaces on the current stream."""
    for dtype in (torch.float16, torch.float32):
        one = torch.ones(64, 64, dtype=dtype, device=device)
        torch.mm(one, one)
        torch.addmm(one[0], one, one)
        torch.bmm(one[None], one[None])
