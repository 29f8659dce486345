"""Captured CUDA graphs in the host's list of loaded models: it gets their memory whenever it asks for some.

A CPU has no captured graphs, so here a loaded graph only says that it holds some bytes.
"""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from headless import host

from onegraph.host.page import routes
from onegraph.host.weights import host_memory
from onegraph.runtime.counters import Counters
from onegraph.runtime.graphs.faithfulness import relative_l2
from onegraph.runtime.graphs.loaded_graph import LoadedGraph
from onegraph.runtime.obtain.registry import Registry

from .conftest import compiled, node_text

pytestmark = pytest.mark.usefixtures("compiled_once")

CPU = torch.device("cpu")
HELD = 64 << 20


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """Every test begins and ends with an empty list of loaded models."""
    import comfy.model_management as management

    management.unload_all_models()
    host_memory._announced.clear()
    yield
    management.unload_all_models()
    assert not [one for one in management.current_loaded_models if "Captures" in type(one).__name__]


@pytest.fixture
def fast(model: Any, fresh_process: Registry) -> Any:
    """A compiled model that ran twice; its graph holds captures, and the host knows."""
    fast = compiled(model)
    host.sample(fast)
    hold(fresh_process)
    host.sample(fast)
    assert held(fresh_process) == HELD
    return fast


def hold(engine: Registry) -> LoadedGraph:
    (graph,) = engine.graphs()
    assert graph._runners.first.runner.cuda_graphs is not None
    graph._runners.first.runner.cuda_graphs.held_bytes = HELD
    return graph


def held(engine: Registry) -> int:
    return engine.captured_bytes(CPU)


def listed() -> list[str]:
    import comfy.model_management as management

    return sorted(type(one.model.model).__name__ for one in management.current_loaded_models)


def test_what_they_hold_is_said(fast: Any) -> None:
    assert node_text().endswith(", CUDA graphs hold 64 MiB"), node_text()
    status = routes.status()
    assert status["captured_bytes"] == HELD
    assert [run["captured_bytes"] for run in status["runs"].values()] == [HELD]
    assert listed() == ["OneGraphCudaGraphs", "SDXL"]


def test_after_unloading_everything_a_run_is_right(
    fast: Any, model: Any, fresh_process: Registry, counters: Counters
) -> None:
    """As `/free` does, and the host after any error for want of memory."""
    import comfy.model_management as management

    management.unload_all_models()
    assert (held(fresh_process), listed()) == (0, [])
    assert relative_l2(host.sample(fast), host.sample(model)) < 1e-4
    assert (counters.eager_calls, listed()) == (0, ["SDXL"])
    assert "CUDA graphs" not in node_text()
    hold(fresh_process)
    host.sample(fast)
    assert "OneGraphCudaGraphs" in listed()


def test_they_go_before_any_model_does(
    fast: Any, fresh_process: Registry, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    import comfy.model_management as management

    other = host.load_vae(checkpoint(vae="both")).patcher
    management.load_models_gpu([other])
    before = listed()
    free = 100 << 30  # on a device where nothing else changes

    def free_memory(device: Any = None, torch_free_too: bool = False) -> Any:
        found = free - held(fresh_process)
        return (found, 0) if torch_free_too else found

    monkeypatch.setattr(management, "get_free_memory", free_memory)
    management.free_memory(free - HELD, CPU)
    assert (held(fresh_process), listed()) == (HELD, before)  # there is room enough
    management.free_memory(free - HELD // 2, CPU)
    assert held(fresh_process) == 0
    assert listed() == [name for name in before if name != "OneGraphCudaGraphs"]


def test_a_model_leaving_the_device_frees_captures(fast: Any, fresh_process: Registry) -> None:
    import comfy.model_management as management

    fast.detach(unpatch_all=False)  # a clone takes over
    assert held(fresh_process) == HELD
    (loaded,) = (one for one in management.current_loaded_models if one.model is fast)
    assert loaded.model_unload()
    management.current_loaded_models.remove(loaded)
    assert held(fresh_process) == 0


def test_a_model_that_runs_just_now_is_not_waited_for(fast: Any, fresh_process: Registry) -> None:
    import comfy.model_management as management

    (graph,) = fresh_process.graphs()
    with graph._lock:  # as in the midst of one of its calls
        done = threading.Thread(target=management.unload_all_models)
        done.start()
        done.join(60)
        assert not done.is_alive()
    assert held(fresh_process) == HELD
    host.sample(fast)
    assert "OneGraphCudaGraphs" in listed()


def test_captures_survive_every_use_of_the_hosts_list(
    fast: Any, model: Any, fresh_process: Registry, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each use of current_loaded_models in comfy/model_management.py, with captures listed."""
    import comfy.model_management as management

    def still_there() -> None:
        assert (held(fresh_process), listed().count("OneGraphCudaGraphs")) == (HELD, 1)

    (ours,) = (one for one in management.current_loaded_models if type(one.model.model).__name__.startswith("OneGraph"))
    assert (ours.model_memory(), ours.model_loaded_memory(), ours.model.is_dynamic()) == (HELD, HELD, False)
    assert list(management.models_for_pin_eviction(None)) == []
    assert management.free_pins(1 << 40) == 0
    management.reset_cast_buffers()
    management.cleanup_models_gc()
    management.cleanup_models()
    still_there()
    assert ours.model in management.loaded_models()
    assert ours.model not in management.loaded_models(only_currently_used=True)
    other = host.load(checkpoint(seed=2))
    management.load_models_gpu([other])
    management.load_models_gpu([other.clone()])
    management.load_models_gpu([fast.clone(), model])
    management.load_models_gpu([ours.model, fast])  # as nodes do that load again what was loaded
    still_there()
    assert not ours.is_dead()
    management.unload_model_and_clones(other)  # keeps all others
    still_there()
    clone = ours.model.clone()  # a node that clones whatever is loaded
    assert clone.model is ours.model.model
    del clone
    still_there()
    management.free_memory(1e30, CPU, keep_loaded=[one for one in management.current_loaded_models if one is not ours])
    assert (held(fresh_process), "SDXL" in listed()) == (0, True)
    hold(fresh_process)
    host.sample(fast)
    monkeypatch.setattr(management, "DISABLE_SMART_MEMORY", True)
    management.free_memory(1, CPU)
    assert (held(fresh_process), listed()) == (0, [])


def test_without_captures_nothing_is_listed(model: Any, fresh_process: Registry) -> None:
    host.sample(compiled(model))
    assert listed() == ["SDXL"]
    hold(fresh_process)
    assert host_memory.announce_captures(CPU) == HELD
    assert host_memory.announce_captures(CPU) == HELD
    assert listed() == ["OneGraphCudaGraphs", "SDXL"]
    fresh_process.release_captures(CPU, "freed")
    assert host_memory.announce_captures(CPU) == 0
    assert listed() == ["SDXL"]


def test_what_the_host_plans(model: Any, checkpoint: Callable[..., Path]) -> None:
    import comfy.model_management as management

    x = torch.zeros(2, 4, 128, 128)
    call = host_memory.call_bytes(model, x)
    assert call == int(model.model.memory_required([2, 4, 128, 128])) > 1 << 20
    management.load_models_gpu([model])
    loaded = host_memory.inference_bytes(8 << 30) + host_memory.missing_bytes(model)
    assert loaded == (8 << 30) + management.extra_reserved_memory() + max(0, model.model_size() - model.loaded_size())
    assert host_memory.inference_bytes(0) >= int(management.minimum_inference_memory())
    vae = host.load_vae(checkpoint())
    assert host_memory.call_bytes(vae.patcher, x) == 0  # its estimate is the VAE object's


def test_a_compile_on_a_gpu_hears_what_the_host_plans(
    model: Any, fresh_process: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onegraph.runtime.admission import Limits

    fresh_process.compiles.limits = Limits(applies=lambda device: True, free=lambda device: 1 << 30)
    result = host.sample(compiled(model, shapes="exact"), height=72, width=88)
    assert torch.equal(result, host.sample(model, height=72, width=88))
    assert node_text().startswith("uncompiled: compiling needs 1."), node_text()
    assert " of GPU memory beside the " in node_text()
    assert node_text().endswith(" of this run, and 1.0 GiB are free; it compiles when the queue is empty"), node_text()
    assert routes.status()["deferred_compiles"] == 1
    for place in list(fresh_process.compiles._deferred._items):
        fresh_process.compiles._deferred.take(place)


@pytest.mark.parametrize(("tasks", "idle"), [(0, True), (1, False), (None, False)])
def test_the_queue_is_idle_if_no_prompt_runs_or_waits(
    tasks: int | None, idle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = types.SimpleNamespace(get_tasks_remaining=lambda: tasks)
    server = types.SimpleNamespace(prompt_queue=queue) if tasks is not None else None
    module: Any = types.ModuleType("server")
    module.PromptServer = types.SimpleNamespace(instance=server)
    monkeypatch.setitem(sys.modules, "server", module)
    assert host_memory.queue_is_idle() is idle
