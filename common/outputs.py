"""What a component returns: one tensor, or several in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

Output = torch.Tensor | tuple[torch.Tensor, ...]


def tensors_of(output: Output) -> tuple[torch.Tensor, ...]:
    """Return the tensors of an output in order."""
    return (output,) if isinstance(output, torch.Tensor) else output


def output_of(tensors: Sequence[torch.Tensor]) -> Output:
    """Return an output of these tensors: one of them alone stands for itself."""
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def is_finite(output: Output) -> bool:
    """Tell whether all values of an output are finite."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors_of(output))


def mapped(function: Callable[..., torch.Tensor], *outputs: Output) -> Output:
    """Call a function with the first tensors of all outputs, with the second ones, and so on; what it returns.

    Raises:
        ValueError: the outputs have different numbers of tensors.
    """
    return output_of([function(*tensors) for tensors in zip(*map(tensors_of, outputs), strict=True)])
