"""Moving a bad entry aside, so that nobody loads it again."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from .layout import BROKEN_PREFIX


def quarantine(folder: Path) -> None:
    """Move an entry aside. The latest one stays on the disk for inspection, older ones go. Never raises OSError."""
    for older in folder.parent.glob(f"{BROKEN_PREFIX}{folder.name}-*"):
        shutil.rmtree(older, ignore_errors=True)
    aside = folder.with_name(f"{BROKEN_PREFIX}{folder.name}-{time.time_ns():x}")
    try:
        folder.rename(aside)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
