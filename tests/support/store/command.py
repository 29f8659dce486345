"""The `onegraph` command, as a user runs it in a terminal."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from onegraph.cli.app import app
from onegraph.graph_cache.store import Store


def onegraph(store: Store, *arguments: object, columns: int = 240, **variables: str) -> Result:
    """Run a command on a user's store, with a terminal of so many columns and more variables of the environment."""
    environment = {"ONEGRAPH_HOME": str(store.home), "COLUMNS": str(columns), **variables}
    return CliRunner(env=environment).invoke(
        app, list(map(str, arguments)), prog_name="onegraph", catch_exceptions=False
    )
