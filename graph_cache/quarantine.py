"""Moving a bad entry aside, so that nobody loads it again."""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path

from .entry import Entry, read
from .key import GraphKey
from .layout import BROKEN_PREFIX, quarantined
from .manifest import Manifest


def quarantine(folder: Path) -> None:
    """Move an entry aside. The latest one stays on the disk for inspection, older ones go. Never raises OSError."""
    with contextlib.suppress(OSError):
        for older in quarantined(folder.parent, folder.name):
            shutil.rmtree(older, ignore_errors=True)
    aside = folder.with_name(f"{BROKEN_PREFIX}{folder.name}-{time.time_ns():x}")
    try:
        folder.rename(aside)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)


def of_key(component: Path, key: GraphKey) -> list[Manifest]:
    """Read the manifests of a component's quarantined entries of a key, as far as they can be read."""
    try:
        entries = [read(folder) for folder in quarantined(component)]
    except OSError:
        return []
    return [e.manifest for e in entries if isinstance(e, Entry) and e.manifest.key == key.fields()]
