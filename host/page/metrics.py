"""GET /onegraph/metrics: counters of this process and of the disk, in Prometheus' text format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from ...backends import cuda_graphs
from ...graph_cache.disk import report
from ...runtime.counters import RESTORE_BOUNDS, RestoreTimes
from ...runtime.obtain.registry import registry
from .answers import Text
from .graphs import all_graphs
from .models import NoFields

CONTENT_TYPE = "text/plain"
_UNIT = "onegraph_"


def read(fields: NoFields) -> Text:
    """GET metrics."""
    return Text("\n".join(_lines()) + "\n", CONTENT_TYPE)


def _lines() -> Iterator[str]:
    graphs, counters, disk = registry(), registry().counters, registry().store.disk
    yield from _one("compiles_total", "counter", "Graphs compiled by this process.", counters.compiles)
    yield from _one("hits_total", "counter", "Graphs found in the store and restored.", counters.restores)
    yield from _one("fetches_total", "counter", "Graphs fetched from remote stores.", counters.fetches)
    yield from _one("preloads_total", "counter", "Graphs restored before their first call.", counters.preloads)
    misses = counters.misses.copy()
    yield from _labelled(
        "misses_total", "counter", "Graphs asked for and not to be had from the store.", "code", misses
    )
    yield from _one("compiled_calls_total", "counter", "Calls by graphs.", counters.compiled_calls)
    replayed = cuda_graphs.counters.replayed_calls
    yield from _one("replayed_calls_total", "counter", "Calls by graphs, replayed as CUDA graphs.", replayed)
    eager: Counter[str] = Counter()
    for reason, calls in counters.reasons.copy().items():
        eager[reason.code] += calls
    yield from _labelled("eager_calls_total", "counter", "Calls without a graph.", "code", eager)
    yield from _histogram("restore_seconds", "Seconds to restore a graph.", counters.restore_times)
    status = graphs.status()
    yield from _one("compiling", "gauge", "Compiles under way.", len(status["compiling"]))
    yield from _one("deferred_compiles", "gauge", "Compiles that wait for memory.", status["deferred_compiles"])
    yield from _one("captured_bytes", "gauge", "Device memory that CUDA graphs hold.", status["captured_bytes"])
    totals = report.totals(disk, all_graphs())
    yield from _labelled("graphs", "gauge", "Graphs on the disk by their state.", "state", totals.states)
    yield from _one("disk_bytes", "gauge", "Bytes of all graphs.", totals.bytes)
    yield from _one("budget_used_bytes", "gauge", "Bytes that count for the budget.", totals.bytes)
    limit = "+Inf" if totals.budget_bytes is None else totals.budget_bytes
    yield from _one("budget_bytes", "gauge", "Bytes that graphs may take.", limit)
    yield from _one("list_scans_total", "counter", "Lists that had to read graphs anew.", disk.reads)


def _metric(name: str, kind: str, text: str, rows: Iterable[tuple[str, int | str]]) -> Iterator[str]:
    """A metric: what it is, and its values by what follows its name."""
    yield f"# HELP {_UNIT}{name} {text}"
    yield f"# TYPE {_UNIT}{name} {kind}"
    for suffix, value in rows:
        yield f"{_UNIT}{name}{suffix} {value}"


def _one(name: str, kind: str, text: str, value: int | str) -> Iterator[str]:
    return _metric(name, kind, text, [("", value)])


def _labelled(name: str, kind: str, text: str, label: str, counts: Mapping[str, int]) -> Iterator[str]:
    rows = ((f'{{{label}="{_escaped(value)}"}}', count) for value, count in sorted(counts.items()))
    return _metric(name, kind, text, rows)


def _histogram(name: str, text: str, times: RestoreTimes) -> Iterator[str]:
    counts = [*accumulate(times.counts)]
    buckets = zip((*map(str, RESTORE_BOUNDS), "+Inf"), counts, strict=True)
    rows = [(f'_bucket{{le="{bound}"}}', count) for bound, count in buckets]
    return _metric(name, "histogram", text, [*rows, ("_sum", f"{times.seconds:.6f}"), ("_count", counts[-1])])


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
