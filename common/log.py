"""The pack's log: every line tells by its beginning whose it is, since ComfyUI's log has no names of loggers."""

from __future__ import annotations

import logging
from typing import Any

from typing_extensions import override


class _Prefixed(logging.LoggerAdapter):
    @override
    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        return f"OneGraph: {msg}", kwargs


def logger(name: str) -> _Prefixed:
    """Return the logger of a package, by its name below `onegraph`."""
    return _Prefixed(logging.getLogger(f"onegraph.{name}"), {})
