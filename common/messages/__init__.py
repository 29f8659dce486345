"""Reasons as the sentences that users read: the only place that turns one into the other."""

from . import calls, compiling, graphs, onediff, pipelines, server, sharing, store, workflow  # noqa: F401 they register their sentences
from .base import text
from .store import damage

__all__ = ["damage", "text"]
