"""What Windows' Python lacks: a test that asks for it is skipped there, with the reason, where it asks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

# Not `fork` and `statvfs`: the standard library looks whether they are there.
LACKING = {
    "chown": "Windows' files have no user and group by number",
    "geteuid": "Windows' users have no numbers",
    "mkfifo": "Windows has no pipes among its files",
    "umask": "Windows' files have no modes",
}
LINKS = "this user may make no symbolic links"


def needs_posix(reason: str) -> pytest.MarkDecorator:
    """Mark a test, or a module's, of something that Windows does not have."""
    return pytest.mark.skipif(os.name != "posix", reason=reason)


def skip_what_is_lacking() -> None:
    """Have tests skipped that call what Windows lacks. For the pack it goes on lacking: a call of it fails there."""

    def skipping(name: str, reason: str) -> Callable[..., Any]:
        def skip(*_: Any, **__: Any) -> Any:
            if sys._getframe(1).f_globals.get("__name__", "").startswith("onegraph."):
                raise AttributeError(f"module 'os' has no attribute '{name}'")
            pytest.skip(reason)

        return skip

    for name, reason in LACKING.items():
        if name == "umask" or not hasattr(os, name):
            setattr(os, name, skipping(name, reason))
    usual = os.symlink

    def symlink(*args: Any, **options: Any) -> None:
        try:
            usual(*args, **options)
        except OSError:  # it takes a right of its own, and wine 8 makes none
            pytest.skip(LINKS)

    os.symlink = symlink
