"""The `onegraph` command."""

from __future__ import annotations

import gc
import io
import sys
import traceback

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
    except Exception as error:
        if not _is_of_torch(error):
            raise
        from ..common.errors import in_brief

        print(
            f"Error: This command needs torch, which {sys.executable} cannot import ({in_brief(error)}). "
            "Run `onegraph doctor`, or the `onegraph` of the Python that ComfyUI runs in.",
            file=sys.stderr,
        )
        sys.exit(1)


def _is_of_torch(error: Exception) -> bool:
    """Tell whether torch is missing, raised while it was imported, or is what an uninstall left behind."""
    names = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)
             if frame.f_code.co_name == "<module>"]  # fmt: skip
    names += [error.name or ""] if isinstance(error, ImportError) else []
    module = getattr(error, "obj", None)
    names += [] if hasattr(module, "__version__") else [getattr(module, "__name__", "")]
    return any(name.partition(".")[0] == "torch" for name in names)
