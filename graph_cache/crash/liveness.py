"""Whose a file is that a process leaves behind when it dies, and whether that process still runs.

A process holds a lock on its file as long as it lives. A lock that is held tells of a live process wherever it runs:
process ids mean nothing in another container. A free one tells of a dead process only where this machine would see the
lock: some network file systems show each machine only its own. Windows moves no folder with an open file; there a
process has a mutex with its name, which goes with it.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
import time
import uuid
import weakref
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any, Literal

from ...common.log import logger
from ..files import lock, open_regular, private
from ..layout import machine_id
from ..manifest import Strict

log = logger("graph_cache")

OwnerState = Literal["alive", "dead", "unknown"]

WRITING_SECONDS = 60  # until then a process may still write a small file

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SYNCHRONIZE, _NOT_FOUND = 0x100000, 2  # an access right and an error of Windows
_MOST_BYTES = 4096  # of an owner's text, which has about 130


class Owner(Strict):
    """A process of this machine or another.

    Attributes:
        process: its own name, by which several files of one process are known.
        machine: `machine_id` of its machine.
        boot: the boot of the machine, which all of its containers share; empty where its file has no lock.
    """

    process: str
    machine: str
    boot: str

    @property
    def is_of_here(self) -> bool:
        """Whether it runs or ran on this machine. A container may have another `machine_id` at each start."""
        return self.machine == machine_id() or self.boot == _boot()


def new_nonce() -> str:
    """Make a name that no other process makes and that is no number."""
    return str(uuid.uuid4())


def is_nonce(name: str) -> bool:
    """Tell whether a name is one that `new_nonce` makes."""
    try:
        return str(uuid.UUID(name)) == name
    except ValueError:
        return False


def read_owner(path: Path) -> Owner | None:
    """Read an owner from a file; None where none can be read."""
    return Owner.read(path, _MOST_BYTES)


def state(owner: Owner, path: Path) -> OwnerState:
    """Tell whether an owner runs. Of another machine that is unknown where no lock shows that it does.

    Args:
        path: the owner's file.
    """
    if os.name == "nt":
        return _state_of_windows(owner)
    try:
        with open_regular(path) as file:
            written = os.fstat(file.fileno()).st_mtime
            lock(file.fileno(), shared=True)  # others may ask at the same time
    except BlockingIOError:
        return "alive"
    except OSError:
        return "unknown"
    # What this machine left before its last start is of another boot. What another machine of the same name does now is
    # so too, as clones of one image have it; when it was written tells them apart.
    before_start = owner.machine == machine_id() and written < _started()
    return "dead" if owner.boot == _boot() or before_start else "unknown"


@contextlib.contextmanager
def owning(path: Path) -> Iterator[None]:
    """Write this process into a new file, and hold a lock on it meanwhile, where locks work. The file stays.

    Where it cannot be written, nobody is told whose it is. Never raises OSError.
    """
    with contextlib.ExitStack() as held:
        try:
            # Nobody else may open it, and so hold a lock on it, too.
            file = held.enter_context(open(path, "xb", buffering=0, opener=private))
            _held.add(file)
            boot = ""
            with contextlib.suppress(OSError):
                if os.name == "nt":
                    _name_process()
                else:
                    lock(file.fileno(), shared=False)
                boot = _boot()
            file.write(Owner(process=_process, machine=machine_id(), boot=boot).model_dump_json().encode())
            if not boot or os.name == "nt":
                file.close()
        except OSError as error:
            log.debug("%s does not tell whose it is: %s", path, error)
        yield


@functools.cache
def _name_process() -> int:
    """Have a mutex with this process' name until it ends; a handle of it. Raises OSError."""
    import ctypes

    handle: int = _kernel32().CreateMutexW(None, False, _mutex_of(_process))
    if not handle:
        raise OSError(errno.ENOLCK, f"CreateMutexW: error {ctypes.get_last_error()}")  # type: ignore[attr-defined]
    return handle


def _state_of_windows(owner: Owner) -> OwnerState:
    if owner.machine != machine_id() or not owner.boot:
        return "unknown"
    import ctypes

    kernel = _kernel32()
    handle = kernel.OpenMutexW(_SYNCHRONIZE, False, _mutex_of(owner.process))
    if handle:
        kernel.CloseHandle(handle)
        return "alive"
    return "dead" if ctypes.get_last_error() == _NOT_FOUND else "alive"  # type: ignore[attr-defined]


def _mutex_of(process: str) -> str:
    """The name of a process' mutex, for all users' sessions."""
    return f"Global\\onegraph-{process}"


def _kernel32() -> Any:
    import ctypes
    from ctypes import wintypes

    kernel: Any = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined]
    kernel.CreateMutexW.restype = kernel.OpenMutexW.restype = wintypes.HANDLE
    kernel.CreateMutexW.argtypes = (ctypes.c_void_p, wintypes.BOOL, wintypes.LPCWSTR)
    kernel.OpenMutexW.argtypes = (wintypes.DWORD, wintypes.BOOL, wintypes.LPCWSTR)
    kernel.CloseHandle.argtypes = (wintypes.HANDLE,)
    return kernel


def is_unfinished(path: Path) -> bool:
    """Tell whether a process died between making an owner's file and writing who it is."""
    with contextlib.suppress(OSError):
        status = path.lstat()
        return stat.S_ISREG(status.st_mode) and status.st_size == 0 and time.time() - status.st_mtime > WRITING_SECONDS
    return False


def _boot() -> str:
    """Name the machine's boot; where the system does not, the machine."""
    name = ""
    with contextlib.suppress(OSError):
        name = _BOOT_ID.read_text().strip()
    return name or machine_id()


def _started() -> float:
    """When this machine was started, seconds since 1970; 0 where nobody can tell."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return 0.0
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


_process = new_nonce()
_held: weakref.WeakSet[FileIO] = weakref.WeakSet()


def _after_fork() -> None:
    """Make a fork a process of its own, which does not hold the locks of its parent when that one has died."""
    global _process
    _process = new_nonce()
    for file in _held:
        file.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
