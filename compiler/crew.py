"""Several processes that compile one graph: each has all of it at hand and takes the next part that nobody took."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_POLL_SECONDS = 0.05


class Crew:
    """This process's place among them: with helpers it leads and waits for them, else it is alone or helps itself.

    Args:
        folder: seen by all of them, empty at first.
    """

    def __init__(self, folder: Path, helpers: Sequence[subprocess.Popen[bytes]] = (), leads: bool = True) -> None:
        self.leads = leads
        self._folder = folder
        self._helpers = helpers

    def work(self, jobs: Mapping[str, Callable[[], None]]) -> None:
        """Have every job done once. A job's name is the file in `folder` that is there as soon as it is done.

        A helper returns when nothing is left to take, the leader when all files are there. What helpers took and did
        not finish, because they died or failed, the leader does itself.
        """
        for name, job in jobs.items():
            if self._take(name):
                job()
        if not self.leads:
            return
        for name, job in jobs.items():
            while not (self._folder / name).exists():
                if any(helper.poll() is None for helper in self._helpers):
                    time.sleep(_POLL_SECONDS)
                elif not (self._folder / name).exists():  # the last helper may have finished it just now
                    job()

    def _take(self, name: str) -> bool:
        try:
            os.close(os.open(self._folder / f"{name}.taken", os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return False
        return True
