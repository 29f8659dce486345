"""Where the key is that this user's graphs are signed with.

It is the file that `ONEGRAPH_SIGNING_KEY` names, such as a container's secret, and then no other. Else it is
`signing.key` in the graph folder; or in the user's folder for settings, where the graph folder cannot keep a secret: it
cannot be written, or all may read what is on its drive.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from ...common.reasons import SigningKeyRefused
from ..layout import settings_file
from . import key_file, private_folder

log = logging.getLogger("onegraph.graph_cache")

KEY_FILE = "signing.key"
VARIABLE = "ONEGRAPH_SIGNING_KEY"


def read(home: Path) -> bytes | SigningKeyRefused | None:
    """Read the key; None where there is none yet. Raises OSError where nobody can tell now.

    Args:
        home: the user's graph folder.
    """
    given = os.environ.get(VARIABLE)
    if given:
        return key_file.read_given(Path(os.path.expanduser(given)))  # noqa: PTH111 - which would raise
    found = key_file.read(home / KEY_FILE)
    if isinstance(found, bytes) or (found is None and _may_be_written(home)):
        return found
    with contextlib.suppress(OSError):
        other = settings_file(KEY_FILE)
        key = None if other is None else key_file.read(other)
        if isinstance(key, bytes):
            return key
    return found


def _may_be_written(home: Path) -> bool:
    there = next((place for place in (home, *home.parents) if place.exists()), None)
    return there is not None and there.is_dir() and os.access(there, os.W_OK)


def refused(home: Path) -> SigningKeyRefused | None:
    """Say why the key in the graph folder does not count, where another one does in its place."""
    if os.environ.get(VARIABLE):
        return None
    with contextlib.suppress(OSError):
        found = key_file.read(home / KEY_FILE)
        return found if isinstance(found, SigningKeyRefused) else None
    return None


def obtain(home: Path) -> bytes:
    """Give the key; make it if there is none, or none that counts.

    Raises:
        RefusedError: it must not be used.
        OSError: it cannot be made or read.
    """
    found = read(home)
    if isinstance(found, bytes):
        return found
    if found is not None and os.environ.get(VARIABLE):
        raise private_folder.RefusedError(found)
    try:
        return key_file.obtain(home / KEY_FILE)
    except OSError as error:
        other = settings_file(KEY_FILE)
        if other is None:
            raise
        with contextlib.suppress(OSError):
            key = key_file.obtain(other)
            log.info("%s cannot keep the key for graphs (%s), so that it is %s", home, error, other)
            return key
        raise
