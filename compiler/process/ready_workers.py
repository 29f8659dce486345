"""Compiling processes that wait for a job: started when a compile is likely, with torch's compiler imported by then.

That takes 5 to 10 s of every compile, for which users wait, and so does starting the processes that compile kernels.
Meanwhile a workflow encodes its prompt and reads weights. A process that waits uses no GPU and takes 0.7 GiB of memory.
It ends when this one does, or when no compile comes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

MOST = 2  # kinds of blocks that most models have
IDLE_SECONDS = 300.0
WAIT = "--wait"

_lock = threading.Lock()
_waiting: list[ReadyWorker] = []


@dataclass(eq=False)
class ReadyWorker:
    """A process that waits.

    Attributes:
        environment, import_path: of this process when it was started, which decide what it has imported.
    """

    process: subprocess.Popen[bytes]
    environment: dict[str, str]
    import_path: list[str]
    since: float

    @property
    def is_usable(self) -> bool:
        """Whether it would import the same now."""
        same = self.environment == dict(os.environ) and self.import_path == _import_path()
        return same and self.process.poll() is None

    def begin(self, staging: Path, scratch: str) -> subprocess.Popen[bytes] | None:
        """Have it compile the job of a staging folder, with `scratch` for temporary files; None if it has died."""
        try:
            self._tell({"staging": str(staging), "scratch": scratch})
        except OSError:
            self.end()
            return None
        return self.process

    def end(self) -> None:
        """End it, with what it has started. One that has ended already may have left its number to another."""
        if os.name == "posix" and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _tell(self, line: dict[str, object]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write((json.dumps(line) + "\n").encode())
        self.process.stdin.flush()


def start(count: int, device: str, cache: Path, idle_seconds: float = IDLE_SECONDS) -> None:
    """Have so many processes wait, `MOST` at most, those that wait already included. Never raises OSError.

    Args:
        device: for which they will probably compile. They start what its compiles need.
        cache: folder for what compilers share between compiles, where the user chose none.
    """
    with _lock:
        _end_unusable()
        before = len(_waiting)
        for _ in range(min(count, MOST) - before):
            with contextlib.suppress(OSError):
                _waiting.append(_started(device, cache))
        if len(_waiting) > before:
            timer = threading.Timer(idle_seconds, _end_idle, [idle_seconds])
            timer.daemon = True
            timer.start()


def take() -> ReadyWorker | None:
    """Return a process that waits and whose job will come at once; None: there is none."""
    with _lock:
        _end_unusable()
        return _waiting.pop(0) if _waiting else None


def waiting() -> int:
    """Return how many wait."""
    with _lock:
        return len(_waiting)


def end_all() -> None:
    """End those that wait."""
    with _lock:
        while _waiting:
            _waiting.pop().end()


def _import_path() -> list[str]:
    return [path for path in sys.path if path]


def _started(device: str, cache: Path) -> ReadyWorker:
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("worker.py")), WAIT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=os.name == "posix",
    )
    worker = ReadyWorker(process, dict(os.environ), _import_path(), time.monotonic())
    worker._tell({"import_path": worker.import_path, "device": device, "cache": str(cache)})
    return worker


def _end_unusable() -> None:
    for one in [*_waiting]:
        if not one.is_usable:
            _waiting.remove(one)
            one.end()


def _end_idle(seconds: float) -> None:
    with _lock:
        for one in [*_waiting]:
            if time.monotonic() - one.since >= seconds:
                _waiting.remove(one)
                one.end()
