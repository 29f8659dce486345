"""Is a compiled result right? Relative L2 and finiteness against eager, by dtype."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ...common import reasons
from ...common.outputs import Output, tensors_of
from ...common.reasons import Reason

# Bounds on relative L2 against eager. Measured: float32 on the CPU 3e-6, float16 SDXL on an H100 2.1e-3,
# bfloat16 VAE 4.5e-2. float32 leaves room for TF32; a wrong constant, stale weight or wrong stride is above 0.1.
BOUNDS = {torch.float64: 1e-9, torch.float32: 2e-3, torch.float16: 2e-2, torch.bfloat16: 8e-2}

# Of quantised graphs, against the exact result: eager's distance varies by some percent with which values lie close to
# a step. Beside it the result is rounded once more, where eager happens to be exact (float32: another order of sums).
NEARNESS = 1.25
ROUNDING = {torch.float32: 1e-5, torch.float16: 2**-10, torch.bfloat16: 2**-7}
_AS_A_PART = 2.0  # times its part's distance from eager: a call has other tokens than its part
_PIECE = 2**20  # elements


@dataclass(frozen=True)
class Faithful:
    """The compiled result equals eager's within the bound of its dtype.

    Attributes:
        telling: whether most of eager's values are finite, so that something was compared.
        eagers: of a quantised graph, eager's distance from the exact result, of each tensor.
        inexact: why a quantised graph was compared with eager alone, or None.
    """

    rel_l2: float
    telling: bool = True
    inexact: Reason | None = None
    eagers: tuple[float, ...] = ()


@dataclass(frozen=True)
class Unfaithful:
    """It does not."""

    reason: Reason
    rel_l2: float


def relative_l2(result: torch.Tensor, reference: torch.Tensor) -> float:
    """||result - reference|| / ||reference|| in float64 (0 when both are zero); not finite where a value is not."""
    device = reference.device if result.device.type == "cpu" else result.device  # one of them may be parked
    squares = torch.zeros(2, dtype=torch.float64, device=device)
    # Piece by piece: whole copies in float64 of a video's tokens took more memory than the block that made them.
    pieces = (tensor.detach().reshape(-1).split(_PIECE) for tensor in (result, reference))
    for a, b in zip(*pieces, strict=True):
        wanted = b.to(device).double()
        squares += torch.stack([(a.to(device).double() - wanted).square_().sum(), wanted.square().sum()])
    difference, norm = squares.sqrt().tolist()
    return float(difference / norm if norm > 0 else difference)


def compare(result: Output, reference: Output, judged: Faithful | None = None) -> Faithful | Unfaithful:
    """Judge a compiled `result` against eager's `reference` for the same inputs: each tensor by itself.

    Args:
        judged: of a quantised graph, what the exact result of a part of the call showed. Two right results of all of it
            are about as far from each other, whatever the dtype; or as far as eager is from the exact one, where by
            chance the part has no value so close to a step that one of them quantised it to the next.

    Returns:
        The worst of them, or the first one that is wrong.
    """
    results, wanted = tensors_of(result), tensors_of(reference)
    if len(results) != len(wanted):
        return Unfaithful(reasons.OtherResult(f"{len(results)} tensors", f"{len(wanted)} tensors"), float("inf"))
    worst, telling = Faithful(0.0), True
    of_part, eagers = (0.0, ()) if judged is None else (_AS_A_PART * judged.rel_l2, judged.eagers)
    for found, right, own in zip(results, wanted, eagers or [0.0] * len(wanted), strict=True):
        verdict = _compare(found, right, least=max(of_part, own))
        if isinstance(verdict, Unfaithful):
            return verdict
        worst, telling = max(worst, verdict, key=lambda one: one.rel_l2), telling and verdict.telling
    return Faithful(worst.rel_l2, telling, None if judged is None else judged.inexact)


def compare_quantised(result: Output, reference: Output, exact: Output) -> Faithful | Unfaithful:
    """Judge a graph of quantised weights: it is right when it is as near to the exact result as eager is.

    A quantiser makes a last bit of its input a step of its own size, and compiled code rounds less often than eager.
    So two right results differ from each other by up to what each differs from the exact one, whatever the dtype; one
    computed with a wrong scale or a stale weight is further from it than eager.

    Args:
        exact: in float32, of weights that were dequantised and inputs that nobody quantised.

    Returns:
        The worst tensor's distance to eager, or the first that is wrong.
    """
    results, wanted, right = tensors_of(result), tensors_of(reference), tensors_of(exact)
    same = len(results) == len(wanted) == len(right) and all(
        a.shape == b.shape == c.shape and a.dtype == b.dtype for a, b, c in zip(results, wanted, right, strict=True)
    )
    if not same:
        return compare(result, reference)
    worst, own = 0.0, list[float]()
    for a, b, c in zip(results, wanted, right, strict=True):
        graphs, eagers = relative_l2(a, c), relative_l2(b, c)
        if not math.isfinite(graphs + eagers):
            return compare(result, reference)
        bound = NEARNESS * eagers + ROUNDING.get(b.dtype, 0.0)
        if graphs > bound:
            return Unfaithful(reasons.TooFarFromExact(graphs, eagers), relative_l2(a, b))
        worst = max(worst, relative_l2(a, b))
        own.append(eagers)
    return Faithful(worst, eagers=tuple(own))


def _compare(result: torch.Tensor, reference: torch.Tensor, least: float) -> Faithful | Unfaithful:
    """`least`: relative L2 that is right in any dtype."""
    if result.shape != reference.shape or result.dtype != reference.dtype:
        return Unfaithful(
            reasons.OtherResult(f"{list(result.shape)} {result.dtype}", f"{list(reference.shape)} {reference.dtype}"),
            float("inf"),
        )
    rel = relative_l2(result, reference)
    bound = max(BOUNDS.get(reference.dtype, 0.0), least)
    if rel <= bound:
        return Faithful(rel)
    if math.isfinite(rel):
        return Unfaithful(reasons.TooFarFromEager(rel, bound), rel)
    result = result.to(reference.device)
    finite, wanted = torch.isfinite(result), torch.isfinite(reference)
    if bool(wanted.all()):
        return Unfaithful(reasons.NotFinite(), float("inf"))
    # Eager itself overflows: the graph is right when it does so at the same places.
    same = bool((finite == wanted).all())
    mask = finite & wanted
    rel = relative_l2(result[mask], reference[mask]) if bool(mask.any()) else 0.0
    if same and rel <= bound:
        return Faithful(rel, telling=2 * int(mask.sum()) >= mask.numel())
    return Unfaithful(reasons.EagerNotFinite(), rel)
