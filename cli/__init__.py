"""The `onegraph` command."""

from __future__ import annotations

import gc

_OBJECTS = 50_000  # that are made until garbage is looked for; lists of thousands of graphs have none


def main() -> None:
    """Entry point of the console script."""
    gc.set_threshold(_OBJECTS, 20, 20)  # a tenth of the time that a short command takes
    from .app import app

    app()
