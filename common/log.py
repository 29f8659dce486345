"""The pack's log: every line tells by its beginning whose it is, since ComfyUI's log has no names of loggers."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from typing_extensions import override

PREFIX = "OneGraph: "

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter


class _Prefixed(_Adapter):
    @override
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"{PREFIX}{msg}", kwargs


def logger(name: str) -> logging.LoggerAdapter[logging.Logger]:
    """Return the logger of a package, by its name below `onegraph`."""
    return _Prefixed(logging.getLogger(f"onegraph.{name}"), {})
