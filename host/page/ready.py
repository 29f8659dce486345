"""GET /onegraph/ready: whether the graphs of the warm-up list are restored."""

from __future__ import annotations

from .answers import WithStatus
from .models import Nothing, Readiness
from .warm_up import warm_up


def read(asked: Nothing) -> Readiness | WithStatus:
    """GET ready: 200 once they are, or without a list; 503 before."""
    left = warm_up.waiting_for()
    if not left:
        return Readiness(ready=True, waiting_for=[])
    return WithStatus(503, Readiness(ready=False, waiting_for=left))
