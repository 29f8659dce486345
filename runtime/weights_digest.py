"""Which model is this, where no file tells? A digest of some of its weights, to name the folder of its graphs."""

from __future__ import annotations

import torch
from blake3 import blake3

_TENSORS = 16  # of which values are digested


def weights_digest(module: torch.nn.Module) -> str:
    """12 hex digits over names, shapes and dtypes of all weights and the values of a few."""
    h = blake3()
    state = module.state_dict()
    for name, tensor in state.items():
        h.update(f"{name} {list(tensor.shape)} {tensor.dtype}\n".encode())
    step = max(1, len(state) // _TENSORS)
    for name in list(state)[::step]:
        sample = state[name].detach().flatten()[:256].float().cpu().contiguous()
        h.update(sample.numpy().tobytes())
    return h.hexdigest(length=6)
