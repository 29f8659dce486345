"""GET /onegraph/badges: the badges of all nodes, for a page that was just opened."""

from __future__ import annotations

from ..show import badges
from .models import Badges, Nothing


def read(asked: Nothing) -> Badges:
    """GET badges."""
    return Badges(badges=badges.all_badges())
