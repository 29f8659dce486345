"""Whose a file is that a process leaves behind when it dies, and whether that process still runs.

A process id alone tells little: it is used again, and in a container it is often the same at every start. An owner is
known by the boot of the machine, the PID namespace, the process id and the time at which the process started. Of a
process in another namespace, which nobody here sees, a lock tells that it holds on its file as long as it lives. Of
another boot are what this machine left before its last start, and what another machine of the same name does now.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from ..files import open_regular, read_regular
from ..layout import machine_id

State = Literal["alive", "dead", "unknown"]

WRITING_SECONDS = 60  # until then another machine, whose processes nobody sees here, may still write a small file

_PROC = Path("/proc")
_MOST_BYTES = 4096  # of an owner's text, which has about 200
_STARTED, _STATE = 19, 0  # fields 22 and 3 of /proc/<pid>/stat, counted after the name, which may hold anything


@dataclass(frozen=True)
class Owner:
    """A process of this machine or another.

    Attributes:
        machine: `machine_id` of its machine.
        boot: id of the machine's boot; empty where the system has none, like the following.
        namespace: PID namespace, in which `pid` means something.
        started: time since the boot, in the system's ticks.
        locked: whether it holds a lock on its file.
    """

    pid: int
    machine: str
    boot: str = ""
    namespace: str = ""
    started: str = ""
    locked: bool = field(default=False, compare=False)

    def to_text(self) -> str:
        """Write the owner with a nonce, by which no two files are equal."""
        return json.dumps({**asdict(self), "nonce": new_nonce()})


def new_nonce() -> str:
    """Make a name that no other process makes and that is no number."""
    return str(uuid.uuid4())


def is_nonce(name: str) -> bool:
    """Whether a name is one that `new_nonce` makes."""
    try:
        return str(uuid.UUID(name)) == name
    except ValueError:
        return False


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
    texts: dict[str, Any] = {
        one.name: found.get(one.name) for one in fields(Owner) if one.name not in ("pid", "locked")
    }
    if not all(isinstance(text, str) for text in texts.values()):
        return None
    return Owner(found["pid"], locked=found.get("locked") is True, **texts)


def state(owner: Owner, path: Path) -> State:
    """Tell whether an owner runs. Of another machine nobody here knows, nor of another PID namespace without a lock.

    Args:
        path: the owner's file.
    """
    here = this_process()
    seen = (owner.machine, owner.namespace) == (here.machine, here.namespace)
    if not seen and owner.boot and owner.boot == here.boot:  # another container of this machine, perhaps
        return _state_by_lock(path) if owner.locked else "unknown"
    if owner.machine != here.machine:
        return "unknown"
    if owner.boot != here.boot:
        return _state_of_another_boot(path) if owner.boot and here.boot else "unknown"
    if owner.namespace != here.namespace:
        return "unknown"
    return "alive" if _runs_since(owner.pid, owner.started) else "dead"


@contextlib.contextmanager
def owning(path: Path) -> Iterator[None]:
    """Write this process into a new file, and hold a lock on it meanwhile, where locks work. The file stays.

    Raises:
        OSError: it cannot be written.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
    try:  # nobody else may open it, and so hold a lock on it, too
        locked = _lock(handle)
        os.write(handle, replace(this_process(), locked=locked).to_text().encode())
    except BaseException:
        os.close(handle)
        raise
    if not locked:  # an open file could not be removed on Windows
        os.close(handle)
    try:
        yield
    finally:
        if locked:
            os.close(handle)


def is_unfinished(path: Path) -> bool:
    """Whether a process made an owner's file and died before it wrote who it is; False while it may still do so."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size == 0 and time.time() - found.st_mtime > WRITING_SECONDS


def _lock(handle: int) -> bool:
    """Lock an open file until it is closed, by the kernel at the latest; whether that works here."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True


def _state_of_another_boot(path: Path) -> State:
    """Tell whether an owner runs that seems to have run before this machine's last start.

    It may run on another machine of the same name, as clones of one image have it. Then its file may be locked, or be
    of a time at which this machine ran already.
    """
    if _state_by_lock(path) == "alive":
        return "alive"
    try:
        written, started = path.lstat().st_mtime, _boot_time()
    except OSError:
        return "unknown"
    return "unknown" if started is None or written > started else "dead"


def _boot_time() -> float | None:
    """When this machine was started, seconds since 1970; None where nobody can tell."""
    try:
        lines = (_PROC / "stat").read_text().splitlines()
        return next((float(line.split()[1]) for line in lines if line.startswith("btime ")), None)
    except (OSError, ValueError, IndexError):
        return None


def _state_by_lock(path: Path) -> State:
    try:
        import fcntl

        with open_regular(path) as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: others may look at the same time
    except BlockingIOError:
        return "alive"
    except (ImportError, OSError):
        return "unknown"
    return "dead"


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
