"""Compiling for `benchmarks/gpu`: what the pack asks its registry for, and all of it compiled at once."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .common import Bench, OutOfTime
from .profile import GpuMemory


class _Heard(BaseException):
    """Ends the run that asked; like a user's interrupt it goes through the hooks, so that nothing runs eager."""


def recorded(run: Callable[[], Any]) -> Any:
    """What the pack asks its registry for in `run`, which ends there; None when it runs to its end without asking."""

    asked: list[Any] = []

    from onegraph.runtime.obtain.registry import Registry, using

    class Recorder(Registry):
        def obtain(self, request: Any, when_missing: Any, watch: Any) -> Any:
            asked.append(request)
            raise _Heard

    with using(Recorder()), contextlib.suppress(_Heard):
        run()
    return asked[0] if asked else None


@dataclass
class Compile:
    """One request on its way through a registry of its own (one compiles one graph at a time)."""

    name: str
    request: Any
    engine: Any
    graph: Any = None
    seconds: float = 0.0
    neighbours: int = 0  # compiles that went on beside it
    stages: dict[str, float] = field(default_factory=dict)
    thread: threading.Thread | None = None

    def start(self, deadline: float, log: Path) -> None:
        """In a thread. At the deadline the compiling process is stopped; `log` keeps what it printed."""
        begun = time.perf_counter()
        current: list[Any] = ["", begun]
        copied = [begun]

        def watch(progress: Any) -> None:
            now = time.perf_counter()
            if progress.stage != current[0]:
                if current[0]:
                    self.stages[current[0]] = round(now - current[1], 2)
                current[:] = [progress.stage, now]
            if now - copied[0] > 2:
                copied[0] = now
                self._keep_log(log)
            if time.monotonic() > deadline:
                self.stages[f"{progress.stage} (stopped)"] = round(now - current[1], 2)
                raise OutOfTime(self.name)

        def run() -> None:
            from onegraph.common.reasons import CompileFailed
            from onegraph.common.refused import Refused

            try:
                self.graph = self.engine.obtain(self.request, "wait", watch)
            except OutOfTime:
                self.graph = Refused(CompileFailed(f"stopped in {current[0]}: out of time"))
            except Exception as error:
                self.graph = Refused(CompileFailed(f"{type(error).__name__}: {error}"))
            self.seconds = time.perf_counter() - begun
            if current[0]:
                self.stages.setdefault(current[0], round(time.perf_counter() - current[1], 2))

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def _keep_log(self, log: Path) -> None:
        """The worker's output lies in its private folder, which goes with it."""
        from onegraph.graph_cache.layout import STAGING_FOLDER

        wanted = (self.request.key.component, self.request.shapes.to_json())
        for found in (self.engine.store.private.folder / STAGING_FOLDER).glob("*/job.json"):
            with contextlib.suppress(OSError, ValueError):
                job = json.loads(found.read_text())
                if (job["component"], job["shapes"]) == wanted:
                    log.write_bytes((found.parent / "compile.log").read_bytes())

    @property
    def under_way(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    @property
    def refused(self) -> str | None:
        """Why there is no graph, or None."""
        from onegraph.runtime.graphs.loaded_graph import LoadedGraph

        return None if isinstance(self.graph, LoadedGraph) else getattr(self.graph, "text", "never started")


def compile_at_once(bench: Bench, named: Mapping[str, Compile], deadline: float) -> None:
    """Start every compile, by the name of its graph, in a process of its own; wait for all of them or the deadline."""
    import torch

    begun = told = time.monotonic()
    for name, compile_ in named.items():
        compile_.start(deadline, bench.out.parent / f"compile-{name.replace(' ', '-')}.log")
        compile_.neighbours = len(named) - 1
    on_gpu = bench.device == "cuda"
    least_free = None
    memory = GpuMemory() if on_gpu else None
    while any(compile_.under_way for compile_ in named.values()):
        time.sleep(0.2)
        if on_gpu:
            free = torch.cuda.mem_get_info()[0]
            least_free = free if least_free is None else min(free, least_free)
        if time.monotonic() - told > 30:
            told = time.monotonic()
            alive = [name for name, compile_ in named.items() if compile_.under_way]
            bench.say(f"compiling: {', '.join(alive)}; load {os.getloadavg()[0]:.1f}")
    row: dict[str, Any] = {"graphs": list(named), "seconds": round(time.monotonic() - begun, 1)}
    if least_free is not None:
        row["vram_in_use_at_most_gb"] = round((torch.cuda.mem_get_info()[1] - least_free) / 1e9, 2)
    if memory is not None:
        row["vram_of_processes_mib"] = memory.stop()
    bench.put("compiling", rows=[*bench.result.get("compiling", {}).get("rows", []), row])
    for name, compile_ in named.items():
        bench.say(f"{name}: {compile_.refused or compile_.graph.origin}, {compile_.seconds:.1f} s")
