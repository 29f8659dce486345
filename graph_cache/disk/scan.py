"""Lists of all graphs, of which only what has changed is read anew.

To read an entry takes some milliseconds. So it is remembered as long as its folder, its manifest and its uses are as
they were: whatever else comes or goes changes the folder. Names and paths are texts here, since with thousands of
entries paths would take most of the time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from blake3 import blake3

from ...common.reasons import CheckpointGone, Reason
from ..layout import BROKEN_PREFIX, GRAPHS_SUFFIX, listed_now
from ..manifest import MANIFEST_FILE
from ..trust.publishers import TRUSTED_FILE
from ..trust.signing import Signer
from ..trust.withdrawals import FOLDER as WITHDRAWN
from .listing import Listed, describe
from .marks import USES_FILE, Model

_UNSURE_NS = 2_000_000_000  # so young a change may hide another one: file systems round their times


class Scan:
    """Lists folders. May be used by several threads.

    Attributes:
        reads: how many lists had to read an entry anew.
    """

    def __init__(self, signer: Signer) -> None:
        self.reads = 0
        self._signer = signer
        self._trust: list[object] = []
        self._rows: dict[str, Listed] = {}
        self._lock = threading.Lock()

    def entries(self, graphs: Path, roots: Iterable[Path], listed: list[Listed]) -> list[Listed]:
        """List the entries of the home, quarantined ones too, and the copies beside the checkpoints in some folders.

        What cannot be read now is left out.

        Args:
            graphs: the home's folder of graphs.
            listed: takes each entry as soon as it is listed.
        """
        with self._lock:
            began, is_new, trust = time.time_ns(), False, self._whom_to_trust()
            if trust != self._trust:  # all are judged anew
                self._trust, self._rows = trust, {}
            for folder, model, checkpoint_gone in _walk(str(graphs), roots):
                stamp, changed = _stamp(folder)
                row = self._rows.get(folder)
                if row is None or row.stamp != stamp:
                    row = describe(folder, model, self._signer)
                    if row is None:
                        continue
                    row, is_new = dataclasses.replace(row, stamp=stamp), True
                    if changed < began - _UNSURE_NS:
                        self._rows[folder] = row
                listed.append(
                    row
                    if checkpoint_gone is None
                    else dataclasses.replace(row, unusable=row.unusable or checkpoint_gone)
                )
            self.reads += is_new
        return listed

    def _whom_to_trust(self) -> list[object]:
        """What tells whether another key signs, or other publishers are trusted, than before."""
        trust: list[object] = []
        with contextlib.suppress(OSError):
            trust.append(hash(self._signer.read_key()))
        for name in (TRUSTED_FILE, WITHDRAWN):
            with contextlib.suppress(OSError):
                status = (self._signer.home / name).stat()
                trust += [status.st_ino, status.st_mtime_ns, status.st_ctime_ns]
        return trust


def revision(entries: Iterable[Listed]) -> str:
    """Digest a list: it differs when something of an entry has changed, or another one is there."""
    text = repr([(one.id, one.stamp, one.unusable is None) for one in entries])
    return blake3(text.encode()).hexdigest(length=8)


def _stamp(folder: str) -> tuple[tuple[int, ...], int]:
    """What tells whether an entry is as it was, and when it was changed last, nanoseconds since 1970."""
    stamp: list[int] = []
    changed = 0
    for path in (folder, os.path.join(folder, MANIFEST_FILE), os.path.join(folder, USES_FILE)):  # noqa: PTH118
        with contextlib.suppress(OSError):
            status = os.lstat(path)
            stamp += [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
            changed = max(changed, status.st_mtime_ns)
    return tuple(stamp), changed


def _walk(graphs: str, roots: Iterable[Path]) -> Iterator[tuple[str, Model | None, Reason | None]]:
    """Walk over the folders of entries, in order. With a copy comes the model beside whose checkpoint it lies, and
    whether that is gone.
    """
    for component in _folders(graphs):
        for folder in _folders(component, hidden=BROKEN_PREFIX):
            yield folder, None, None
    for root in dict.fromkeys(os.path.abspath(root) for root in roots):  # noqa: PTH100
        stems = {os.path.splitext(name)[0] for name in listed_now(Path(root)) if not name.endswith(GRAPHS_SUFFIX)}  # noqa: PTH122
        for beside in _folders(root, GRAPHS_SUFFIX):
            stem = os.path.basename(beside).removesuffix(GRAPHS_SUFFIX)  # noqa: PTH119
            checkpoint_gone = None if stem in stems else CheckpointGone(stem)
            for location in _folders(beside):
                model = Model(os.path.basename(location), beside)  # noqa: PTH119
                for component in _folders(location):
                    for folder in _folders(component, hidden=BROKEN_PREFIX):
                        yield folder, model, checkpoint_gone


def _folders(folder: str, suffix: str = "", hidden: str = "") -> list[str]:
    """List the folders in a folder that end with `suffix`, in order, and hidden ones that begin with `hidden`."""
    with contextlib.suppress(OSError), os.scandir(folder) as items:
        return sorted(
            item.path
            for item in items
            if item.name.endswith(suffix)
            and (item.name[:1] != "." or (hidden and item.name.startswith(hidden)))
            and item.is_dir()
        )
    return []
