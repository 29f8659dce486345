"""The `onegraph` command."""

from __future__ import annotations

import gc
import io
import os
import sys

_OBJECTS = 50_000  # that are made until garbage is looked for; lists of thousands of graphs have none


def main() -> None:
    """Entry point of the console script."""
    gc.set_threshold(_OBJECTS, 20, 20)  # a tenth of the time that a short command takes
    for stream in (sys.stdout, sys.stderr) if os.name == "nt" else ():
        if isinstance(stream, io.TextIOWrapper):  # a pipe has a code page, which lacks most characters
            stream.reconfigure(errors="backslashreplace")
    from .app import app

    try:
        app()
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        print(
            f"This command needs torch, which {sys.executable} lacks. "
            "Run the `onegraph` of the Python that ComfyUI runs in, or install torch.",
        )
        sys.exit(1)
