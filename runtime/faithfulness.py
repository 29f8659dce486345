"""Is a compiled result right? Relative L2 and finiteness against eager, by dtype."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..common import reasons
from ..common.outputs import Output, tensors_of
from ..common.reasons import Reason

# Bounds on relative L2 against eager. Measured: float32 on the CPU 3e-6, float16 SDXL on an H100 2.1e-3,
# bfloat16 VAE 4.5e-2. float32 leaves room for TF32; a wrong constant, stale weight or wrong stride is above 0.1.
BOUNDS = {torch.float64: 1e-9, torch.float32: 2e-3, torch.float16: 2e-2, torch.bfloat16: 8e-2}


@dataclass(frozen=True)
class Faithful:
    """The compiled result equals eager's within the bound of its dtype.

    Attributes:
        telling: whether most of eager's values are finite, so that something was compared.
    """

    rel_l2: float
    telling: bool = True


@dataclass(frozen=True)
class Unfaithful:
    """It does not."""

    reason: Reason
    rel_l2: float


def relative_l2(result: torch.Tensor, reference: torch.Tensor) -> float:
    """||result - reference|| / ||reference|| in float64 (0 when both are zero)."""
    a, b = result.detach().double(), reference.detach().double()
    norm = torch.linalg.vector_norm(b)
    difference = torch.linalg.vector_norm(a - b)
    return float(difference / norm) if norm > 0 else float(difference)


def compare(result: Output, reference: Output) -> Faithful | Unfaithful:
    """Judge a compiled `result` against eager's `reference` for the same inputs: each tensor by itself.

    Returns:
        The worst of them, or the first one that is wrong.
    """
    found, wanted = tensors_of(result), tensors_of(reference)
    if len(found) != len(wanted):
        return Unfaithful(reasons.OtherResult(f"{len(found)} tensors", f"{len(wanted)} tensors"), float("inf"))
    worst, telling = Faithful(0.0), True
    for tensors in zip(found, wanted, strict=True):
        verdict = _compare(*tensors)
        if isinstance(verdict, Unfaithful):
            return verdict
        worst, telling = max(worst, verdict, key=lambda one: one.rel_l2), telling and verdict.telling
    return Faithful(worst.rel_l2, telling)


def _compare(result: torch.Tensor, reference: torch.Tensor) -> Faithful | Unfaithful:
    if result.shape != reference.shape or result.dtype != reference.dtype:
        return Unfaithful(
            reasons.OtherResult(f"{list(result.shape)} {result.dtype}", f"{list(reference.shape)} {reference.dtype}"),
            float("inf"),
        )
    finite, wanted = torch.isfinite(result), torch.isfinite(reference)
    if not bool(wanted.all()):
        # Eager itself overflows: the graph is right when it does so at the same places.
        same = bool((finite == wanted).all())
        mask = finite & wanted
        rel = relative_l2(result[mask], reference[mask]) if bool(mask.any()) else 0.0
        if same and rel <= BOUNDS.get(reference.dtype, 0.0):
            return Faithful(rel, telling=2 * int(mask.sum()) >= mask.numel())
        return Unfaithful(reasons.EagerNotFinite(), rel)
    if not bool(finite.all()):
        return Unfaithful(reasons.NotFinite(), float("inf"))
    rel = relative_l2(result, reference)
    bound = BOUNDS.get(reference.dtype, 0.0)
    if rel > bound:
        return Unfaithful(reasons.TooFarFromEager(rel, bound), rel)
    return Faithful(rel)
