"""Graphs that were compiled and could not be saved: no compile again before clearly more of the disk is free."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path

from ..common import reasons
from ..common.errors import in_brief
from ..common.memory import clearly_more
from ..common.reasons import Reason
from ..common.shapes import Refused
from ..graph_cache.files import free_bytes, total_bytes
from ..graph_cache.trust.ownership import RefusedError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR)
_CLEARLY_BYTES = 256 << 20  # more, at least, than was free then


@dataclass(frozen=True)
class DiskShortage:
    """A graph that could not be saved.

    Attributes:
        folder: where it was to be; it need not exist.
        free: bytes that were free there, without the graph.
    """

    reason: Reason
    folder: Path
    free: int

    def again(self) -> Refused | None:
        """None when another try makes sense now, else why not."""
        free, total = free_bytes(self.folder), total_bytes(self.folder)
        if free is None or total is None:
            return None
        wanted = clearly_more(self.free, total, _CLEARLY_BYTES)
        if wanted is None:
            return Refused(reasons.WaitsADay(self.reason))
        return None if free >= wanted else Refused(reasons.WaitsForDisk(self.reason, wanted))


def not_saved(error: OSError) -> Reason:
    """Why no folder took a graph."""
    if isinstance(error, RefusedError) and isinstance(error.reason, reasons.SigningKeyRefused):
        return error.reason
    if isinstance(error, RefusedError):
        return reasons.NotSaved(in_brief(error), "open")
    detail = error.strerror or in_brief(error)
    if error.errno in FULL:
        return reasons.NotSaved(detail, "full")
    return reasons.NotSaved(detail, "denied" if error.errno in _DENIED else "")


def shortage(reason: Reason, folder: Path) -> DiskShortage | None:
    """What to remember of a graph that could not be saved; None where nobody knows what is free there."""
    free = free_bytes(folder)
    return None if free is None else DiskShortage(reason, folder, free)
