"""The command `onegraph`, which starts as a copy where there is something to copy, as its compiling processes do."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:0] = [str(TESTS), str(TESTS.parent / "tools")]

from headless import warm  # noqa: E402


class Told(NamedTuple):
    """What a command ended with, and what it printed."""

    code: int
    out: str
    errors: str


def run(*arguments: str, **environ: str) -> Told:
    """Run the command to its end, with further variables of the environment."""
    with tempfile.NamedTemporaryFile("r") as errors:
        process = warm.start(
            [sys.executable, __file__, errors.name, *arguments], environ={**os.environ, **environ}, cwd=Path.cwd()
        )
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        out = process.stdout.read().decode()
        return Told(process.wait(), out, errors.read())


def main() -> None:
    """Be the command. The first argument names the file for what goes to standard error."""
    from onegraph.cli import main as command
    from support.processes import warm_compiles

    os.dup2(os.open(sys.argv.pop(1), os.O_WRONLY), 2)
    # Those of a copy were made for other files, where some could be wound back.
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
    with pytest.MonkeyPatch.context() as patch:
        warm_compiles.copies(patch)
        command()


if __name__ == "__main__":
    main()
