"""The `onegraph` command."""

from __future__ import annotations


def main() -> None:
    """Entry point of the console script."""
    from .app import app

    app()
