"""Reasons as JSON, for files in which a later process finds them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter

from . import reasons
from .reasons import Reason


def to_json(reason: Reason) -> dict[str, Any]:
    """Return a reason's code and facts."""
    facts = {field.name: getattr(reason, field.name) for field in dataclasses.fields(reason)}
    return {"code": reason.code} | {
        name: to_json(fact) if isinstance(fact, Reason) else fact for name, fact in facts.items()
    }


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


@functools.cache
def _classes() -> dict[str, type[Reason]]:
    return {cls.code: cls for cls in _below(reasons.Reason) if dataclasses.is_dataclass(cls) and hasattr(cls, "code")}


def _below(cls: type[Reason]) -> Iterator[type[Reason]]:
    for child in cls.__subclasses__():
        yield child
        yield from _below(child)
