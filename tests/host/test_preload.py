"""Graphs preloaded as soon as the node runs, in a thread: the first call finds them, and nothing else changes.

The pack does so on GPUs only; here the CPU counts as one.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from headless import host
from headless.standstill import PATIENCE

from onegraph.backends.inductor import InductorRunner
from onegraph.compiler.process import ready_workers
from onegraph.host import families
from onegraph.host.calls import model_hook as hook
from onegraph.host.calls.component import NodeComponent
from onegraph.host.calls.vae import hook as vae_hook
from onegraph.runtime.counters import Counters
from onegraph.runtime.graphs.faithfulness import relative_l2
from onegraph.runtime.graphs.loaded_graph import LoadedGraph
from onegraph.runtime.obtain import likely_compile
from onegraph.runtime.obtain.registry import Registry
from onegraph.runtime.policy import ANY_SPEED

from .conftest import NODE, compiled, node_text

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture(autouse=True)
def preload_here(fresh_process: Registry, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(likely_compile, "_ROOM", 0)  # whatever else needs the machine's memory meanwhile
    fresh_process.policy = replace(ANY_SPEED, preload_on=("cpu",), preload_room=0)
    ready_workers.end_all()
    yield
    ready_workers.end_all()


def test_the_first_call_finds_a_loaded_and_warm_graph(model: Any, counters: Counters, fresh_process: Registry) -> None:
    fast = compiled(model)
    host.wait_for_preloads()
    assert (counters.preloads, counters.restores, counters.binds, counters.compiled_calls) == (1, 1, 0, 0)
    (graph,) = fresh_process.graphs()
    assert graph.fresh and graph._runners.first.binding is None
    assert relative_l2(host.sample(fast), host.sample(model)) < 1e-4
    assert (counters.restores, counters.compiles, counters.eager_calls) == (1, 0, 0)
    assert node_text().startswith("restored in "), node_text()
    host.wait_for_preloads()
    assert counters.preloads == 1


def test_a_preload_and_all_calls_share_a_thread(
    model: Any, counters: Counters, fresh_process: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What torch keeps for each thread is warm at the first call."""
    fresh_process.policy = replace(fresh_process.policy, one_thread_on=("cpu",))
    threads: list[str] = []
    run = InductorRunner._run

    def noted(self: InductorRunner, *inputs: torch.Tensor) -> Any:
        threads.append(threading.current_thread().name)
        return run(self, *inputs)

    monkeypatch.setattr(InductorRunner, "_run", noted)
    fast = compiled(model)
    host.wait_for_preloads()
    assert counters.preloads == 1 and len(threads) == 1
    assert relative_l2(host.sample(fast), host.sample(model)) < 1e-4
    assert (counters.restores, counters.eager_calls) == (1, 0)
    assert len(threads) == 1 + counters.compiled_calls and set(threads) == {"onegraph-calls-cpu_0"}


def test_a_preload_is_of_the_workflows_size(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, ...]] = []
    warm = LoadedGraph.warm

    def noted(self: LoadedGraph, inputs: tuple[torch.Tensor, ...], modules: int = 1) -> None:
        shapes.append(tuple(inputs[0].shape))
        warm(self, inputs, modules)

    monkeypatch.setattr(LoadedGraph, "warm", noted)
    from comfy_execution.graph import DynamicPrompt

    latent = {"class_type": "EmptyLatentImage", "inputs": {"width": 320, "height": 256, "batch_size": 1}}
    node = {"class_type": "OneGraphCompileModel", "inputs": {"model": ["1", 0]}}
    loader = {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "none.safetensors"}}
    hook.compile_model(model, hook.ModelNodeOptions(), NODE, DynamicPrompt({NODE: node, "1": loader, "3": latent}))
    host.wait_for_preloads()
    assert shapes == [(2, 4, 32, 40)]


def test_the_first_call_may_come_while_it_goes_on(
    model: Any, counters: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm, begun, go_on = LoadedGraph.warm, threading.Event(), threading.Event()

    def slow(self: LoadedGraph, inputs: tuple[torch.Tensor, ...], modules: int = 1) -> None:
        begun.set()
        go_on.wait()
        warm(self, inputs, modules)

    monkeypatch.setattr(LoadedGraph, "warm", slow)
    fast = compiled(model)
    assert begun.wait(PATIENCE)
    # A process that ends now waits for the thread, or the mark of a graph that took it down would stay behind.
    assert [t.daemon for t in threading.enumerate() if t.name.startswith("onegraph-preload")] == [False]
    result = host.sample(fast)
    go_on.set()
    host.wait_for_preloads()
    assert relative_l2(result, host.sample(model)) < 1e-4
    assert relative_l2(host.sample(fast), host.sample(model)) < 1e-4  # the late warm-up did not touch the binding
    assert (counters.restores, counters.compiles, counters.eager_calls) == (1, 0, 0)


def test_a_graph_that_cannot_warm_up_loads_later(
    model: Any, counters: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: LoadedGraph, inputs: tuple[torch.Tensor, ...], modules: int = 1) -> None:
        raise torch.OutOfMemoryError("none left")

    monkeypatch.setattr(LoadedGraph, "warm", fails)
    fast = compiled(model)
    host.wait_for_preloads()
    assert relative_l2(host.sample(fast), host.sample(model)) < 1e-4
    assert (counters.preloads, counters.restores, counters.eager_calls) == (0, 1, 0)


@pytest.mark.parametrize("options", [{"shapes": "exact"}, {"backend": "off"}, {"backend": "oneflow"}])
def test_only_what_is_surely_needed_is_preloaded(options: dict[str, Any], model: Any, counters: Counters) -> None:
    compiled(model, **options)
    host.wait_for_preloads()
    assert (counters.preloads, counters.restores) == (0, 0)


def test_nothing_is_preloaded_where_memory_is_short(model: Any, counters: Counters, fresh_process: Registry) -> None:
    fresh_process.policy = replace(fresh_process.policy, preload_room=1 << 60)
    compiled(model)
    host.wait_for_preloads()
    assert (counters.preloads, counters.restores) == (0, 0)


def test_a_model_without_a_graph_is_not_compiled_early(checkpoint: Callable[..., Path], counters: Counters) -> None:
    _, at_once = hook.compile_model(host.load(checkpoint("tiny_refiner")), hook.ModelNodeOptions(), NODE)
    host.wait_for_preloads()
    assert at_once.startswith("ready: ")
    assert (counters.preloads, counters.compiles) == (0, 0)
    assert ready_workers.waiting() == 1  # a compile is likely


def test_no_process_waits_where_memory_is_short(
    checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(likely_compile, "_ROOM", 1 << 60)
    hook.compile_model(host.load(checkpoint("tiny_refiner")), hook.ModelNodeOptions(), NODE)
    host.wait_for_preloads()
    assert ready_workers.waiting() == 0


@pytest.mark.parametrize("options", [{"when_missing": "eager"}, {"backend": "oneflow"}])
def test_no_process_waits_where_nothing_will_be_compiled_by_inductor(
    options: dict[str, Any], checkpoint: Callable[..., Path]
) -> None:
    hook.compile_model(host.load(checkpoint("tiny_refiner")), hook.ModelNodeOptions(**options), NODE)
    host.wait_for_preloads()
    assert ready_workers.waiting() == 0


def test_a_model_whose_graph_is_there_needs_no_process(model: Any, counters: Counters) -> None:
    compiled(model)
    host.wait_for_preloads()
    assert (counters.preloads, ready_workers.waiting()) == (1, 0)


def test_what_goes_wrong_does_not_reach_the_queue(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> None:
        raise RuntimeError("unknown host")

    monkeypatch.setattr(NodeComponent, "request", fails)
    assert hook.compile_model(model, hook.ModelNodeOptions(), NODE)[1].startswith("ready: ")


@pytest.mark.usefixtures("vae_compiled_once")
def test_a_vaes_graphs_are_preloaded_too(
    checkpoint: Callable[..., Path], counters: Counters, fresh_process: Registry
) -> None:
    vae = host.load_vae(checkpoint(vae="both"))
    latent = torch.randn(1, 4, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        vae_hook.compile_vae(vae, vae_hook.VaeNodeOptions(), NODE)[0].decode(latent)  # leaves a graph in the store
    host.wait_for_preloads()  # this node began one, too
    fresh_process.close()
    counters.preloads = counters.restores = counters.compiles = 0
    fast = vae_hook.compile_vae(vae, vae_hook.VaeNodeOptions(dynamic_resolution="any size"), NODE)[0]
    host.wait_for_preloads()
    assert (counters.preloads, counters.restores) == (1, 1)
    with torch.inference_mode():
        assert relative_l2(fast.decode(latent), vae.decode(latent)) < 1e-4
    assert (counters.restores, counters.compiles, counters.eager_calls) == (1, 0, 0)
    vae_hook.compile_vae(vae, vae_hook.VaeNodeOptions(dynamic_resolution="each size"), NODE)
    host.wait_for_preloads()
    assert counters.preloads == 1


def test_a_model_changed_after_preload_is_not_served(model: Any, counters: Counters) -> None:
    fast, plain = compiled(model, when_missing="eager"), host.sample(model)
    host.wait_for_preloads()
    assert counters.preloads == 1
    for module in model.model.diffusion_model.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.padding_mode = "circular"
    reference = host.sample(model)
    assert relative_l2(reference, plain) > 0.005
    assert torch.equal(host.sample(fast), reference)
    assert counters.compiled_calls == 0


@pytest.mark.parametrize("kind", ["model", "decoder"])
def test_a_model_without_an_example_is_compiled_all_the_same(
    kind: str, model: Any, checkpoint: Callable[..., Path], counters: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loader of another pack leaves out what a usual call is read from: the node must not raise."""

    def lacks(*args: Any) -> Any:
        raise AttributeError("context_dim")

    for family in (*families.MODELS, families.DECODER):
        monkeypatch.setattr(type(family), "example", lacks)
    if kind == "model":
        assert relative_l2(host.sample(compiled(model)), host.sample(model)) < 1e-4
    else:
        text = vae_hook.compile_vae(host.load_vae(checkpoint(vae="both")), vae_hook.VaeNodeOptions(), NODE)[1]
        assert text.startswith("ready"), text
    assert (counters.preloads, counters.eager_calls) == (0, 0)


def test_a_models_garbage_is_not_collected_in_our_thread(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host reads its list of loaded models meanwhile, and raises on one that is just being collected."""
    warm, collected = LoadedGraph.warm, []

    class Cycle:
        def __init__(self) -> None:
            self.me = self

    def busy(self: LoadedGraph, inputs: tuple[torch.Tensor, ...], modules: int = 1) -> None:
        garbage = [Cycle() for _ in range(3)]
        for one in garbage:
            weakref.finalize(one, lambda: collected.append(threading.current_thread().name)).atexit = False
        del garbage, one
        kept = [[number] for number in range(200_000)]  # each is one that a collection looks at
        assert kept and not gc.isenabled()
        warm(self, inputs, modules)

    monkeypatch.setattr(LoadedGraph, "warm", busy)
    compiled(model)
    host.wait_for_preloads()
    assert not [name for name in collected if name.startswith("onegraph-preload")]
    assert gc.isenabled()
    gc.collect()
    assert len(collected) == 3
