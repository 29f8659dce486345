"""What may go wrong: damage to an entry's files, and faults of the system that a life of `lives` meets."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from headless.standstill import wait_until

# Damage ----------------------------------------------------------------------------------------------------------


def overwritten(path: Path) -> None:
    """Other bytes at three places."""
    data = bytearray(path.read_bytes())
    for place in random.Random(path.name).sample(range(len(data)), 3):
        data[place] ^= 0x55
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def removed(path: Path) -> None:
    path.unlink()


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "inside").write_bytes(b"")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link(path: Path) -> None:
    """A link to the very same bytes, which somebody else may change later."""
    elsewhere = path.parents[3] / f"moved-{path.name}"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def link_to_zeros(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def zeros(path: Path) -> None:
    """The device itself, as far as this user may make one."""
    path.unlink()
    try:
        os.mknod(path, stat.S_IFCHR | 0o644, os.makedev(1, 5))
    except PermissionError:
        import pytest

        pytest.skip("only root makes device nodes")


DAMAGES: tuple[Callable[[Path], None], ...] = (
    overwritten, cut, emptied, removed, folder, pipe, link, link_to_zeros, zeros,
)  # fmt: skip


# Death at a moment -----------------------------------------------------------------------------------------------

# What changes a file system, as it is called by the interpreter.
_CHANGES = frozenset(
    ("open", "mkdir", "rename", "replace", "unlink", "remove", "rmdir", "chmod", "link", "symlink", "write", "fsync")
)


@contextlib.contextmanager
def _at_changes(act: Callable[[], None], *events: str) -> Iterator[None]:
    """Act before and after each call by which this thread changes the file system."""

    def seen(frame: FrameType, event: str, arg: Any) -> None:
        if event in (events or ("c_call", "c_return")) and arg.__name__ in _CHANGES:
            act()

    sys.setprofile(seen)
    try:
        yield
    finally:
        sys.setprofile(None)


@contextlib.contextmanager
def moments_counted(into: Path) -> Iterator[None]:
    """Count the moments that `dying` may be given, and write their number to a file."""
    count = [0]

    def act() -> None:
        count[0] += 1

    with _at_changes(act):
        yield
    into.write_text(str(count[0]))


@contextlib.contextmanager
def dying(moment: int, signal: int) -> Iterator[None]:
    """Die by a signal at a moment: between two changes of the file system."""
    left = [moment]

    def act() -> None:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal)

    with _at_changes(act):
        yield


@contextlib.contextmanager
def failing(place: int, number: int) -> Iterator[Callable[[], bool]]:
    """Have one change of the file system fail; tells whether there were so many."""
    left = [place]

    def act() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(number, os.strerror(number))  # after which Python asks no more

    with _at_changes(act, "c_call"):
        yield lambda: left[0] < 0


# Other processes -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def meeting(folder: Path, number: int) -> Iterator[None]:
    """Before it publishes, a process waits until that many are about to."""
    from onegraph.graph_cache.store import Store

    really = Store.publish

    def publish(*args: Any) -> Any:
        folder.mkdir(exist_ok=True)
        (folder / str(os.getpid())).touch()
        wait_until(lambda: len([*folder.iterdir()]) >= number, pause=0.001)
        return really(*args)

    with _replaced(Store, "publish", publish):
        yield


@contextlib.contextmanager
def stopping_to_load(folder: Path) -> Iterator[None]:
    """In the midst of loading a graph a process stops until it is told to `go_on`."""
    from onegraph.graph_cache.crash.markers import Markers

    really = Markers.loading

    @contextlib.contextmanager
    def loading(markers: Markers, entry: Path) -> Iterator[None]:
        with really(markers, entry):
            (folder / "stopped").touch()
            wait_until((folder / "go on").exists, pause=0.01)
            yield

    with _replaced(Markers, "loading", loading):
        yield


def wait_until_stopped(folder: Path) -> None:
    """Wait for a process that is `stopping_to_load`."""
    wait_until((folder / "stopped").exists, pause=0.01)


def go_on(folder: Path) -> None:
    """Wake a process that is `stopping_to_load`."""
    (folder / "go on").touch()


# Faults of the system --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _replaced(owner: object, name: str, value: object) -> Iterator[None]:
    really = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, really)


@contextlib.contextmanager
def folders_not_synced(number: int) -> Iterator[None]:
    """Folders cannot be synced, as on some network mounts."""
    really = os.fsync

    def fsync(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(number, os.strerror(number))
        really(handle)

    with _replaced(os, "fsync", fsync):
        yield


@contextlib.contextmanager
def nothing_saved(below: Path, number: int = errno.ENOSPC) -> Iterator[None]:
    """Files below a folder cannot be written out: a full disk that tells so late, or one that is failing."""
    really = os.fsync

    def fsync(handle: int) -> None:
        if Path(f"/proc/self/fd/{handle}").resolve().is_relative_to(below):
            raise OSError(number, os.strerror(number))
        really(handle)

    with _replaced(os, "fsync", fsync):
        yield


@contextlib.contextmanager
def clock(seconds: float) -> Iterator[None]:
    """The system's clock is off by so many seconds."""
    now, now_ns = time.time, time.time_ns
    with (
        _replaced(time, "time", lambda: now() + seconds),
        _replaced(time, "time_ns", lambda: now_ns() + int(seconds * 1e9)),
    ):
        yield


@contextlib.contextmanager
def disk(folder: Path, size: int, *options: str) -> Iterator[Path]:
    """A disk of so many bytes in an empty folder; skips the test where this user may not mount one."""
    command = ["mount", "-t", "tmpfs", "-o", ",".join([f"size={size}", "mode=755", *options]), "tmpfs", str(folder)]
    with mounted(command, folder):
        yield folder


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nobody can write below a folder; skips the test where this user may not mount it so."""
    with mounted(["mount", "--bind", str(folder), str(folder)], folder):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
        yield


@contextlib.contextmanager
def mounted(command: list[str], folder: Path) -> Iterator[None]:
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        import pytest

        pytest.skip("only root mounts disks")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path, left: int) -> Path:
    """Fill a disk until so many bytes are left; the file that does."""
    path = folder / "filler"
    with path.open("wb") as file:
        while (free := shutil.disk_usage(folder).free) > left:
            file.write(bytes(min(free - left, 1 << 20)))
            file.flush()
    return path
