"""Memory on a GPU: what captured CUDA graphs hold and when they let go, a call without memory, what a compile takes."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from headless import host, models, server

from .conftest import BOUNDS, LORA, Compiles, another_engine, compiled, load, node_text
from .images import txt2img
from .test_unet import MANY, Calls, run

SMALL = 2 << 20


@pytest.fixture
def calls(base: Path, unet_graph: Callable[[torch.dtype], None], engine: Any) -> Calls:
    unet_graph(torch.float16)
    return Calls(load(base, torch.float16))


def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def test_calls_are_replayed_from_the_third_step_on(calls: Calls, engine: Any) -> None:
    from onegraph.backends import cuda_graphs

    fast = compiled(calls.model)
    run(fast, steps=2)  # whatever a first use on this machine asks for
    calls.check()
    replayed = cuda_graphs.counters.replayed_calls
    run(fast, steps=MANY, height=320)
    calls.check()
    # The first is made, the second is made and captured.
    assert cuda_graphs.counters.replayed_calls - replayed == MANY - 2
    assert engine.captured_bytes(device()) > 0
    assert ", CUDA graphs hold " in node_text(), node_text()


def test_another_process_captures_without_a_trial(calls: Calls, engine: Any, environment: dict[str, str]) -> None:
    from onegraph.backends import cuda_graphs
    from onegraph.runtime.obtain.registry import using

    run(compiled(calls.model), steps=MANY, height=384)
    calls.check()
    trials, captures = cuda_graphs.counters.trials, cuda_graphs.counters.captures
    assert trials > 0
    with using(another_engine(environment)) as other:
        run(compiled(calls.model), steps=MANY, height=384)
        calls.check()
        assert other.captured_bytes(device()) > 0
    assert (cuda_graphs.counters.trials, cuda_graphs.counters.captures) == (trials, captures + 1)


def test_unloading_everything_frees_captures(calls: Calls, engine: Any) -> None:
    import comfy.model_management as management

    fast = compiled(calls.model)
    run(fast, steps=MANY, height=1024, width=1024)
    calls.check()
    held = engine.captured_bytes(device())
    assert held > 0
    names = [type(one.model.model).__name__ for one in management.current_loaded_models]
    assert "OneGraphCudaGraphs" in names
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    management.unload_all_models()
    assert (engine.captured_bytes(), management.current_loaded_models) == (0, [])
    assert torch.cuda.mem_get_info()[0] - free > held // 2
    run(fast, steps=MANY)
    calls.check()
    assert engine.counters.eager_calls == 0


def test_captures_are_freed_before_a_model_has_to_go(calls: Calls, engine: Any) -> None:
    import comfy.model_management as management

    def loaded() -> list[str]:
        return sorted(type(one.model.model).__name__ for one in management.current_loaded_models)

    fast = compiled(calls.model)
    run(fast, steps=MANY)
    calls.check()
    assert engine.captured_bytes() > 0
    models_loaded = [name for name in loaded() if name != "OneGraphCudaGraphs"]
    management.free_memory(management.get_free_memory(device()) + 1, device())
    assert engine.captured_bytes() == 0
    assert loaded() == models_loaded
    run(fast, steps=MANY)
    calls.check()
    assert engine.counters.eager_calls == 0


class Crowded:
    """A runner before whose next call all memory that this process may have is taken."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.ballast: list[torch.Tensor] = []
        self.crowd = True
        self.errors: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        if self.crowd:
            self.crowd = False
            torch.cuda.empty_cache()
            total = torch.cuda.mem_get_info()[1]
            torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 64 * SMALL) / total)
            with contextlib.suppress(torch.OutOfMemoryError):
                while True:
                    self.ballast.append(torch.empty(SMALL, dtype=torch.uint8, device="cuda"))
        try:
            result: torch.Tensor = self._runner(*inputs)
            return result
        except RuntimeError as error:
            self.errors.append(f"{type(error).__name__}: {str(error)[:200]}")
            raise


@pytest.mark.parametrize("room", ["made", "not made"])
def test_memory_that_runs_out_in_a_compiled_call(room: str, calls: Calls, engine: Any) -> None:
    from onegraph.common.reasons import MemoryRanOut
    from onegraph.compiler.export import example_inputs
    from onegraph.runtime.graphs.faithfulness import relative_l2

    run(compiled(calls.model), steps=2)
    calls.check()
    (graph,) = engine.graphs()
    unet = calls.model.model.diffusion_model
    sizes = {"batch": 2, "height": 128, "width": 128, "context": 77}
    inputs = tuple(tensor.normal_() for tensor in example_inputs(graph.shapes, sizes, device()))
    x, timesteps, context, y = inputs
    eager = unet._forward(x, timesteps, context, y, None, {})
    crowded = graph._runners.first.runner = Crowded(graph._runners.first.runner)
    made: list[int] = []

    def make_room() -> None:
        made.append(len(crowded.ballast))
        if room == "made":
            crowded.ballast.clear()

    graph._make_room = make_room
    try:
        served = graph.call(unet, inputs, sizes, lambda: eager, engine.counters)
    finally:
        crowded.ballast.clear()
        torch.cuda.set_per_process_memory_fraction(1.0)
    print(room, crowded.errors)
    assert made and made[0] > 0, "the call did not run out of memory"
    assert len(crowded.errors) == (1 if room == "made" else 2)
    if room == "not made":
        assert served.reason == MemoryRanOut(), served
        served = graph.call(unet, inputs, sizes, lambda: eager, engine.counters)
    assert relative_l2(served.output, eager) < BOUNDS[torch.float16]


def test_a_compile_stays_within_what_was_admitted(
    base: Path, compiles: Compiles, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiles.wait()  # all, for the whole GPU's memory is watched
    from onegraph.common.memory import in_words
    from onegraph.runtime.obtain import compiles as module

    taken: list[tuple[int, int]] = []
    original = module.compile_in_child

    def watched(job: Any, staging: Any, watch: Any, *rest: Any) -> Any:
        (under_way,) = engine.compiles._under_way.values()
        admitted = under_way.taken
        before, lowest = torch.cuda.mem_get_info()[0], [1 << 62]

        def sampled(progress: Any) -> None:
            lowest[0] = min(lowest[0], torch.cuda.mem_get_info()[0])
            watch(progress)

        done = original(job, staging, sampled, *rest)
        taken.append((before - lowest[0], admitted))
        return done

    monkeypatch.setattr(module, "compile_in_child", watched)
    host.sample(compiled(load(base), shapes="exact"), steps=1, height=768, width=1024)
    ((most, admitted),) = taken
    print(f"the compile took {in_words(most)} of the GPU's memory and was admitted for {in_words(admitted)}")
    assert 0 < most <= admitted, node_text()


def test_free_releases_what_captured_graphs_hold(
    base: Path, environment: dict[str, str], unet_graph: Callable[[torch.dtype], None], vae_graphs: None
) -> None:
    unet_graph(torch.float16)
    with server.running(base, host.comfyui_path(), env=environment, device=()) as running:
        running.run(txt2img(steps=12))
        running.run(txt2img(seed=2, steps=12))
        assert running.status()["captured_bytes"] > 0
        running.post("/free", {"unload_models": True, "free_memory": True})
        deadline = time.monotonic() + 60
        while running.status()["captured_bytes"]:
            assert time.monotonic() < deadline, running.status()
            time.sleep(0.2)
        result = running.run(txt2img(seed=3, steps=12))
        assert result.text("2").startswith(("compiled, ", "restored in")), result.texts


def test_loras_and_models_in_turns_hold_no_memory(base: Path, engine: Any, unet_graph: Any) -> None:
    """Without DynamicVRAM each LoRA change and each switch moves weights; a graph used to keep the ones before."""
    import comfy.model_management
    import comfy.sd
    import comfy.utils

    unet_graph(torch.float16)
    lora = comfy.utils.load_torch_file(str(base / "models/loras" / LORA))
    second = models.write_checkpoint("tiny_sdxl", base / "models/checkpoints" / "tiny_second.safetensors", seed=2)
    plain = [load(base), host.load(second, dtype=torch.float16)]

    def sampled(model: Any) -> int:
        host.sample(compiled(model), height=256, width=256, steps=1)
        gc.collect()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    def with_lora(strength: float) -> Any:
        return comfy.sd.load_lora_for_models(plain[0], None, lora, strength, 0)[0]

    before = [sampled(with_lora(0.1)), sampled(plain[1])]
    for change in range(20):
        after_lora = sampled(with_lora(0.2 + change / 20))
    for turn in range(10):
        after_switch = sampled(plain[turn % 2])
    weights = sum(p.nbytes for p in plain[0].model.diffusion_model.parameters())
    assert engine.counters.binds >= 30
    assert abs(after_lora - before[1]) < 0.2 * weights
    assert abs(after_switch - before[1]) < 0.2 * weights
    comfy.model_management.unload_all_models()
    gc.collect()
    assert torch.cuda.memory_allocated() < before[0] - 0.8 * weights
