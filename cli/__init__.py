"""The `onegraph` command."""

from __future__ import annotations

import gc
import io
import sys

_OBJECTS = 50_000  # that are made until garbage is looked for; lists of thousands of graphs have none


def main() -> None:
    """Entry point of the console script."""
    gc.set_threshold(_OBJECTS, 20, 20)  # a tenth of the time that a short command takes
    for stream in (sys.stdout, sys.stderr):  # a pipe on Windows has an encoding that lacks most names' characters
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    from .app import app

    try:
        app()
    except ImportError as error:  # missing, or broken
        if (error.name or "").partition(".")[0] != "torch":
            raise
        print(
            f"Error: This command needs torch, which {sys.executable} cannot import ({error}). "
            "Run the `onegraph` of the Python that ComfyUI runs in, or install torch.",
            file=sys.stderr,
        )
        sys.exit(1)
