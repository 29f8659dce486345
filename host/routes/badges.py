"""GET /onegraph/badges: the badges of all nodes, for a page that was just opened."""

from __future__ import annotations

from .. import badges
from .models import Badges, Nothing


def read(asked: Nothing) -> Badges:
    """GET badges."""
    found = badges.all_badges()
    return Badges(
        nodes={node: badge for node, (_, badge) in found.items()},
        prompts={node: origin.prompt_id for node, (origin, _) in found.items() if origin.prompt_id},
        clients={node: origin.client_id for node, (origin, _) in found.items() if origin.client_id},
    )
