"""Moving a bad entry aside, so that nobody loads it again."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from .entry import Entry, read
from .integrity import Sound, check
from .key import GraphKey
from .layout import BROKEN_PREFIX, listed_now, of_digest


def quarantine(folder: Path) -> bool:
    """Move an entry aside. The latest one stays on the disk for inspection, older ones go. Never raises OSError.

    Returns:
        Whether it is out of the way; False where nothing can be changed.
    """
    for name in listed_now(folder.parent):
        if name.startswith(f"{BROKEN_PREFIX}{folder.name}-"):
            shutil.rmtree(folder.with_name(name), ignore_errors=True)
    aside = folder.with_name(f"{BROKEN_PREFIX}{folder.name}-{time.time_ns():x}")
    try:
        folder.rename(aside)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
    return not os.path.lexists(folder)


def of_key(component: Path, names: Iterable[str], key: GraphKey) -> list[Entry]:
    """Read a component's quarantined entries of a key, as far as they can be read.

    Args:
        names: of what lies in the component's folder.
    """
    found = [name for name in of_digest(names, key.digest) if name.startswith(BROKEN_PREFIX)]
    entries = [read(component / name) for name in found]
    return [entry for entry in entries if isinstance(entry, Entry) and entry.manifest.key == key.fields()]


def equals_one(entry: Entry, bad: Iterable[Entry]) -> bool:
    """Whether an entry equals a quarantined one whose files are whole, so that what was wrong is the graph itself."""
    return any(entry.manifest.files == b.manifest.files and isinstance(check(b), Sound) for b in bad)
