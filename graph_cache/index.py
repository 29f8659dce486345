"""The index: what the manifests of a component's entries say, so that look-ups need not read thousands of them.

It narrows what is read and decides nothing: a hit comes from the folder's name and the entry's own manifest, signature
and files. In memory it is part of a `Store`. Between processes it is a file for each component in the user's folder.
Deleting, damaging or forging one costs time only.

Names are listed anew at each look-up, so an entry that anybody adds, removes or renames is seen at once. A manifest is
read again when its inode, times or size are others. That is looked at for all of a component when its folder changed,
and for the row that a look-up reports. Times of the last few seconds say nothing, since a later change may leave the
same ones.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..common.reasons import NewerManifest, Untrusted
from . import index_file
from .crash.leftovers import sweep_temporaries
from .entry import Unparsed, read_text
from .index_file import Contents, Row, Stamp
from .key import GraphKey, Summary
from .manifest import MANIFEST_FILE
from .trust import ownership
from .trust.open_folder import opened_closed
from .trust.signing import Signer
from .trust.trusted_entry import Faulty, Known, read_trusted

log = logging.getLogger("onegraph.graph_cache")

INDEX_FOLDER = ".index"  # below the user's folder

_COARSE = 3.0  # seconds: some file systems tell times in steps of two
_UNUSED_SECONDS = 30 * 24 * 3600


@dataclass(frozen=True)
class _Known:
    """What this process knows of a component.

    Attributes:
        contents: as last read.
        listed: its names as they were listed then, in the file system's order.
        saved: what the file holds, as far as is known.
        nearest: what `_nearest` found in these contents.
    """

    contents: Contents
    listed: list[str]
    saved: Contents | None
    nearest: dict[Summary, tuple[str, str] | None] = field(default_factory=dict)

    def find_nearest(self, wanted: Summary) -> tuple[str, str] | None:
        """Look for a key once: the nodes of a workflow ask for the same ones again and again."""
        if wanted not in self.nearest:
            self.nearest[wanted] = _nearest(self.contents.rows, wanted)
        return self.nearest[wanted]


class Index:
    """The index of one user's entries. Only `save` and `sweep` write.

    Args:
        home: the user's graph folder.
        signer: signs the files, where it has a key.
    """

    def __init__(self, home: Path, signer: Signer) -> None:
        self._folder = home / INDEX_FOLDER
        self._signer = signer
        self._known: dict[Path, _Known] = {}  # values are replaced as a whole: threads may take turns

    # Reading ------------------------------------------------------------------------------------------------

    def nearest(self, component: Path, names: list[str], key: GraphKey) -> str | None:
        """Describe how a component's nearest entry differs from a key; None where none does.

        Args:
            names: of what lies in the component's folder, as listed just now.
        """
        wanted, known = Summary.of(key.fields()), self._current(component, names)
        found = known.find_nearest(wanted)
        if found is None:
            return None
        stamp = known.contents.rows[found[0]].stamp
        rows = known.contents.rows
        if stamp is None or stamp != file_stamp(f"{component}/{found[0]}", MANIFEST_FILE):
            rows = self.contents(component, names).rows
            found = _nearest(rows, wanted)
        while found is not None and not self._is_trusted(component / found[0]):
            rows = {name: row for name, row in rows.items() if name != found[0]}
            found = _nearest(rows, wanted)
        return found[1] if found is not None else None

    def _is_trusted(self, folder: Path) -> bool:
        """Whether the signature of a manifest, which was right when it was read, still counts."""
        text = read_text(folder)
        return isinstance(text, Unparsed) and self._signer.judge(text) is None

    def siblings(self, component: Path, names: list[str], key: GraphKey) -> list[str]:
        """Name the entries that differ from a key in the shapes at most, as far as the index tells."""
        wanted = Summary.of(key.fields())
        rows = self._current(component, names).contents.rows
        return [n for n, row in rows.items() if (row.architecture, row.others) == (wanted.architecture, wanted.others)]

    def contents(self, component: Path, names: list[str]) -> Contents:
        """Tell what the manifests of a component say, each compared with its file."""
        return self._compared(component, names).contents

    def _compared(self, component: Path, names: list[str]) -> _Known:
        before = self._recalled(component)
        known = _Known(_compared(component, names, before.contents, self._signer), names, before.saved)
        self._known[component] = known
        return known

    def _current(self, component: Path, names: list[str]) -> _Known:
        known = self._recalled(component)
        contents = known.contents
        if (
            contents.stamp is None
            or contents.stamp != _folder_stamp(component)
            or (names != known.listed and sorted(names) != contents.names)
            or any(
                _may_be_read(f"{component}/{name}", before)
                for name, before in (*contents.unread.items(), *contents.untrusted.items())
            )
        ):
            return self._compared(component, names)
        self._known[component] = known = replace(known, listed=names)
        return known

    def _recalled(self, component: Path) -> _Known:
        """What this process knows, or another one wrote."""
        known = self._known.get(component)
        if known is not None:
            return known
        saved = index_file.read(self._file(component), self._signer)
        return _Known(saved or Contents(None, {}, {}), [], saved)

    # Writing ------------------------------------------------------------------------------------------------

    def note(self, component: Path, before: Contents, rows: Mapping[str, Row]) -> None:
        """Note what more is known of entries than `before`, unless another thread learnt other things meanwhile."""
        known = self._known.get(component)
        if known is not None and known.contents is before and rows:
            contents = replace(before, rows={**before.rows, **rows})
            self._known[component] = _Known(contents, known.listed, known.saved)

    def save(self) -> None:
        """Write what this process read, for others. Never raises OSError."""
        for component, known in self._known.copy().items():
            if known.contents == known.saved or not known.contents.is_worth_a_file:
                continue
            try:
                ownership.make_private(self._folder)
                if index_file.write(self._file(component), str(component), known.contents, self._signer):
                    self._known[component] = replace(known, saved=known.contents)
            except (OSError, MemoryError) as error:
                log.debug("what lies in %s is read again by others: %s", component, error)

    def sweep(self) -> None:
        """Remove files that are no use any more. Never raises OSError."""
        sweep_temporaries(self._folder)
        with contextlib.suppress(OSError), opened_closed(self._folder) as folder:
            for name in folder.names() if folder is not None else []:
                if folder is None or not name.endswith(".json") or name.startswith("."):
                    continue
                if time.time() - folder.stat(name).st_mtime > _UNUSED_SECONDS:
                    component = index_file.component_of(folder.reach(name))
                    if component is None or not Path(component).is_dir():
                        folder.unlink(name)

    def _file(self, component: Path) -> Path:
        return self._folder / index_file.name_of(str(component))


def file_stamp(folder: str, name: str) -> Stamp | None:
    """Give what a later change of a file in a folder leaves another one of; None where that is not sure."""
    try:
        found = os.lstat(f"{folder}/{name}")
    except OSError:
        return None
    return _stamp(found) if stat.S_ISREG(found.st_mode) else None


def _folder_stamp(path: Path) -> Stamp | None:
    try:
        return _stamp(path.stat())
    except OSError:
        return None


def _stamp(found: os.stat_result) -> Stamp | None:
    # A time in the future is of a clock that was turned back.
    if time.time() - max(found.st_mtime, found.st_ctime) <= _COARSE:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


def _may_be_read(folder: str, before: Stamp | None) -> bool:
    """Whether there is a manifest that is not known to be damaged."""
    if before is not None:
        return before != file_stamp(folder, MANIFEST_FILE)
    return os.path.lexists(f"{folder}/{MANIFEST_FILE}")


def _compared(component: Path, names: list[str], before: Contents, signer: Signer) -> Contents:
    stamp = _folder_stamp(component)  # before what it stands for is read
    rows: dict[str, Row] = {}
    unread: dict[str, Stamp | None] = {}
    untrusted: dict[str, Stamp | None] = {}
    for name in sorted(names):
        manifest = file_stamp(f"{component}/{name}", MANIFEST_FILE)
        row = before.rows.get(name)
        if manifest is not None and row is not None and row.stamp == manifest:
            rows[name] = row
        elif manifest is not None and before.unread.get(name) == manifest:
            unread[name] = manifest
        elif manifest is not None and before.untrusted.get(name) == manifest:
            untrusted[name] = manifest
        else:
            found = read_trusted(component / name, signer)
            if isinstance(found, Known):
                entry = found.entry
                key = Summary.of(entry.manifest.key)
                label, size = entry.manifest.label, entry.bytes
                rows[name] = Row(manifest, None, None, key.others, key.architecture, key.shapes, label, size)
            elif isinstance(found, Untrusted):
                untrusted[name] = manifest
            else:
                unread[name] = manifest if isinstance(found, Faulty | NewerManifest) else None
    return Contents(stamp, rows, unread, untrusted)


def _nearest(rows: Mapping[str, Row], wanted: Summary) -> tuple[str, str] | None:
    """Find the shortest of all differences: the name of the first entry that has it, and its text."""
    kinds: dict[tuple[str, bool, bool], str] = {}
    for name, row in rows.items():
        kinds.setdefault((row.others, row.architecture == wanted.architecture, row.shapes == wanted.shapes), name)
    found = [(name, wanted.difference(*kind)) for kind, name in kinds.items()]
    return min(((name, text) for name, text in found if text), key=lambda one: len(one[1]), default=None)
