"""Commands about workflows, asked of a running server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headless import server, workflows
from typer.testing import CliRunner

from onegraph.cli.app import app


def ask(command: str, prompt: workflows.Prompt, running: server.Server, folder: Path, *more: str) -> tuple[int, Any]:
    """Run `explain` or `bake` on a workflow; its exit code, and what it prints."""
    (folder / "workflow.json").write_text(json.dumps(prompt))
    address = f"http://127.0.0.1:{running.port}"
    arguments = [command, str(folder / "workflow.json"), "--server", address, "--json", *more]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    return done.exit_code, json.loads(done.stdout)
