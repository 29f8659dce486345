"""Blocks that keep what they compute in their Python module, and one that only imports and warns."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

from support.models import toy_blocks

LAST: Any = None
KEPT: dict[str, Any] = {"keys": {}}
OBJECT = SimpleNamespace(last=None)


class OnItsClass(toy_blocks.Single):
    calls = 0

    def forward(self, x: Any, vec: Any, start: Any = None, **kwargs: Any) -> Any:
        OnItsClass.calls += 1
        return super().forward(x, vec, start, **kwargs)


class InAGlobalName(toy_blocks.Single):
    def forward(self, x: Any, vec: Any, start: Any = None, **kwargs: Any) -> Any:
        global LAST
        LAST = super().forward(x, vec, start, **kwargs)
        return LAST


class InAGlobalDictionary(toy_blocks.Single):
    def forward(self, x: Any, vec: Any, start: Any = None, **kwargs: Any) -> Any:
        KEPT["keys"]["first"] = y = super().forward(x, vec, start, **kwargs)
        return y


class InAGlobalObject(toy_blocks.Single):
    def forward(self, x: Any, vec: Any, start: Any = None, **kwargs: Any) -> Any:
        OBJECT.last = super().forward(x, vec, start, **kwargs)
        return OBJECT.last


class Importing(toy_blocks.Single):
    """Writes nothing."""

    def forward(self, x: Any, vec: Any, start: Any = None, **kwargs: Any) -> Any:
        from support.models import toy_memory  # noqa: F401

        warnings.warn("seldom seen", stacklevel=1)
        return super().forward(x, vec, start, **kwargs)
