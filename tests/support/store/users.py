"""Other users of this machine, whom permissions hold back. Only root can be several."""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

OTHER = 12345  # nobody's number
as_root = pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can be two users")


def _become(uid: int) -> None:
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


def as_user(act: Callable[[], object], uid: int = OTHER) -> None:
    """Act as another user, in a process of its own. What fails there is printed, and fails here."""
    process = os.fork()
    if process == 0:
        code = 1
        try:
            _become(uid)
            act()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitpid(process, 0)[1] == 0


@contextlib.contextmanager
def meanwhile(act: Callable[[], object], uid: int = OTHER) -> Iterator[None]:
    """Act as another user, in a process of its own, again and again until the block ends."""
    process = os.fork()
    if process == 0:
        try:
            _become(uid)
            while True:
                with contextlib.suppress(OSError):
                    act()
                time.sleep(0.002)
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.kill(process, 9)
        os.waitpid(process, 0)


def give_to(uid: int, *folders: Path) -> None:
    """Make a user the owner of folders and all that is in them."""
    for path in [path for folder in folders for path in (folder, *folder.rglob("*"))]:
        os.chown(path, uid, uid, follow_symlinks=False)
