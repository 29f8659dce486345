"""Several graphs at once: kinds of blocks are compiled side by side, each in a process of its own."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

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
        on_progress: called in this thread, with the progress of all together; what it raises stops all compiles and
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

    workers, began, share = min(len(requests), container.cores()), time.perf_counter(), 0.0
    with ThreadPoolExecutor(workers, "onegraph-blocks") as pool:
        futures = [pool.submit(obtain, number) for number in range(len(requests))]
        try:
            while wait(futures, timeout=_POLL_SECONDS).not_done:
                under_way = [*latest.copy().values()]
                if under_way:
                    done = sum(future.done() for future in futures)
                    now = _together(under_way, done, len(requests), workers, time.perf_counter() - began)
                    share = max(share, now.share)  # one that has ended is for a moment neither done nor under way
                    on_progress(replace(now, share=share))
        except BaseException:
            stopped.set()
            for future in futures:
                future.cancel()
            raise
        return [future.result() for future in futures]


def _together(under_way: Sequence[Progress], done: int, of: int, workers: int, seconds: float) -> Progress:
    """The progress of all of some compiles: those that wait for a worker will take as long as the slowest now."""
    slowest = max(under_way, key=lambda one: one.remaining)
    turns = math.ceil(max(0, of - done - len(under_way)) / workers)
    remaining = slowest.remaining + turns * (slowest.seconds + slowest.remaining)
    share = (done + sum(one.share for one in under_way)) / of
    return Progress(slowest.stage, seconds, share, remaining, any(one.late for one in under_way))
