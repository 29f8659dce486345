"""Which files an entry may list. Backends stand above the store, so what they write is a table here."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..common.reasons import BadFileName, Damaged, EmptyEntry, ForeignFile, MissingFile
from .manifest import CONSTANTS_FILE, Manifest

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# By backend. A test compares it with the names that the backends use.
WRITTEN: Mapping[str, re.Pattern[str]] = {
    "inductor": re.compile(r"graph\.aoti|part[0-9]{1,6}\.aoti|plan\.json"),
    "oneflow": re.compile(r"graph\.oneflow|graph\.json|program\.json"),
}
_OF_THE_STORE = re.compile(r"(manifest|outcome|signature|constants|publisher)\.json", re.IGNORECASE)


def check_names(manifest: Manifest) -> Damaged | None:
    """Say what is wrong with the names of an entry's files, None where nothing is.

    A backend that the table does not have may write any plain name that is not the store's own.
    """
    names = [name for name in manifest.files if name != CONSTANTS_FILE]
    if not names:
        return EmptyEntry()
    backend = manifest.key.get("backend")
    written = WRITTEN.get(backend) if isinstance(backend, str) else None
    for name in names:
        if not _PLAIN.fullmatch(name):
            return BadFileName(name[:100])
        if _OF_THE_STORE.fullmatch(name) or (written is not None and not written.fullmatch(name)):
            return ForeignFile(name)
    return MissingFile(CONSTANTS_FILE) if CONSTANTS_FILE not in manifest.files else None
