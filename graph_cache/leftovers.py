"""What processes that died in the midst of writing left behind: staging folders and temporary files."""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from .layout import STAGING_PREFIX
from .liveness import read_owner, runs, state, this_process

log = logging.getLogger("onegraph.graph_cache")

OWNER_FILE = ".owner"  # in a staging folder: whose it is

_STALE_SECONDS = 24 * 3600  # of what has no owner, or one of another machine or container
_WRITING_SECONDS = 60  # a temporary file is renamed at once, also by a machine whose processes nobody sees here
_TEMPORARY = re.compile(r"\..+\.json\.([0-9]{1,19})", re.ASCII)


def own(staged: Path) -> None:
    """Write whose a staging folder is. Where that fails, the folder goes by its age."""
    try:
        (staged / OWNER_FILE).write_text(this_process().to_text(), encoding="utf-8")
    except OSError as error:
        log.debug("%s has no owner: %s", staged, error)


def sweep_staging(location: Path) -> None:
    """Remove the staging folders of dead processes. Never raises OSError."""
    for folder in _found(location.glob(STAGING_PREFIX + "*")):
        if _is_left_behind(folder):
            log.debug("removing %s, which a process left behind", folder)
            shutil.rmtree(folder, ignore_errors=True)


def sweep_temporaries(paths: Iterable[Path]) -> None:
    """Remove those of the files whose process died before it renamed them. Never raises OSError."""
    for path in _found(paths):
        name = _TEMPORARY.fullmatch(path.name)
        if name is None:
            continue
        age = _age(path)
        if age > _STALE_SECONDS or (age > _WRITING_SECONDS and not runs(int(name[1]))):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def _is_left_behind(folder: Path) -> bool:
    owner = read_owner(folder / OWNER_FILE)
    known = "unknown" if owner is None else state(owner)
    return known == "dead" or (known == "unknown" and _age(folder) > _STALE_SECONDS)


def _age(path: Path) -> float:
    """Seconds since a file or folder was changed; 0 when that cannot be told."""
    try:
        return time.time() - path.lstat().st_mtime
    except OSError:
        return 0.0


def _found(paths: Iterable[Path]) -> list[Path]:
    try:
        return list(paths)
    except OSError:
        return []
