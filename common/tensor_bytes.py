"""What a tensor holds, as bytes."""

from __future__ import annotations

import torch


def bytes_of(tensor: torch.Tensor) -> bytes:
    """Return a tensor's values. Waits for its device.

    Of a copy: torch lets nobody resize memory that numpy has seen, and packs that free weights resize theirs.
    """
    copied = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    read: bytes = copied.reshape(-1).view(torch.uint8).numpy().tobytes()
    return read
