"""What compiles of a key failed with, and what must change before it is tried again: one small file for each key.

The files lie in the user's folder: `<home>/.failures/<machine>-<key digest>.json`. They spare compiles and decide
nothing else, so that one that cannot be read counts as none, and where none can be written this process remembers.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from ..files import despite_removals, discard, replace_text
from ..key import GraphKey
from ..layout import machine_id
from ..manifest import Strict

log = logging.getLogger("onegraph.graph_cache")

FOLDER = ".failures"
_MOST_BYTES = 64 << 10  # of one file
_MOST_FAILURES = 16  # of one key; further ones take the place of the oldest
_MOST_FILES = 256

# What must change before another try:
# facts: one of the facts. again: likewise, from the second time on. disk, memory: more must be free, or a fact change.
# place: a day must pass, or a fact change.
Kind = Literal["facts", "again", "disk", "memory", "place"]


class Failure(Strict):
    """One cause for which a key is not compiled.

    Attributes:
        reason: as `stored_reasons` writes it.
        facts: that may matter to it, by name, e.g. versions.
        model: digest of the model that it holds for; empty: all.
        where: the folder that was full, or the device whose memory ran out.
        free: bytes that were free there.
        tries: how often it happened.
        accident: whether somebody may have caused it from outside, so that another process tries again once.
        time: of the last one, seconds since 1970.
    """

    kind: Kind
    reason: dict[str, Any]
    facts: dict[str, str] = {}
    model: str = ""
    where: str = ""
    free: int = Field(default=0, ge=0)
    tries: int = Field(default=1, ge=1)
    accident: bool = False
    time: float = 0.0


class KeyFailures(Strict):
    """The failures of one key, as in its file; `component` and `label` are for people."""

    version: Literal[1] = 1
    component: str
    label: str
    failures: tuple[Failure, ...]


_read = functools.partial(KeyFailures.read, most=_MOST_BYTES)


class FailureFiles:
    """The files of one user on this machine.

    Args:
        home: the user's graph folder.
    """

    def __init__(self, home: Path) -> None:
        self._folder = home / FOLDER
        self._unwritten: dict[str, KeyFailures] = {}  # by file name

    def read(self, key: GraphKey) -> tuple[Failure, ...]:
        """Read what a key failed with; nothing where no readable file is there."""
        name = _file_name(key.digest)
        recorded = _read(self._folder / name) or self._unwritten.get(name)
        return recorded.failures if recorded is not None else ()

    def write(self, key: GraphKey, label: str, failures: tuple[Failure, ...]) -> None:
        """Replace what a key failed with. Never raises OSError."""
        name = _file_name(key.digest)
        self._unwritten.pop(name, None)
        path = self._folder / name
        if not failures:
            discard(path)
            self._remove_if_empty()
            return
        new = KeyFailures(component=key.component, label=label, failures=failures[-_MOST_FAILURES:])

        def put() -> None:
            self._folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._folder.mkdir(mode=0o700, exist_ok=True)
            replace_text(path, new.model_dump_json(indent=1))

        try:
            despite_removals(put)
        except (OSError, ValueError) as error:  # or it names a folder whose name is not UTF-8
            log.debug("%s cannot be written, this process remembers it: %s", path, error)
            self._unwritten[name] = new
            return
        self._drop_oldest()

    def all(self) -> list[KeyFailures]:
        """Read all failures of this machine, as far as they can be read."""
        return [recorded for recorded in map(_read, sorted(self._files())) if recorded is not None]

    def forget(self, digest: str = "*") -> Iterator[KeyFailures]:
        """Remove the failures of a key by its digest, or all of this machine. Yields what they were. Raises OSError."""
        for path in self._files(digest):
            recorded = _read(path)
            path.unlink(missing_ok=True)
            if recorded is not None:
                yield recorded
        self._remove_if_empty()

    def _remove_if_empty(self) -> None:
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def _drop_oldest(self) -> None:
        files = self._files()
        with contextlib.suppress(OSError):
            for path in sorted(files, key=lambda path: path.lstat().st_mtime)[: max(0, len(files) - _MOST_FILES)]:
                path.unlink(missing_ok=True)

    def _files(self, digest: str = "*") -> list[Path]:
        try:
            return [path for path in self._folder.glob(_file_name(digest)) if not path.is_dir()]
        except OSError:
            return []


def _file_name(digest: str) -> str:
    return f"{machine_id()}-{digest}.json"
