"""GET /onegraph/badges: the badges of all nodes, for a page that was just opened."""

from __future__ import annotations

from .. import badges
from .models import Badges, Nothing


def read(asked: Nothing) -> Badges:
    """GET badges."""
    nodes = badges.all_badges()
    return Badges(nodes=nodes, prompts={node: prompt for node in nodes if (prompt := badges.prompt_of(node))})
