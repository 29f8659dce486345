"""UNet and VAE of `benchmarks/gpu.py`: eager, compiled for one size and for any size, through the pack's own engine."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_common import (
    CONTEXT_WIDTH,
    LABEL_WIDTH,
    Bench,
    OutOfTime,
    graph_replay,
    kernels,
    median_ms,
    peak_bytes,
    synchronize,
)
from gpu_profile import GpuMemory

TOKENS = 77
OTHER_CALLS = (  # width, height, tokens, batch: what one graph for any size also serves
    (512, 512, 77, 2),
    (768, 768, 77, 2),
    (1152, 896, 77, 2),
    (1024, 1024, 154, 2),
    (1024, 1024, 77, 1),
    (1024, 1024, 77, 4),
)


def inputs(device: str, dtype: Any, width: int, height: int, tokens: int, batch: int) -> list[Any]:
    """x, timesteps, context and y of one UNet call; sizes in pixels."""
    import torch

    generator = torch.Generator(device).manual_seed(width + height + tokens + batch)

    def randn(*shape: int) -> Any:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    return [
        randn(batch, 4, height // 8, width // 8),
        torch.full((batch,), 500.0, device=device),
        randn(batch, tokens, CONTEXT_WIDTH),
        randn(batch, LABEL_WIDTH),
    ]


def recorded(run: Callable[[], Any]) -> Any:
    """What the pack asks its engine for during `run`, which is answered with a refusal, so that it goes on eager."""
    from onegraph.compiler import engine
    from onegraph.compiler.shapes import Refused

    asked: list[Any] = []

    class Recorder(engine.Engine):
        def obtain(self, request: Any, when_missing: Any, watch: Any) -> Any:
            asked.append(request)
            return Refused("the benchmark only listens")

    before, engine._engine = engine._engine, Recorder()
    try:
        run()
    finally:
        engine._engine = before
    return asked[0] if asked else None


@dataclass
class Compile:
    """One request on its way through an engine of its own (an engine compiles one graph at a time)."""

    name: str
    request: Any
    engine: Any
    graph: Any = None
    seconds: float = 0.0
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
            from onegraph.compiler.shapes import Refused

            try:
                self.graph = self.engine.obtain(self.request, "wait", watch)
            except OutOfTime:
                self.graph = Refused(f"stopped in {current[0]}: out of time")
            except Exception as error:
                self.graph = Refused(f"{type(error).__name__}: {error}")
            self.seconds = time.perf_counter() - begun
            if current[0]:
                self.stages.setdefault(current[0], round(time.perf_counter() - current[1], 2))

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def _keep_log(self, log: Path) -> None:
        """The worker's output lies in its staging folder, which goes with it."""
        wanted = (self.request.key.component, self.request.shapes.to_json())
        for place in self.engine.store.places(self.request.source):
            for found in place.glob(".staging-*/job.json"):
                with contextlib.suppress(OSError, ValueError):
                    job = json.loads(found.read_text())
                    if (job["component"], job["shapes"]) == wanted:
                        log.write_bytes((found.parent / "compile.log").read_bytes())

    @property
    def refused(self) -> str | None:
        return None if self.graph is not None and hasattr(self.graph, "call") else getattr(self.graph, "reason", "?")


class Part:
    """What the UNet and the VAE have in common."""

    def __init__(self, bench: Bench, key: str, module: Any) -> None:
        self.bench = bench
        self.key = key
        self.module = module
        self.compiles: dict[str, Compile] = {}

    def before(self) -> None:
        """Eager, on a quiet machine, and how far it is from float32."""
        raise NotImplementedError

    def after(self) -> None:
        """What the compiled graphs give."""
        raise NotImplementedError

    def add(self, name: str, request: Any) -> None:
        from onegraph.compiler.engine import Engine
        from onegraph.graph_cache.store import Store

        if request is None:
            self.bench.put(self.key, **{f"{name}_refused": "the pack asked for no graph; see refusal"})
            return
        self.compiles[name] = Compile(name, request, Engine(Store(self.bench.work / "home")))

    def call(self, name: str, given: list[Any], sizes: dict[str, int], eager: Callable[[], Any]) -> Callable[[], Any]:
        """The compiled call as the pack makes it: with its check that every weight still is where it was."""
        from onegraph.compiler.shapes import Refused

        compile_ = self.compiles[name]

        def run() -> Any:
            result = compile_.graph.call(self.module, tuple(given), sizes, eager, compile_.engine.counters)
            if isinstance(result, Refused):
                raise RuntimeError(result.reason)
            if result.note:
                raise RuntimeError(result.note)
            return result.output

        return run

    def runner(self, name: str, given: list[Any]) -> Callable[[], Any]:
        """The graph alone, bound to the weights by an earlier call."""
        runner = self.compiles[name].graph._runner
        return lambda: runner(*given)

    def first(self, name: str, given: list[Any], sizes: dict[str, int], eager: Callable[[], Any]) -> Any:
        """The first call, which the pack compares with eager: its output and how to call from now on, or None."""
        call = self.call(name, given, sizes, eager)
        try:
            output = call()
        except RuntimeError as error:
            self.bench.put(self.key, **{f"{name}_failed": str(error)})
            return None
        graph = self.compiles[name].graph
        self.bench.put(self.key, **{f"{name}_first_use": graph.outcome.model_dump()})
        slower = graph.slower()
        if slower is None:
            return output, call
        self.bench.put(self.key, **{f"{name}_refused": slower})
        return output, self.runner(name, given)

    def usable(self, name: str) -> bool:
        """Record how the compile went; whether there is a graph."""
        compile_ = self.compiles.get(name)
        if compile_ is None:
            return False
        short = name.removesuffix("_size")
        if compile_.refused is not None:
            self.bench.put(self.key, **{f"{name}_refused": compile_.refused, f"{name}_stages": compile_.stages})
            return False
        manifest = compile_.graph.entry.manifest
        self.bench.put(
            self.key,
            **{
                f"compile_{short}_s": manifest.compile_seconds,
                f"{name}_origin": compile_.graph.origin,
                f"{name}_obtain_s": round(compile_.seconds, 3),
                f"{name}_stages": compile_.stages,
                f"{name}_bytes": compile_.graph.entry.bytes,
            },
        )
        return True

    def kernels(self, calls: dict[str, Callable[[], Any]]) -> None:
        """Where the GPU's time goes, kernel by kernel."""
        if self.bench.device != "cuda":
            return
        found = {name: kernels(call) for name, call in calls.items() if not name.endswith("_runner")}
        self.bench.put(self.key, kernels=found)
        for name, rows in found.items():
            self.bench.say(f"{self.key} {name}: {rows[0]['ms']} ms in {rows[0]['calls']} kernels")


class Unet(Part):
    def __init__(self, bench: Bench) -> None:
        import comfy.model_management
        import torch
        from support import host

        from onegraph.compiler.verify import relative_l2
        from onegraph.host import serve
        from onegraph.host import unet as hook

        started = time.perf_counter()
        self.patcher = host.load(bench.checkpoint)
        comfy.model_management.load_models_gpu([self.patcher], force_full_load=True)
        synchronize()
        super().__init__(bench, bench.unet_key, self.patcher.model.diffusion_model)
        weight = next(self.module.parameters())
        bench.say(f"UNet in {weight.dtype} on {weight.device}, loaded in {time.perf_counter() - started:.1f} s")
        self.dtype = self.patcher.model.get_dtype_inference()
        side = bench.side
        self.given = inputs(bench.device, self.dtype, side, side, TOKENS, 2)
        self.sizes = {"batch": 2, "height": side // 8, "width": side // 8, "context": TOKENS}
        self.relative_l2 = relative_l2
        run = serve.start_run(self.patcher, self.module, "diffusion_model.")
        bench.put(self.key, refusal=run.refusal, weights=str(weight.dtype), inputs=str(self.dtype))
        for name, shapes in (("any_size", "any size"), ("exact", "exact")):
            hooked = hook.compile_model(self.patcher, hook.Options(shapes=shapes), f"ask-{name}")[0]  # type: ignore[arg-type]
            self.add(name, recorded(functools.partial(host.sample, hooked, height=side, width=side, steps=1)))
            bench.put(self.key, **{f"{name}_answer": dict(serve.last_runs[f"ask-{name}"].eager)})
        self.torch = torch

    def eager(self, given: list[Any] | None = None) -> Any:
        return self.module(*(given or self.given), control=None, transformer_options={})

    def before(self) -> None:
        bench = self.bench
        bench.put(self.key, eager_ms=median_ms({"eager": self.eager}, bench.rounds)["eager"])
        peak, base = peak_bytes(self.eager)
        self.eager_peak = (peak, base)
        self.reference = self._in_float32()
        bench.put(self.key, rel_l2_eager=self.relative_l2(self.eager(), self.reference))
        bench.put(self.key, output_std=float(self.reference.std()))
        if bench.device == "cuda":
            try:
                replay = graph_replay(self.eager)
                bench.put(self.key, eager_graph_ms=median_ms({"replay": replay}, bench.rounds)["replay"])
            except Exception as error:
                bench.put(self.key, eager_graph_failed=f"{type(error).__name__}: {str(error)[:200]}")

    def _in_float32(self) -> Any:
        exact = copy.deepcopy(self.module).float()
        exact.dtype = self.torch.float32
        result = exact(*(t.float() for t in self.given), control=None, transformer_options={})
        del exact
        if self.bench.device == "cuda":
            self.torch.cuda.empty_cache()
        return result

    def after(self) -> None:
        bench = self.bench
        calls: dict[str, Callable[[], Any]] = {"eager": self.eager}
        for name in ("exact", "any_size"):
            if not self.usable(name):
                continue
            first = self.first(name, self.given, self.sizes, self.eager)
            if first is None:
                continue
            output, call = first
            suffix = "" if name == "exact" else "_any"
            bench.put(
                self.key,
                **{
                    f"rel_l2{suffix}": self.relative_l2(output, self.reference),
                    f"rel_l2{suffix}_to_eager": self.relative_l2(output, self.eager()),
                },
            )
            peak, base = peak_bytes(call)
            if self.eager_peak[0]:
                above = (self.eager_peak[0] - self.eager_peak[1]) or 1
                bench.put(
                    self.key,
                    **{
                        f"peak_vram_ratio{suffix}": round(peak / self.eager_peak[0], 3),
                        f"activations_ratio{suffix}": round((peak - base) / above, 3),
                    },
                )
            calls[name] = call
            calls[f"{name}_runner"] = self.runner(name, self.given)
        times = median_ms(calls, bench.rounds)
        bench.put(self.key, **{f"{name}_ms": value for name, value in times.items()})
        self.kernels(calls)
        for name in ("exact", "any_size"):
            if f"{name}_runner" not in calls or bench.device != "cuda":
                continue
            try:
                replay = graph_replay(calls[f"{name}_runner"])
                bench.put(self.key, **{f"{name}_graph_ms": median_ms({"replay": replay}, bench.rounds)["replay"]})
            except Exception as error:
                bench.put(self.key, **{f"{name}_graph_failed": f"{type(error).__name__}: {str(error)[:200]}"})
        if "any_size" in calls:
            self._other_calls()
        self._sample()

    def _other_calls(self) -> None:
        rows: list[dict[str, Any]] = []
        rounds = max(3, self.bench.rounds // 3)
        for width, height, tokens, batch in OTHER_CALLS:
            if self.bench.side < 1024:  # a rehearsal on a small machine
                width, height = width * self.bench.side // 1024, height * self.bench.side // 1024
            given = inputs(self.bench.device, self.dtype, width, height, tokens, batch)
            sizes = {"batch": batch, "height": height // 8, "width": width // 8, "context": tokens}

            def eager(given: list[Any] = given) -> Any:
                return self.eager(given)

            row: dict[str, Any] = {"call": f"{width}x{height}, {tokens} tokens, batch {batch}"}
            try:
                call = self.call("any_size", given, sizes, eager)
                row["rel_l2_to_eager"] = self.relative_l2(call(), eager())
                row |= median_ms({"eager": eager, "any_size": call}, rounds, 2)
                if self.bench.device == "cuda":
                    replay = graph_replay(self.runner("any_size", given))
                    row |= median_ms({"any_size_graph": replay}, rounds, 2)
            except RuntimeError as error:
                row["failed"] = str(error)
            rows.append(row)
            self.bench.say(f"any size: {row}")
        self.bench.put(self.key, other_calls=rows)

    def _sample(self) -> None:
        """ComfyUI's own sampling with the node's hook against without: latents compared, time of a long run."""
        from support import host

        from onegraph.compiler.engine import engine
        from onegraph.host import serve
        from onegraph.host import unet as hook

        side = self.bench.side
        settings: dict[str, Any] = {"height": side, "width": side}

        def seconds(model: Any) -> float:
            """Two runs of 4 and of 24 steps: what one step costs, without what a run costs."""
            spent = []
            for steps in (4, 24):
                synchronize()
                started = time.perf_counter()
                host.sample(model, steps=steps, **settings)
                synchronize()
                spent.append(time.perf_counter() - started)
            found["runs_s"].append([round(value, 4) for value in spent])
            return round(1e3 * (spent[1] - spent[0]) / 20, 3)

        found: dict[str, Any] = {"runs_s": []}
        plain = host.sample(self.patcher, steps=4, **settings)
        other = host.sample(self.patcher, seed=2, steps=4, **settings)
        found["rel_l2_of_another_seed"] = self.relative_l2(other, plain)
        found["eager_step_ms"] = seconds(self.patcher)
        for name, shapes in (("any_size", "any size"), ("exact", "exact")):
            options = hook.Options(shapes=shapes, when_missing="eager")  # type: ignore[arg-type]
            compiled, said = hook.compile_model(self.patcher, options, "bench")
            first = host.sample(compiled, steps=4, **settings)
            second = host.sample(compiled, steps=4, **settings)
            found |= {
                f"{name}_said": said,
                f"{name}_rel_l2": self.relative_l2(first, plain),
                f"{name}_same_again": bool((first == second).all()),
                f"{name}_step_ms": seconds(compiled),
                f"{name}_report": serve.last_runs["bench"].to_json(),
            }
        found["eager_step_ms_again"] = seconds(self.patcher)
        counters = engine().counters
        found |= {"compiled_calls": counters.compiled_calls, "eager_calls": counters.eager_calls}
        self.bench.say(f"sampling: {found}")
        self.bench.put(self.key, sample=found)


class Vae(Part):
    def __init__(self, bench: Bench) -> None:
        import comfy.model_management
        import torch
        from support import host

        from onegraph.compiler.verify import relative_l2
        from onegraph.host import vae as hook
        from onegraph.host.serve import start_run

        self.vae = host.load_vae(bench.checkpoint)
        comfy.model_management.load_models_gpu([self.vae.patcher], force_full_load=True)
        super().__init__(bench, bench.vae_key, self.vae.first_stage_model)
        latent = bench.side // 8
        generator = torch.Generator(bench.device).manual_seed(5)
        self.latents = torch.randn(1, 4, latent, latent, generator=generator, device=bench.device)
        self.given = [self.latents.to(self.vae.vae_dtype)]
        self.sizes = {"height": latent, "width": latent}
        self.relative_l2 = relative_l2
        run = start_run(self.vae.patcher, self.module, "")
        bench.put(self.key, refusal=run.refusal, dtype=str(self.vae.vae_dtype))
        for name, rule in (("any_size", "any size"), ("exact", "each size")):
            hooked = hook.compile_vae(self.vae, hook.Options(dynamic_resolution=rule), f"ask-{name}")[0]  # type: ignore[arg-type]
            self.add(name, recorded(functools.partial(hooked.decode, self.latents)))

    def eager(self) -> Any:
        return self.module.decode(self.given[0])

    def before(self) -> None:
        bench = self.bench
        bench.put(self.key, eager_ms=median_ms({"eager": self.eager}, bench.rounds)["eager"])
        self.eager_peak = peak_bytes(self.eager)
        exact = copy.deepcopy(self.module).float()
        self.reference = exact.decode(self.given[0].float())
        del exact
        bench.put(self.key, rel_l2_eager=self.relative_l2(self.eager(), self.reference))

    def after(self) -> None:
        bench = self.bench
        calls: dict[str, Callable[[], Any]] = {"eager": self.eager}
        for name in ("exact", "any_size"):
            if not self.usable(name):
                continue
            first = self.first(name, self.given, self.sizes, self.eager)
            if first is None:
                continue
            output, call = first
            suffix = "" if name == "exact" else "_any"
            bench.put(
                self.key,
                **{
                    f"rel_l2{suffix}": self.relative_l2(output, self.reference),
                    f"rel_l2{suffix}_to_eager": self.relative_l2(output, self.eager()),
                },
            )
            peak = peak_bytes(call)[0]
            if self.eager_peak[0]:
                bench.put(self.key, **{f"peak_vram_ratio{suffix}": round(peak / self.eager_peak[0], 3)})
            calls[name] = call
        times = median_ms(calls, bench.rounds)
        bench.put(self.key, **{f"{name}_ms": value for name, value in times.items()})
        self.kernels(calls)
        served = [
            name for name in ("any_size", "exact") if name in times and f"{name}_refused" not in bench.result[self.key]
        ]
        for best in served[:1]:
            short = best.removesuffix("_size")
            section = bench.result[self.key]
            bench.put(self.key, compiled_ms=times[best], compile_s=section[f"compile_{short}_s"])
        self._decode()

    def _decode(self) -> None:
        """ComfyUI's own decode with the node's copy of the VAE against without: pixels compared."""
        from onegraph.host import serve
        from onegraph.host import vae as hook

        plain = self.vae.decode(self.latents)
        compiled, said = hook.compile_vae(self.vae, hook.Options(when_missing="eager"), "bench_vae")
        image = compiled.decode(self.latents)
        difference = (255 * (image - plain).abs()).float()
        found = {
            "node_said": said, "report": serve.last_runs["bench_vae:decoder"].to_json(),
            "largest_difference_of_255": round(float(difference.max()), 2),
            "mean_difference_of_255": round(float(difference.mean()), 4),
        }  # fmt: skip
        self.bench.say(f"decode: {found}")
        self.bench.put(self.key, decode=found)


KINDS: dict[str, type[Unet] | type[Vae]] = {"unet": Unet, "vae": Vae}


def compile_all(bench: Bench, parts: list[Part], reserve: float) -> None:
    """Start every compile at once, each in its own process; wait for all of them or for the time to run out."""
    import torch

    waiting = [c for part in parts for c in part.compiles.values()]
    logs = bench.out.parent
    for part in parts:
        for compile_ in part.compiles.values():
            kind = "unet" if isinstance(part, Unet) else "vae"
            compile_.start(bench.deadline - reserve, logs / f"compile-{kind}-{compile_.name}.log")
    told = time.monotonic()
    least_free = None
    memory = GpuMemory() if bench.device == "cuda" else None
    while any(c.thread is not None and c.thread.is_alive() for c in waiting):
        time.sleep(0.2)
        if bench.device == "cuda":
            free = torch.cuda.mem_get_info()[0]
            least_free = free if least_free is None else min(free, least_free)
        if time.monotonic() - told > 30:
            told = time.monotonic()
            alive = [f"{c.request.key.component} {c.name}" for c in waiting if c.thread and c.thread.is_alive()]
            bench.say(f"compiling: {', '.join(alive)}; load {os.getloadavg()[0]:.1f}")
    if least_free is not None:
        total = torch.cuda.mem_get_info()[1]
        bench.put("compiling", vram_in_use_at_most_gb=round((total - least_free) / 1e9, 2))
    if memory is not None:
        bench.put("compiling", vram_of_processes_mib=memory.stop())
    for compile_ in waiting:
        state = compile_.refused or compile_.graph.origin
        bench.say(f"{compile_.request.key.component} {compile_.name}: {state}, {compile_.seconds:.1f} s")
