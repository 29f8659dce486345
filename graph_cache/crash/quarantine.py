"""Moving a bad entry aside, so that nobody loads it again."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

from ..entry import Entry
from ..integrity import Sound, check
from ..key import GraphKey
from ..layout import BROKEN_PREFIX, of_digest
from ..trust.open_folder import opened, opened_closed
from ..trust.signing import Signer
from ..trust.trusted_entry import Known, read_trusted


def quarantine(folder: Path) -> bool:
    """Move an entry aside. The latest one stays on the disk for inspection, older ones go. Never raises OSError.

    Nothing is removed where others could exchange the folders that lead there.

    Returns:
        Whether it is out of the way; False where nothing can be changed.
    """
    older = re.compile(re.escape(f"{BROKEN_PREFIX}{folder.name}-") + "[0-9a-f]+")  # of no entry with a longer name
    with opened_closed(folder.parent) as component:
        with contextlib.suppress(OSError):
            for name in component.names() if component is not None else ():
                if component is not None and older.fullmatch(name):
                    component.remove(name)
        with contextlib.suppress(OSError), opened(folder.parent) as parent:
            try:
                parent.rename(folder.name, f"{BROKEN_PREFIX}{folder.name}-{time.time_ns():x}")
            except OSError:
                if component is not None:
                    component.remove(folder.name)
    return not os.path.lexists(folder)


def of_key(component: Path, names: Iterable[str], key: GraphKey, signer: Signer) -> list[Entry]:
    """Read a component's quarantined entries of a key, as far as they can be read and are trusted.

    Args:
        names: of what lies in the component's folder.
    """
    found = [name for name in of_digest(names, key.digest) if name.startswith(BROKEN_PREFIX)]
    judged = [read_trusted(component / name, signer) for name in found]
    return [one.entry for one in judged if isinstance(one, Known) and one.entry.manifest.key == key.fields()]


def equals_one(entry: Entry, bad: Iterable[Entry]) -> bool:
    """Whether an entry equals a quarantined one whose files are whole, so that what was wrong is the graph itself."""
    return any(entry.manifest.files == b.manifest.files and isinstance(check(b), Sound) for b in bad)
