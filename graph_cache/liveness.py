"""Whose a file is that a process leaves behind when it dies, and whether that process still runs.

A process id alone tells little: it is used again, and in a container it is often the same at every start. An owner is
known by the boot of the machine, the PID namespace, the process id and the time at which the process started.
"""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal

from .files import read_regular
from .layout import machine_id

State = Literal["alive", "dead", "unknown"]

_PROC = Path("/proc")
_MOST_BYTES = 4096  # of an owner's text, which has about 200
_STARTED, _STATE = 19, 0  # fields 22 and 3 of /proc/<pid>/stat, counted after the name, which may hold anything


@dataclass(frozen=True)
class Owner:
    """A process of this machine or another.

    Attributes:
        machine: `machine_id` of its machine; empty where files of other machines are told apart in another way.
        boot: id of the machine's boot; empty where the system has none, like the following.
        namespace: PID namespace, in which `pid` means something.
        started: time since the boot, in the system's ticks.
    """

    pid: int
    machine: str = ""
    boot: str = ""
    namespace: str = ""
    started: str = ""

    def to_text(self) -> str:
        """Write the owner with a nonce, by which no two files are equal."""
        return json.dumps({**asdict(self), "nonce": new_nonce()})


def new_nonce() -> str:
    """Make a name that no other process makes and that is no number."""
    return str(uuid.uuid4())


def this_process() -> Owner:
    """Describe this process. Never remembered, since it may be a fork."""
    pid = os.getpid()
    _, started = _stat(pid)
    return Owner(pid, machine_id(), _boot(), _namespace(), started)


def read_owner(path: Path) -> Owner | None:
    """Read an owner from a file; None where none can be read."""
    try:
        found = json.loads(read_regular(path, _MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or type(found.get("pid")) is not int or found["pid"] < 1:
        return None
    texts = {field.name: found.get(field.name, "") for field in fields(Owner) if field.name != "pid"}
    return Owner(found["pid"], **texts) if all(isinstance(text, str) for text in texts.values()) else None


def state(owner: Owner) -> State:
    """Tell whether an owner runs. Of another machine or PID namespace nobody here knows."""
    here = this_process()
    if owner.machine and owner.machine != here.machine:
        return "unknown"
    if owner.boot != here.boot:
        return "dead" if owner.boot and here.boot else "unknown"
    if owner.namespace != here.namespace:
        return "unknown"
    return "alive" if _runs_since(owner.pid, owner.started) else "dead"


def runs(pid: int) -> bool:
    """Whether a process of that id runs; True when that cannot be told."""
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _runs_since(pid: int, started: str) -> bool:
    now, began = _stat(pid)
    if not began:  # no /proc, no such process, or another user's that /proc hides
        return runs(pid)
    if now in ("Z", "X"):  # it ended, and its parent has not asked how
        return False
    return not started or began == started


def _stat(pid: int) -> tuple[str, str]:
    """A process' state and the time at which it started; empty where they cannot be read."""
    try:
        parts = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return parts[_STATE], parts[_STARTED]
    except (OSError, IndexError):
        return "", ""


def _boot() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return str((_PROC / "self/ns/pid").readlink())
    except OSError:
        return ""
