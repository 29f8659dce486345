"""Runs the `onegraph` command on a user's store."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from onegraph.cli.app import app
from onegraph.graph_cache.store import Store


def onegraph(store: Store, *arguments: object, columns: int = 240, **variables: str) -> Result:
    """Run a command, with a terminal of so many columns."""
    environment = {"ONEGRAPH_HOME": str(store.home), "COLUMNS": str(columns), **variables}
    return CliRunner(env=environment).invoke(app, list(map(str, arguments)), catch_exceptions=False)
