"""What `benchmarks/gpu` measures of each component alike: eager, compiled for any size and for one size."""

from __future__ import annotations

import copy
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .common import (
    Bench,
    always_replayed,
    give_back,
    graph_replay,
    kernels,
    median_ms,
    never_replayed,
    peak_bytes,
    replayed_ms,
    tflop,
)
from .compile import Compile, recorded

NAMES = ("any_size", "exact")
# The node's default has the plain names: `compile_s` is any size's, `compile_exact_s` the other's.
SUFFIX = {"any_size": "", "exact": "_exact"}


@dataclass(frozen=True)
class Call:
    """What a component is asked for: pixels, images at once, tokens of the prompt (0 for a VAE)."""

    width: int
    height: int
    batch: int = 1
    tokens: int = 0


class Component(ABC):
    """One component: what it costs eager, and what each of its graphs makes of that.

    Attributes:
        name: in the grid of calls.
        key: of its section in the result.
        main: the call that is looked at closely.
        grid: the calls that the graph for any size is timed with.
    """

    def __init__(self, bench: Bench, name: str, key: str, module: Any, main: Call, grid: tuple[Call, ...]) -> None:
        from onegraph.runtime.graphs.faithfulness import relative_l2

        self.bench = bench
        self.name = name
        self.key = key
        self.module = module
        self.main = main
        self.grid = grid
        self.given = self.inputs(main)
        self.relative_l2 = relative_l2
        self.compiles: dict[str, Compile] = {}
        self.put = functools.partial(bench.put, key)

    @abstractmethod
    def inputs(self, call: Call) -> list[Any]:
        """Seeded inputs of a call, as a graph takes them."""

    @abstractmethod
    def sizes(self, call: Call) -> dict[str, int]:
        """The call's sizes, as a graph's shape range names them."""

    @abstractmethod
    def run(self, module: Any, given: list[Any]) -> Any:
        """The call without a graph, by `module`."""

    @abstractmethod
    def in_comfyui(self) -> None:
        """ComfyUI's own way of using the component, with the node against without."""

    def eager(self, given: list[Any] | None = None) -> Any:
        return self.run(self.module, self.given if given is None else given)

    def ask(self, name: str, run: Callable[[], Any], report: str) -> None:
        """Keep the request that the pack makes in `run`; `report` is the run's in the pack's own records."""
        from onegraph.graph_cache.store import Store
        from onegraph.host.show import status
        from onegraph.runtime.obtain.registry import Registry
        from onegraph.runtime.policy import ANY_SPEED

        request = recorded(run)
        if request is None:
            self.put(**{f"{name}_refused": status.last_runs[report].text()})
            return
        self.compiles[name] = Compile(name, request, Registry(Store(self.bench.work / "home"), policy=ANY_SPEED))

    def before(self) -> None:
        """Eager, on a quiet machine, and how far it is from float32."""
        self.put(eager_ms=median_ms({"eager": self.eager}, self.bench.rounds)["eager"])
        self.eager_peak = peak_bytes(self.eager)
        exact: Any = copy.deepcopy(self.module).float()
        exact.dtype = self._float32()
        self.reference = self.run(exact, [t.float() for t in self.given])
        del exact
        error = self.relative_l2(self.eager(), self.reference)
        self.put(rel_l2_eager=error, output_std=float(self.reference.std()), tflop=tflop(self.eager))
        if self.bench.device != "cuda":
            return
        give_back()
        try:
            replay = graph_replay(self.eager)
            self.put(eager_graph_ms=median_ms({"replay": replay}, self.bench.rounds)["replay"])
        except Exception as error_:
            self.put(eager_graph_failed=f"{type(error_).__name__}: {str(error_)[:200]}")

    @staticmethod
    def _float32() -> Any:
        import torch

        return torch.float32

    def after(self) -> None:
        """What the compiled graphs give."""
        calls: dict[str, Callable[[], Any]] = {"eager": self.eager}
        with never_replayed():
            for name in NAMES:
                call = self._checked(name)
                if call is not None:
                    calls[name] = call
            times = median_ms(calls, self.bench.rounds)
            self.put(**{f"{name}_ms": value for name, value in times.items()})
            self._kernels(calls)
        for name in NAMES:
            if name in calls and self.bench.device == "cuda":
                self._replayed(name, calls[name])
        if "any_size" in calls:
            for wanted in self.grid:
                if self.bench.left() < 15:
                    self.put(grid_stopped=f"before {wanted}: out of time")
                    break
                self._row(wanted)
        self.in_comfyui()

    def _checked(self, name: str) -> Callable[[], Any] | None:
        """Record how the compile went, and the first call, which the pack compares with eager; how to call it."""
        compile_, suffix = self.compiles.get(name), SUFFIX[name]
        if compile_ is None:
            return None
        self.put(**{f"{name}_stages": compile_.stages})
        if compile_.refused is not None:
            self.put(**{f"{name}_refused": compile_.refused})
            return None
        entry = compile_.graph.entry
        seconds = {f"compile{suffix}_s": round(entry.manifest.compile_seconds, 2)}
        if compile_.graph.origin == "compiled":
            seconds[f"compile{suffix}_beside_others"] = compile_.neighbours
        files = entry.manifest.files
        sizes = {f"artifact{suffix}_bytes": sum(one.bytes for one in files.values())}
        self.put(**seconds, **sizes, **{f"artifact{suffix}_files": len(files)})
        call = self.call(name, self.given, self.main)
        try:
            output = call()
        except RuntimeError as error:
            self.put(**{f"{name}_failed": str(error)})
            return None
        errors = {f"rel_l2{suffix}": self.relative_l2(output, self.reference)}
        errors[f"rel_l2{suffix}_to_eager"] = self.relative_l2(output, self.eager())
        self.put(**errors, **{f"{name}_first_use": compile_.graph.first_use.result.model_dump()})
        peak, base = peak_bytes(call)
        if peak:
            above = (self.eager_peak[0] - self.eager_peak[1]) or 1
            ratios = {f"peak_vram_ratio{suffix}": peak / self.eager_peak[0]}
            ratios[f"activations_ratio{suffix}"] = (peak - base) / above
            self.put(**{key: round(value, 3) for key, value in ratios.items()})
        return call

    def call(self, name: str, given: list[Any], call: Call) -> Callable[[], Any]:
        """A compiled call as the pack makes it: with its check that every weight still is where it was."""
        from onegraph.common.refused import Refused

        compile_, sizes = self.compiles[name], self.sizes(call)

        def eager(*inputs: Any) -> Any:
            return self.eager([*inputs])

        def run() -> Any:
            result = compile_.graph.call(self.module, tuple(given), sizes, eager, compile_.engine.counters)
            if isinstance(result, Refused):
                raise RuntimeError(result.text)
            if result.refusal:
                raise RuntimeError(result.refusal.code)
            return result.output

        return run

    def _kernels(self, calls: dict[str, Callable[[], Any]]) -> None:
        """Where the GPU's time goes, kernel by kernel."""
        if self.bench.device != "cuda":
            return
        found = {name: kernels(call) for name, call in calls.items()}
        self.put(kernels=found)
        for name, rows in found.items():
            self.bench.say(f"{self.key} {name}: {rows[0]['ms']} ms in {rows[0]['calls']} kernels")

    def _replayed(self, name: str, call: Callable[[], Any]) -> None:
        """The same call as a replayed CUDA graph, also where the pack finds that it does not pay; what that holds."""
        compile_, suffix = self.compiles[name], SUFFIX[name]
        try:
            with always_replayed():
                spent = replayed_ms(call, self.bench.rounds)
            error, held = self.relative_l2(call(), self.reference), compile_.graph.held_bytes
        except RuntimeError as failed:
            self.put(**{f"replay{suffix}_failed": str(failed)})
            return
        if spent is None:
            self.put(**{f"replay{suffix}_refused": "this call could not be recorded"})
            return
        compile_.engine.release_captures(compile_.request.device, "freed")  # in the grid the pack decides
        self.put(**{f"replay{suffix}_ms": spent, f"rel_l2_replay{suffix}": error, f"replay{suffix}_holds_bytes": held})

    def _row(self, wanted: Call) -> None:
        """One call of the grid: eager and any size in turns, then any size replayed, where the pack does that."""
        rounds = max(3, self.bench.rounds // 3)
        given = self.inputs(wanted)
        eager, call = functools.partial(self.eager, given), self.call("any_size", given, wanted)
        row: dict[str, Any] = {"part": self.name, **vars(wanted)}
        try:
            with never_replayed():
                row["rel_l2_to_eager"] = self.relative_l2(call(), eager())
                times = median_ms({"eager": eager, "any_size": call}, rounds, 2)
            row |= {"eager_ms": times["eager"], "any_size_ms": times["any_size"]}
            spent = replayed_ms(call, rounds) if self.bench.device == "cuda" else None
            if spent is not None:
                row |= {"replayed_ms": spent, "rel_l2_replayed_to_eager": self.relative_l2(call(), eager())}
        except RuntimeError as error:
            row["failed"] = str(error)
        if wanted == self.main:
            section = self.bench.result[self.key]
            row |= {f"{name}_ms": section[f"{name}_ms"] for name in ("eager_graph", "exact") if f"{name}_ms" in section}
        self.bench.put_call(row)
