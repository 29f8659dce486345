"""Several processes that compile one graph: each has all of it at hand and takes the next task that nobody took."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_POLL_SECONDS = 0.05

Task = Callable[[], None]


class WorkerPool:
    """This process's part in a shared compile: the main worker, which waits for the others, or one of those.

    Args:
        folder: seen by all of them, empty at first.
        workers: processes that this one started to take tasks from the same folder.
        is_main: whether this process is the main worker.
        copies: how many copies of this process work too, made when there are tasks. On Linux only, for other systems'
            libraries do not survive it. Not where it uses a GPU, which a copy cannot. A copy has none of its threads.
        in_copy: called in each of them first.
        announce: told the sizes of the tasks, by the names of their files, by the main worker.
    """

    def __init__(
        self,
        folder: Path,
        workers: Sequence[subprocess.Popen[bytes]] = (),
        is_main: bool = True,
        copies: int = 0,
        in_copy: Callable[[], object] = lambda: None,
        announce: Callable[[Mapping[str, float]], object] = lambda sizes: None,
    ) -> None:
        self.is_main = is_main
        self._folder = folder
        self._workers = workers
        self._copies = copies if sys.platform == "linux" else 0
        self._in_copy = in_copy
        self._announce = announce

    @property
    def size(self) -> int:
        """How many processes work on the graph, the main worker included."""
        return 1 + len(self._workers) + self._copies

    @property
    def has_workers(self) -> bool:
        """Whether other processes wait for tasks."""
        return bool(self._workers)

    def dismiss(self) -> None:
        """End the workers, for there is nothing to share."""
        for worker in self._workers:
            worker.kill()
            worker.wait()
        self._workers = ()

    def run(self, tasks: Mapping[str, Task], sizes: Mapping[str, float] | None = None) -> None:
        """Have every task done once. A task's name is the file in `folder` that is there as soon as it is done.

        A worker returns when nothing is left to take, the main worker when all files are there. What workers took and
        did not finish, because they died or failed, the main worker does itself.

        Args:
            sizes: how much each task is of the whole, where that is known.
        """
        if self.is_main and sizes:
            self._announce(sizes)
        copies = [self._copy(tasks) for _ in range(min(self._copies, len(tasks) - 1))]
        self._take_all(tasks)
        if not self.is_main:
            return
        for name, task in tasks.items():
            while not (self._folder / name).exists():
                if any(worker.poll() is None for worker in self._workers) or any(map(_is_at_work, copies)):
                    time.sleep(_POLL_SECONDS)
                elif not (self._folder / name).exists():  # the last worker may have finished it just now
                    task()

    def _take_all(self, tasks: Mapping[str, Task]) -> None:
        for name, task in tasks.items():
            if self._take(name):
                task()

    def _take(self, name: str) -> bool:
        try:
            os.close(os.open(self._folder / f"{name}.taken", os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return False
        return True

    def _copy(self, tasks: Mapping[str, Task]) -> int:
        """Make a copy of this process that does tasks and ends; return its id, 0 where the system refuses."""
        with contextlib.suppress(OSError):
            copy = os.fork()
            if copy:
                return copy
            code = 1
            try:
                self._in_copy()
                self._take_all(tasks)
                code = 0
            except BaseException:  # whatever happens, a copy never goes on as the main worker
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        return 0


def _is_at_work(copy: int) -> bool:
    """Whether a child process still runs; one that was waited for does not."""
    if not copy:
        return False
    try:
        return os.waitpid(copy, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False
