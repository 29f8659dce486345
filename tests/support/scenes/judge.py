"""The judgement of every scene: as many calls compiled as promised, the others eager with the reason, and all exact."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch

if TYPE_CHECKING:
    from headless import server

Promise = Literal["all", "some", "none"]
FURTHEST = 1e-5  # relative L2 of latents whose blocks are compiled; blocks differ by some 1e-7
SAME = 1e-4  # relative L2 of outputs of a model that others change
OTHER = 3e-4  # a change that changes less shows nothing
LEAST_EFFECT = 5e-4  # relative L2 by which a change shows
MOST_APART = 1  # of 255, of such latents
MOST_OF_255 = 2  # of two images


def distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The relative L2 of two results; of other shapes 1."""
    from onegraph.runtime.graphs.faithfulness import relative_l2

    return relative_l2(found, wanted) if found.shape == wanted.shape else 1.0


def _by_prefix(outcome: server.Outcome) -> list[Any]:
    """The images by where they were saved, as nodes may run in another order; of one prefix in theirs."""
    order = sorted(range(len(outcome.files)), key=lambda n: (outcome.files[n].partition("_")[0], n))
    return [outcome.images[n] for n in order]


def difference(a: torch.Tensor, b: torch.Tensor) -> int:
    """The largest difference of two latents as pixels: six standard deviations are 255. Of other sizes 255."""
    if a.shape != b.shape or not bool(torch.isfinite(a).all() and torch.isfinite(b).all()):
        return 255
    return int(((a - b).abs().max() / (6 * b.std()) * 255).round())


def apart(a: server.Outcome, b: server.Outcome) -> int:
    """The largest difference of two results' images, of 255; images of another shape or number differ by 255."""
    first, second = _by_prefix(a), _by_prefix(b)
    if [x.shape for x in first] != [y.shape for y in second] or not first:
        return 255
    return max(int(abs(x.astype(int) - y).max()) for x, y in zip(first, second, strict=True))


def eager(*codes: str) -> dict[str, Any]:
    """Promise no compiled call, and that the reasons have these codes."""
    return {"promised": "none", "codes": codes}


def partly(*codes: str) -> dict[str, Any]:
    """Promise that some calls run compiled, and that the reasons for the others have these codes."""
    return {"promised": "some", "codes": codes}


def broken(
    promised: Promise, codes: Sequence[str], compiled: int, uncompiled: int, reasons: Sequence[str]
) -> Iterator[str]:
    """How calls ran otherwise than promised.

    Args:
        codes: of the reasons for eager calls, all of them, as promised.
        reasons: the same as they were told.
    """
    if sorted(codes) != [*reasons]:
        yield f"eager calls by {reasons}, expected {sorted(codes)}"
    if promised != "none" and not compiled:
        yield "no call ran compiled"
    if promised == "all" and uncompiled:
        yield f"{uncompiled} calls ran eager"
    if promised == "some" and not uncompiled:
        yield "every call ran compiled"
    if promised == "none" and compiled:
        yield f"{compiled} calls ran compiled"


def since(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[int, int]:
    """Calls of a server between two of its reports: compiled, eager."""
    return after["compiled_calls"] - before["compiled_calls"], after["eager_calls"] - before["eager_calls"]
