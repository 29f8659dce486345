"""What this machine has learnt, in one file of the home: what compiles and restores took, where checkpoints lie, what
compiles of a key failed with and what must change before it is tried again.

It may be missing, damaged or not writable. Where two processes write it at once, what one of them learnt is lost. It is
shown, makes estimates and spares compiles; nothing else depends on it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ..common.log import logger
from .files import replace_text
from .key import GraphKey
from .layout import machine_id
from .manifest import Strict

log = logger("graph_cache")

_MOST_BYTES = 16 << 20
_MOST = 10_000  # graphs; of more, those restored longest ago are forgotten
_MOST_FAILURES = 16  # of one key; further ones take the place of the oldest
_MOST_KEYS = 256  # that failed
_Seconds = Annotated[float, Field(ge=0, lt=1e5)]

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
    """The failures of one key; `component` and `label` are for people."""

    component: str
    label: str
    failures: tuple[Failure, ...]


class Notes(Strict):
    """As in the file.

    Attributes:
        compile_seconds: category of compiles -> stage -> seconds per weight of the latest one.
        restore_seconds: name of an entry -> seconds of its latest restore.
        folders: with checkpoints beside which this user has copies of graphs.
        failures: by the digests of keys, the latest last.
    """

    version: Literal[1] = 1
    compile_seconds: Mapping[str, Mapping[str, _Seconds]] = {}
    restore_seconds: Mapping[str, _Seconds] = {}
    folders: tuple[str, ...] = ()
    failures: Mapping[str, KeyFailures] = {}


class MachineNotes:
    """The notes of one user on this machine.

    Args:
        home: gives the folder of the home, which is made where it is not there.
    """

    def __init__(self, home: Callable[[], Path]) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._unwritten: dict[str, KeyFailures] = {}  # by the digests of keys, for this process

    def read(self) -> Notes:
        """Read the notes; empty ones where no readable file is there."""
        return Notes.read(self._file, _MOST_BYTES) or Notes()

    def note_compile(self, category: str, stages: Mapping[str, float]) -> None:
        """Write what a compile took. Never raises OSError."""
        self._change(lambda old: {"compile_seconds": {**old.compile_seconds, category: dict(stages)}})

    def note_restores(self, seconds: Mapping[str, float]) -> None:
        """Write what restores took, by the names of the entries. Never raises OSError."""

        def latest(old: Notes) -> dict[str, Any]:
            if all(old.restore_seconds.get(name) == value for name, value in seconds.items()):
                return {}
            others = {name: value for name, value in old.restore_seconds.items() if name not in seconds}
            return {"restore_seconds": dict([*others.items(), *seconds.items()][-_MOST:])}

        self._change(latest)

    def note_folders(self, folders: Iterable[Path]) -> None:
        """Remember folders with checkpoints. Never raises OSError."""
        texts = [os.path.abspath(folder) for folder in folders]  # noqa: PTH100

        def added(old: Notes) -> dict[str, Any]:
            new = tuple(dict.fromkeys([*old.folders, *texts]))
            return {"folders": new} if new != old.folders else {}

        self._change(added)

    # Failures -----------------------------------------------------------------------------------------------

    def failures(self, key: GraphKey) -> tuple[Failure, ...]:
        """Read what a key failed with."""
        failed = self.read().failures.get(key.digest) or self._unwritten.get(key.digest)
        return failed.failures if failed is not None else ()

    def note_failures(self, key: GraphKey, label: str, failures: tuple[Failure, ...]) -> None:
        """Replace what a key failed with, here alone where that cannot be written. Never raises OSError."""
        new = KeyFailures(component=key.component, label=label, failures=failures[-_MOST_FAILURES:])

        def replaced(old: Notes) -> dict[str, Any]:
            others = [(digest, failed) for digest, failed in old.failures.items() if digest != key.digest]
            return {"failures": dict([*others, *([(key.digest, new)] if failures else [])][-_MOST_KEYS:])}

        self._unwritten.pop(key.digest, None)
        if not self._change(replaced) and failures:
            self._unwritten[key.digest] = new

    def forget_failures(self, digest: str | None = None) -> list[KeyFailures]:
        """Forget the failures of a key by its digest, or all; what they were. Raises OSError."""
        with self._lock:
            old = self.read()
            forgotten = {one: failed for one, failed in old.failures.items() if digest in (one, None)}
            if forgotten:
                others = {one: failed for one, failed in old.failures.items() if one not in forgotten}
                self._write(old.model_copy(update={"failures": others}))
        return [*forgotten.values()]

    # --------------------------------------------------------------------------------------------------------

    @property
    def _file(self) -> Path:
        return self._home() / f"{machine_id()}-notes.json"

    def _change(self, change: Callable[[Notes], dict[str, Any]]) -> bool:
        """Write what changes, if anything does; whether it is there now. Never raises OSError."""
        with self._lock:
            old = self.read()
            changes = change(old)
            try:
                if changes:
                    self._write(old.model_copy(update=changes))
            except (OSError, ValueError, MemoryError) as error:  # a name that is not UTF-8 is a ValueError
                log.debug("%s cannot be written: %s", self._file, error)
                return False
        return True

    def _write(self, notes: Notes) -> None:
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_text(self._file, notes.model_dump_json())
