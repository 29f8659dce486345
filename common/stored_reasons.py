"""Reasons as JSON, for files in which a later process finds them."""

from __future__ import annotations

import functools
from typing import Any

from pydantic import TypeAdapter

from . import reasons
from .reasons import Reason


def to_json(reason: Reason) -> dict[str, Any]:
    """Return a reason's code and facts.

    >>> to_json(reasons.LowVram()), to_json(reasons.NotSaved("no room", "full"))
    ({'code': 'low_vram'}, {'code': 'not_saved', 'detail': 'no room', 'fault': 'full'})
    """
    facts = {name: to_json(fact) if isinstance(fact, Reason) else fact for name, fact in vars(reason).items()}
    return {"code": reason.code, **facts}


def from_json(data: Any) -> Reason:
    """Read what `to_json` made, also after a way through JSON.

    Raises:
        ValueError: it is no reason that this version of the pack knows.
    """
    reason_class = (
        _classes().get(data["code"]) if isinstance(data, dict) and isinstance(data.get("code"), str) else None
    )
    if reason_class is None:
        raise ValueError("no reason")
    try:
        facts = {name: from_json(fact) if isinstance(fact, dict) else fact for name, fact in data.items()}
        reason: Reason = TypeAdapter(reason_class).validate_python(facts)
        return reason
    except (TypeError, RecursionError) as error:
        raise ValueError("no reason") from error


def sentence(data: Any) -> str:
    """Return the sentence of a stored reason, also of one that this version of the pack does not know."""
    try:
        return from_json(data).text
    except ValueError:
        return "of another version of OneGraph"


@functools.cache
def _classes() -> dict[str, type[Reason]]:
    return {cls.code: cls for cls in reasons.classes()}
