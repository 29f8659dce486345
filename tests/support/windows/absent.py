"""What Windows' Python lacks: a test that asks for it is skipped there, with the reason, where it asks."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# Not `fork` and `statvfs`: the standard library looks whether they are there.
LACKING = {
    "geteuid": "Windows' users have no numbers",
    "mkfifo": "Windows has no pipes among its files",
    "umask": "Windows' files have no modes",
}


def needs_posix(reason: str) -> pytest.MarkDecorator:
    """Mark a test, or a module's, of something that Windows does not have."""
    return pytest.mark.skipif(os.name != "posix", reason=reason)


def skip_what_is_lacking() -> None:
    """Have tests skipped that call what Windows lacks. For the pack it goes on lacking: a call of it fails there."""
    for name, reason in LACKING.items():
        setattr(os, name, _skipping(name, reason))
    usual, context = os.symlink, multiprocessing.get_context

    def symlink(*args: Any, **options: Any) -> None:
        with contextlib.suppress(OSError):  # which takes a right of its own
            usual(*args, **options)
        if _caller().startswith("test") and not Path(args[1]).is_symlink():  # wine 8 makes none, and reports no error
            pytest.skip("this user may make no symbolic links")

    def get_context(method: str | None = None) -> Any:
        return context(method) if method != "fork" else pytest.skip("Windows copies no process")

    os.symlink = symlink
    multiprocessing.get_context = get_context


def _skipping(name: str, reason: str) -> Callable[..., Any]:
    def skip(*_: Any, **__: Any) -> Any:
        if _caller().startswith("onegraph."):
            raise AttributeError(f"module 'os' has no attribute '{name}'")
        pytest.skip(reason)

    return skip


def _caller() -> str:
    """The module that called what called this, leaving out pathlib, which calls for others."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("pathlib"):
        frame = frame.f_back
    return str(frame.f_globals["__name__"])
