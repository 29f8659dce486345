"""Several graphs at once: kinds of blocks are compiled side by side, each in a process of its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from ...common import container
from ...common.refused import Refused
from ...compiler.process.progress import Progress
from ..graphs.loaded_graph import LoadedGraph
from ..obtain.compiles import OnProgress
from ..obtain.registry import registry
from ..request import Request, WhenMissing

_POLL_SECONDS = 0.1


class _Stopped(Exception):
    """The user interrupted another of these compiles."""


def obtain_all(
    requests: Sequence[Request], when_missing: WhenMissing, on_progress: OnProgress
) -> list[LoadedGraph | Refused]:
    """Obtain graphs as `Registry.obtain` does, as many at once as there are cores.

    Args:
        on_progress: called in this thread, with the progress of the slowest; what it raises stops all compiles and
            goes through.
    """
    latest: dict[int, Progress] = {}
    stopped = threading.Event()

    def obtain(number: int) -> LoadedGraph | Refused:
        def follow(progress: Progress) -> None:
            latest[number] = progress
            if stopped.is_set():
                raise _Stopped

        obtained = registry().obtain(requests[number], when_missing, follow)
        latest.pop(number, None)
        return obtained

    with ThreadPoolExecutor(min(len(requests), container.cores()), "onegraph-blocks") as pool:
        futures = [pool.submit(obtain, number) for number in range(len(requests))]
        try:
            while wait(futures, timeout=_POLL_SECONDS).not_done:
                slowest = max(latest.copy().values(), key=lambda one: one.remaining, default=None)
                if slowest is not None:
                    on_progress(slowest)
        except BaseException:
            stopped.set()
            for future in futures:
                future.cancel()
            raise
        return [future.result() for future in futures]
