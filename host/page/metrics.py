"""GET /onegraph/metrics: counters of this process and of the disk, in Prometheus' text format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate

from ...backends import cuda_graphs
from ...graph_cache.disk import report
from ...runtime.counters import RESTORE_BOUNDS, RestoreTimes
from ...runtime.obtain.registry import registry
from .answers import Text
from .graphs import all_graphs
from .models import Nothing

CONTENT_TYPE = "text/plain"
_UNIT = "onegraph_"


def read(asked: Nothing) -> Text:
    """GET metrics."""
    return Text("\n".join(_lines()) + "\n", CONTENT_TYPE)


def _lines() -> Iterator[str]:
    graphs, counters, disk = registry(), registry().counters, registry().store.disk
    yield from _one("compiles_total", "counter", "Graphs compiled by this process.", counters.compiles)
    yield from _one("hits_total", "counter", "Graphs found in the store and restored.", counters.restores)
    yield from _one("fetches_total", "counter", "Graphs fetched from remote stores.", counters.fetches)
    yield from _one("preloads_total", "counter", "Graphs restored before their first call.", counters.preloads)
    yield from _by_code("misses_total", "Graphs asked for and not to be had from the store.", counters.misses.copy())
    yield from _one("compiled_calls_total", "counter", "Calls by graphs.", counters.compiled_calls)
    replayed = cuda_graphs.counters.replayed_calls
    yield from _one("replayed_calls_total", "counter", "Calls by graphs, replayed as CUDA graphs.", replayed)
    eager: Counter[str] = Counter()
    for reason, calls in counters.reasons.copy().items():
        eager[reason.code] += calls
    yield from _by_code("eager_calls_total", "Calls without a graph.", eager)
    yield from _histogram("restore_seconds", "Seconds to restore a graph.", counters.restore_times)
    status = graphs.status()
    yield from _one("compiling", "gauge", "Compiles under way.", len(status["compiling"]))
    yield from _one("deferred_compiles", "gauge", "Compiles that wait for memory.", status["deferred_compiles"])
    yield from _one("captured_bytes", "gauge", "Device memory that CUDA graphs hold.", status["captured_bytes"])
    totals = report.totals(disk, all_graphs())
    yield f"# HELP {_UNIT}graphs Graphs on the disk by their state."
    yield f"# TYPE {_UNIT}graphs gauge"
    for state, count in sorted(totals["states"].items()):
        yield f'{_UNIT}graphs{{state="{_escaped(state)}"}} {count}'
    yield from _one("disk_bytes", "gauge", "Bytes of all graphs.", totals["bytes"])
    yield from _one("budget_used_bytes", "gauge", "Bytes that count for the budget.", totals["bytes"])
    limit = totals["budget_bytes"]
    yield from _one("budget_bytes", "gauge", "Bytes that graphs may take.", "+Inf" if limit is None else limit)
    yield from _one("list_scans_total", "counter", "Lists that had to read graphs anew.", disk.reads)


def _one(name: str, kind: str, text: str, value: int | str) -> Iterator[str]:
    yield f"# HELP {_UNIT}{name} {text}"
    yield f"# TYPE {_UNIT}{name} {kind}"
    yield f"{_UNIT}{name} {value}"


def _by_code(name: str, text: str, counts: Mapping[str, int]) -> Iterator[str]:
    yield f"# HELP {_UNIT}{name} {text}"
    yield f"# TYPE {_UNIT}{name} counter"
    for code, count in sorted(counts.items()):
        yield f'{_UNIT}{name}{{code="{_escaped(code)}"}} {count}'


def _histogram(name: str, text: str, times: RestoreTimes) -> Iterator[str]:
    yield f"# HELP {_UNIT}{name} {text}"
    yield f"# TYPE {_UNIT}{name} histogram"
    counts = [*accumulate(times.counts)]
    for bound, count in zip((*map(str, RESTORE_BOUNDS), "+Inf"), counts, strict=True):
        yield f'{_UNIT}{name}_bucket{{le="{bound}"}} {count}'
    yield f"{_UNIT}{name}_sum {times.seconds:.6f}"
    yield f"{_UNIT}{name}_count {counts[-1]}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
