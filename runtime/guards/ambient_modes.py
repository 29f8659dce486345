"""What a thread has turned on around a call that no graph follows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ...common import reasons
from ...common.reasons import Reason
from ...common.tensor_meta import dtype_name
from ...common.torch_private import is_any_autocast_enabled, modes_in_effect


def refusal(module: torch.nn.Module, inputs: Iterable[Any]) -> Reason | None:
    """What a thread has turned on around this call that changes eager operations and that no graph follows, or None.

    Args:
        inputs: of the call, those that are tensors at least.
    """
    default = torch.get_default_dtype()
    differentiates = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    if not (differentiates or default is not torch.float32 or is_any_autocast_enabled() or modes_in_effect()):
        return None
    tensors = [one for one in inputs if isinstance(one, torch.Tensor)]
    if not tensors:
        return None
    if differentiates and any(tensor.requires_grad for tensor in (*tensors, *module.parameters())):
        return reasons.Gradients()
    if torch.is_autocast_enabled(tensors[0].device.type):
        return reasons.Autocast()
    if default is not torch.float32:  # of tensors that a model makes, and of what divides whole numbers
        return reasons.DefaultDtype(dtype_name(default))
    return reasons.DispatchMode() if modes_in_effect() else None
