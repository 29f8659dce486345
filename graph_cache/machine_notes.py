"""What this machine has learnt, in one file of the home: how long compiles and restores took, where checkpoints lie.

It may be missing, damaged or not writable. Where two processes write it at once, what one of them learnt is lost. It is
shown and makes estimates; nothing else depends on it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from .files import replace_text
from .layout import machine_id
from .manifest import Strict

_MOST_BYTES = 4 << 20
_MOST = 10_000  # graphs; of more, those restored longest ago are forgotten
_Seconds = Annotated[float, Field(ge=0, lt=1e5)]


class Notes(Strict):
    """As in the file.

    Attributes:
        compile_seconds: category of compiles -> stage -> seconds per weight of the latest one.
        restore_seconds: name of an entry -> seconds of its latest restore.
        folders: with checkpoints beside which this user has copies of graphs.
    """

    version: Literal[1] = 1
    compile_seconds: Mapping[str, Mapping[str, _Seconds]] = {}
    restore_seconds: Mapping[str, _Seconds] = {}
    folders: tuple[str, ...] = ()


class MachineNotes:
    """The notes of one user on this machine.

    Args:
        home: gives the folder of the home, which is made where it is not there.
    """

    def __init__(self, home: Callable[[], Path]) -> None:
        self._home = home

    def read(self) -> Notes:
        """Read the notes; empty ones where no readable file is there."""
        return Notes.read(self._file, _MOST_BYTES) or Notes()

    def note_compile(self, category: str, stages: Mapping[str, float]) -> None:
        """Write what a compile took. Never raises OSError."""
        old = self.read()
        self._write(old.model_copy(update={"compile_seconds": {**old.compile_seconds, category: dict(stages)}}))

    def note_restores(self, seconds: Mapping[str, float]) -> None:
        """Write what restores took, by the names of the entries. Never raises OSError."""
        old = self.read()
        if any(old.restore_seconds.get(name) != value for name, value in seconds.items()):
            others = {name: value for name, value in old.restore_seconds.items() if name not in seconds}
            latest = dict([*others.items(), *seconds.items()][-_MOST:])
            self._write(old.model_copy(update={"restore_seconds": latest}))

    def note_folders(self, folders: Iterable[Path]) -> None:
        """Remember folders with checkpoints. Never raises OSError."""
        old = self.read()
        texts = tuple(dict.fromkeys([*old.folders, *(os.path.abspath(folder) for folder in folders)]))  # noqa: PTH100
        if texts != old.folders:
            self._write(old.model_copy(update={"folders": texts}))

    @property
    def _file(self) -> Path:
        return self._home() / f"{machine_id()}-notes.json"

    def _write(self, notes: Notes) -> None:
        with contextlib.suppress(OSError, ValueError, MemoryError):  # a name that is not UTF-8 is a ValueError
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_text(self._file, notes.model_dump_json())
