"""What a thread has turned on around a call that no graph follows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from ...common import reasons
from ...common.reasons import Reason
from ...common.torch_private import modes_in_effect


def refusal(module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> Reason | None:
    """What a thread has turned on around this call that changes eager operations and that no graph follows, or None."""
    tensors = itertools.chain(inputs, module.parameters())
    differentiates = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    if differentiates and any(tensor.requires_grad for tensor in tensors):
        return reasons.Gradients()
    if torch.is_autocast_enabled(inputs[0].device.type):
        return reasons.Autocast()
    if modes_in_effect():
        return reasons.DispatchMode()
    return None
