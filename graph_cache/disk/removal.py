"""Removing an entry: renamed away in one step while nobody has it in use, then deleted.

A look-up that found the entry finds it gone, never half of it. What a process leaves behind that dies in between is a
staging folder of a dead process, which `leftovers` removes.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Literal

from ..crash.liveness import new_nonce
from ..layout import STAGING_PREFIX
from ..manifest import MANIFEST_FILE
from ..trust import ownership
from ..trust.open_folder import opened_closed
from . import leases

# used: a process has it loaded. kept: it lies where this user may not remove it, or where others could exchange it.
Removed = Literal["removed", "used", "gone", "kept"]

_SURELY_UNUSED = 24 * 3600  # seconds without a use, where the file system has no locks that tell


def remove(folder: Path, used: float) -> Removed:
    """Remove an entry, unless a process uses it. Whose it is was asked before. Never raises OSError.

    Args:
        used: when it was used last, seconds since 1970.
    """
    if not may_be_removed(folder.parent):
        return "kept" if folder.exists() else "gone"
    with opened_closed(folder.parents[1]) as location:
        if location is None:
            return "kept"
        with leases.exclusive(folder) as use:
            if use in ("used", "gone"):
                return "used" if use == "used" else "gone"
            if use == "unknown" and abs(time.time() - used) < _SURELY_UNUSED:
                return "used"
            away = f"{STAGING_PREFIX}removed-{new_nonce()}"
            try:
                location.rename(f"{folder.parent.name}/{folder.name}", away)
            except FileNotFoundError:
                return "gone"
            except OSError:  # on Windows: a process has its manifest open
                return "kept" if leases.HAVE_LOCKS else "used"
            location.remove(away, last=(MANIFEST_FILE,))
    return "removed"


def may_be_removed(component: Path) -> bool:
    """Whether the entries of a component's folder are this user's to remove: not on a read-only file system."""
    if not (ownership.is_writable(component) and ownership.is_writable(component.parent)):
        return False
    with opened_closed(component) as folder:
        return folder is not None and folder.is_own()


def remove_empty(component: Path) -> None:
    """Remove the folders that a removal left empty. To be called while nobody publishes. Never raises OSError."""
    with contextlib.suppress(OSError):
        component.rmdir()
        component.parent.rmdir()
        if component.parents[1].name.endswith(".graphs"):
            component.parents[1].rmdir()
