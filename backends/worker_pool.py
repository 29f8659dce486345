"""Several processes that compile one graph: each has all of it at hand and takes the next part that nobody took."""

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


class Crew:
    """This process's place among them: with helpers it leads and waits for them, else it is alone or helps itself.

    Args:
        folder: seen by all of them, empty at first.
        helpers: processes that this one started to take jobs from the same folder.
        copies: how many copies of this process help, made when there is work; on Linux only, for other systems'
            libraries do not survive it. Not where it uses a GPU, which a copy cannot. A copy has none of its threads.
        in_copy: called in each of them first.
        announce: told the sizes of the jobs, by the names of their files, by the one who leads.
    """

    def __init__(
        self,
        folder: Path,
        helpers: Sequence[subprocess.Popen[bytes]] = (),
        leads: bool = True,
        copies: int = 0,
        in_copy: Callable[[], object] = lambda: None,
        announce: Callable[[Mapping[str, float]], object] = lambda sizes: None,
    ) -> None:
        self.leads = leads
        self._folder = folder
        self._helpers = helpers
        self._copies = copies if sys.platform == "linux" else 0
        self._in_copy = in_copy
        self._announce = announce

    @property
    def workers(self) -> int:
        """How many processes work on the graph."""
        return 1 + len(self._helpers) + self._copies

    @property
    def has_helpers(self) -> bool:
        """Whether other processes wait for something to do."""
        return bool(self._helpers)

    def dismiss(self) -> None:
        """End the helpers, for there is nothing to share."""
        for helper in self._helpers:
            helper.kill()
            helper.wait()
        self._helpers = ()

    def work(self, jobs: Mapping[str, Callable[[], None]], sizes: Mapping[str, float] | None = None) -> None:
        """Have every job done once. A job's name is the file in `folder` that is there as soon as it is done.

        A helper returns when nothing is left to take, the leader when all files are there. What helpers took and did
        not finish, because they died or failed, the leader does itself.

        Args:
            sizes: how much each job is of the whole, where that is known.
        """
        if self.leads and sizes:
            self._announce(sizes)
        copies = [self._copy(jobs) for _ in range(min(self._copies, len(jobs) - 1))]
        self._take_all(jobs)
        if not self.leads:
            return
        for name, job in jobs.items():
            while not (self._folder / name).exists():
                if any(helper.poll() is None for helper in self._helpers) or any(map(_is_at_work, copies)):
                    time.sleep(_POLL_SECONDS)
                elif not (self._folder / name).exists():  # the last helper may have finished it just now
                    job()

    def _take_all(self, jobs: Mapping[str, Callable[[], None]]) -> None:
        for name, job in jobs.items():
            if self._take(name):
                job()

    def _take(self, name: str) -> bool:
        try:
            os.close(os.open(self._folder / f"{name}.taken", os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return False
        return True

    def _copy(self, jobs: Mapping[str, Callable[[], None]]) -> int:
        """A copy of this process that does jobs and ends, by its process id; 0 where the system refuses."""
        with contextlib.suppress(OSError):
            copy = os.fork()
            if copy:
                return copy
            code = 1
            try:
                self._in_copy()
                self._take_all(jobs)
                code = 0
            except BaseException:  # whatever happens, a copy never goes on as its leader
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
