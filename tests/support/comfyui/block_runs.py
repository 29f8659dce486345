"""Runs of a MODEL whose blocks are compiled, and what they report."""

from __future__ import annotations

from typing import Any

import torch

NODE = "7"


def compiled(model: Any) -> Any:
    """The MODEL as the node gives it."""
    from onegraph.host.calls import model_hook

    return model_hook.compile_model(model, model_hook.ModelNodeOptions(backend="inductor"), NODE)[0]


def blocks() -> dict[str, Any]:
    """What the last run says of its blocks."""
    from onegraph.host.show import status

    found: dict[str, Any] = status.last_runs[NODE].to_json()["blocks"]
    return found


def distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Relative L2."""
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())
