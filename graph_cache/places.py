"""Where a graph that others made goes: what its signed key says becomes names of folders only where it is plain."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import StringConstraints, ValidationError

from .key import GraphKey
from .layout import entry_name
from .manifest import Manifest, Strict

_Plain = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
_ENTRY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


class _Key(Strict):
    """The fields of a key whose values become names of folders."""

    component: _Plain
    architecture: str
    shapes: dict[str, Any]
    dtype: _Plain
    backend: _Plain
    target: dict[str, str]
    format: int


def valid_place(key: dict[str, Any], manifest: Manifest) -> tuple[GraphKey, str] | None:
    """Give a manifest's key and the name of its folder; None where they could lead elsewhere or are no key."""
    try:
        fields = _Key.model_validate(key).model_dump()
    except ValidationError:
        return None
    graph_key = GraphKey(**fields)
    name = entry_name(graph_key, manifest)
    return (graph_key, name) if _ENTRY_NAME.fullmatch(name) and graph_key.fields() == key else None
