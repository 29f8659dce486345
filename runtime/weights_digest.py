"""Which model is this, where no file tells? A digest of some of its weights, to name the folder of its graphs."""

from __future__ import annotations

import torch
from blake3 import blake3

from ..common.tensor_bytes import bytes_of

_TENSORS = 16  # of which values are digested


def weights_digest(module: torch.nn.Module) -> str:
    """12 hex digits over names, shapes and dtypes of all weights and the values of a few.

    Weights of libraries count with the tensors in them, and without values where these cannot be read. Never raises for
    a weight's sake.
    """
    h = blake3()
    state = module.state_dict()
    for name, tensor in state.items():
        h.update(f"{name} {list(tensor.shape)} {tensor.dtype}\n".encode())
    step = max(1, len(state) // _TENSORS)
    for name in list(state)[::step]:
        h.update(_sample(state[name]))
    return h.hexdigest(length=6)


def _sample(tensor: torch.Tensor) -> bytes:
    """The first values of a tensor, or of those that it consists of."""
    try:
        if hasattr(tensor, "__tensor_flatten__"):  # torch's protocol for tensors that are made of others
            return b"".join(_sample(getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0])
        return bytes_of(tensor.detach().flatten()[:256].float())
    except Exception:  # of whatever class: one may unpack its values at each use alone, or have none on this device
        return b""
