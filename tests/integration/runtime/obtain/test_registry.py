from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from headless.standstill import wait_until
from support.models import toy
from support.processes import priority
from support.store.entries import rewrite

from onegraph.common.reasons import NoGraph, WaitsForChange
from onegraph.common.refused import Refused
from onegraph.compiler import skeleton
from onegraph.compiler.process import supervisor
from onegraph.compiler.process.job import Checked, ClientModule, Job, to_json
from onegraph.compiler.process.progress import Progress
from onegraph.graph_cache.layout import COMPILER_CACHE, GRAPHS_FOLDER, STAGING_FOLDER, machine_id
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust.signing import KEY_FILE
from onegraph.runtime.graphs.loaded_graph import LoadedGraph
from onegraph.runtime.obtain.registry import Registry
from onegraph.runtime.policy import ANY_SPEED, Policy


def ignore(progress: Progress) -> None:
    pass


def call(engine: Registry, graph: LoadedGraph, module: toy.Toy, *shape: int) -> torch.Tensor:
    inputs = toy.inputs(*shape)
    served = graph.call(module, inputs, toy.sizes(*inputs), module, engine.counters)
    assert not isinstance(served, Refused), served
    torch.testing.assert_close(served.output, module(*inputs))
    return served.output


def test_a_kept_graph_is_restored_without_compiling(home: Path, source: ModelSource) -> None:
    engine, module = Registry(Store(home), policy=ANY_SPEED), toy.Toy(8)
    graph = engine.obtain(toy.request(module, source), "wait", ignore)
    assert isinstance(graph, LoadedGraph)
    call(engine, graph, module)
    assert (engine.counters.compiles, engine.counters.restores, engine.counters.compiled_calls) == (0, 1, 1)


def test_two_models_take_turns_on_one_graph(home: Path, source: ModelSource) -> None:
    engine, a, b = Registry(Store(home), policy=ANY_SPEED), toy.Toy(1), toy.Toy(2)
    graph = engine.obtain(toy.request(a, source), "wait", ignore)
    assert isinstance(graph, LoadedGraph)
    for module in (a, b, a, b):
        call(engine, graph, module)
    assert engine.obtain(toy.request(b, source), "wait", ignore) is graph
    assert (engine.counters.restores, engine.counters.binds) == (1, 4)


def test_first_use_is_checked_once_per_machine(home: Path, source: ModelSource) -> None:
    engine, module, eager_calls = Registry(Store(home), policy=ANY_SPEED), toy.Toy(), []
    graph = engine.obtain(toy.request(module, source), "wait", ignore)
    assert isinstance(graph, LoadedGraph)

    def used(graph: LoadedGraph, *shape: int) -> int:
        inputs = toy.inputs(*shape)
        before = len(eager_calls)
        graph.call(
            module, inputs, toy.sizes(*inputs), lambda *given: eager_calls.append(1) or module(*given), engine.counters
        )
        return len(eager_calls) - before

    assert used(graph) >= 2  # the reference and a timed pair
    assert used(graph) == 0
    assert used(graph, 1) == 1  # a batch of one is another way through the code: compared once, not timed again
    assert set(graph.first_use.result.checked) == {"n", "batch"}
    assert graph.first_use.result.compiled_ms is not None
    again = Registry(Store(home), policy=ANY_SPEED).obtain(toy.request(module, source), "wait", ignore)
    assert isinstance(again, LoadedGraph)
    assert used(again) == used(again, 1) == 0


def test_an_unfaithful_graph_is_quarantined(home: Path, source: ModelSource) -> None:
    engine, module, inputs = Registry(Store(home), policy=ANY_SPEED), toy.Toy(), toy.inputs()
    graph = engine.obtain(toy.request(module, source), "wait", ignore)
    assert isinstance(graph, LoadedGraph)
    reference = module(*inputs) + 1  # what eager says is the truth
    served = graph.call(module, inputs, toy.sizes(*inputs), lambda *given: reference, engine.counters)
    assert not isinstance(served, Refused)
    assert torch.equal(served.output, reference)  # type: ignore[arg-type]
    assert served.refusal is not None and served.refusal.code == "first_use_failed"
    assert not graph.entry.folder.exists()
    refused = graph.call(module, inputs, toy.sizes(*inputs), lambda *given: reference, engine.counters)
    assert isinstance(refused, Refused)
    assert isinstance(engine.obtain(toy.request(module, source), "wait", ignore), Refused)
    assert engine.counters.compiles == 0


def test_three_processes_confirm_that_a_graph_is_slow(home: Path, source: ModelSource) -> None:
    module, inputs = toy.Toy(), toy.inputs(4, 32, 32)
    instant = module(*inputs)  # an eager that costs nothing
    for attempt in range(4):
        engine = Registry(Store(home))
        eager = Mock(return_value=instant)
        graph = engine.obtain(toy.request(module, source), "wait", ignore)
        assert isinstance(graph, LoadedGraph)
        served = [graph.call(module, inputs, toy.sizes(*inputs), eager, engine.counters) for _ in range(4)]
        assert [isinstance(one, Refused) for one in served] == [attempt == 3] * 3 + [True]
        assert isinstance(served[3], Refused)
        assert served[3].reason.code == "slower_than_eager"
        # References and pairs of three calls before eager is believed to be faster; in the end nothing is measured.
        assert eager.call_count == (0 if attempt == 3 else 4 + 2 + 2)


def test_another_checkpoint_starts_at_once(home: Path, tmp_path: Path) -> None:
    store, engine = Store(home), Registry(Store(home), policy=ANY_SPEED)
    other = ModelSource(None, "fedcba987654")
    graph = engine.obtain(toy.request(toy.Toy(9), other), "wait", ignore)
    assert isinstance(graph, LoadedGraph)
    assert engine.counters.compiles == 0
    assert graph.entry.folder.is_relative_to(store.graphs)


def test_background_refuses_now_and_serves_later(tmp_path: Path, source: ModelSource) -> None:
    engine, module = Registry(Store(tmp_path), policy=ANY_SPEED), toy.Toy()
    first = engine.obtain(toy.request(module, source), "background", ignore)
    assert isinstance(first, Refused) and "background" in first.text
    assert engine.compiles.in_background() == 1
    meanwhile = engine.obtain(toy.request(module, source), "background", ignore)
    assert isinstance(meanwhile, Refused) and "still compiling" in meanwhile.text
    priority.wait_for(lambda: not engine.compiles.in_background())
    graph = engine.obtain(toy.request(module, source), "background", ignore)
    assert isinstance(graph, LoadedGraph), graph
    call(engine, graph, module)
    assert engine.counters.compiles == 1
    assert engine.store.notes.read().compile_seconds == {}  # one that gives way says nothing of how long others take


def test_an_interrupted_compile_leaves_nothing(tmp_path: Path, source: ModelSource) -> None:
    class Interrupted(BaseException):
        pass

    def interrupt(progress: Progress) -> None:
        if progress.stage != "starting":
            raise Interrupted

    engine = Registry(Store(tmp_path), policy=ANY_SPEED)
    with pytest.raises(Interrupted):
        engine.obtain(toy.request(toy.Toy(), source), "wait", interrupt)
    assert [path for path in tmp_path.rglob("*.*") if path.is_file()] == [tmp_path / KEY_FILE]
    assert engine.counters.compiles == 0


def test_a_killed_compile_is_retried_once(tmp_path: Path, source: ModelSource) -> None:
    engine = Registry(Store(tmp_path), policy=ANY_SPEED)
    state = {"die": int(signal.SIGABRT)}  # after SIGKILL it depends on memory: test_admission.py
    for _ in range(2):
        told: list[Progress] = []
        refused = engine.obtain(toy.request(toy.Toy(), source, state=state), "wait", told.append)
        assert isinstance(refused, Refused)
        assert "was killed (SIGABRT)" in refused.text
        assert told
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {f"{machine_id()}-notes.json", COMPILER_CACHE, GRAPHS_FOLDER, STAGING_FOLDER, KEY_FILE}
    assert [*tmp_path.glob(f"{GRAPHS_FOLDER}/*"), *tmp_path.glob(f"{STAGING_FOLDER}/*")] == []
    for again in (engine, Registry(Store(tmp_path), policy=ANY_SPEED)):
        told = []
        refused = again.obtain(toy.request(toy.Toy(), source, state=state), "wait", told.append)
        assert isinstance(refused, Refused) and isinstance(refused.reason, WaitsForChange)
        assert told == []  # the third time no process was started, also not by a new one


def test_a_model_that_cannot_be_captured_says_so_once(tmp_path: Path, source: ModelSource) -> None:
    engine, told = Registry(Store(tmp_path), policy=ANY_SPEED), list[Progress]()
    request = toy.request(toy.Fixed(), source)
    refused = engine.obtain(request, "wait", ignore)
    assert isinstance(refused, Refused)
    assert "could not be captured" in refused.text
    for again in (engine, Registry(Store(tmp_path), policy=ANY_SPEED)):
        known = again.obtain(request, "wait", told.append)
        assert isinstance(known, Refused) and isinstance(known.reason, WaitsForChange)
        assert known.reason.because == refused.reason
    assert told == []


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "manifest"])
def test_a_damaged_graph_is_set_aside_and_recompiled(damage: str, home: Path, source: ModelSource) -> None:
    entry = next(Store(home).entries())
    file = entry.folder / ("manifest.json" if damage == "manifest" else "graph.aoti")
    data = file.read_bytes()
    if damage == "remove":
        file.unlink()
    elif damage == "flip":
        file.write_bytes(data[:5000] + bytes([data[5000] ^ 1]) + data[5001:])
    else:
        file.write_bytes(data[: len(data) // 2])
    engine = Registry(Store(home), policy=ANY_SPEED)
    refused = engine.obtain(toy.request(toy.Toy(), source), "wait", ignore)
    assert isinstance(refused, Refused)
    assert "damaged" in refused.text
    assert not entry.folder.exists()
    assert engine.obtain(toy.request(toy.Toy(), source), "eager", ignore) == Refused(NoGraph())


def test_a_graph_is_preloaded_once_and_stays_unbound(home: Path, source: ModelSource) -> None:
    engine, module = Registry(Store(home), policy=ANY_SPEED), toy.Toy(3)
    for _ in range(2):
        engine.preloads.run(toy.request(module, source), 0)
    counters = engine.counters
    assert (counters.preloads, counters.restores, counters.binds, counters.compiled_calls) == (1, 1, 0, 0)
    graph = engine.obtain(toy.request(module, source), "wait", ignore)
    assert isinstance(graph, LoadedGraph) and graph.fresh
    call(engine, graph, module)
    assert (counters.restores, counters.binds, counters.compiles) == (1, 1, 0)


def test_without_memory_a_graph_is_loaded_but_not_run(
    home: Path, source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, module, warmed = Registry(Store(home), policy=ANY_SPEED), toy.Toy(3), []
    monkeypatch.setattr(LoadedGraph, "warm", lambda self, inputs: warmed.append(inputs))
    engine.preloads.run(toy.request(module, source), 1 << 62)
    assert (engine.counters.preloads, engine.counters.restores, warmed) == (0, 1, [])


def test_a_run_says_what_is_wrong_after_a_preload(home: Path, source: ModelSource) -> None:
    entry = next(Store(home).entries())
    file = entry.folder / "graph.aoti"
    file.write_bytes(file.read_bytes()[:100])
    engine, request = Registry(Store(home), policy=ANY_SPEED), toy.request(toy.Toy(), source)
    for _ in range(2):
        engine.preloads.run(request, 0)
    assert not entry.folder.exists()
    refused = engine.obtain(request, "wait", ignore)
    assert isinstance(refused, Refused)
    assert "damaged" in refused.text and "compiles it anew" in refused.text
    assert engine.obtain(request, "eager", ignore) == Refused(NoGraph())


def _speaks(script: str, staging: Path) -> subprocess.Popen[bytes]:
    """A compiling process that says what `script` prints."""
    return subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=staging,
        start_new_session=True,
    )


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 6)", "pass"])
def test_a_checked_graph_survives_a_death_in_the_trial(
    end: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Recording a call as a CUDA graph may abort the process; the graph is whole by then."""
    checked = to_json(Checked(("graph.aoti",), ()))
    script = f"import os; print({json.dumps(json.dumps(checked))}, flush=True); {end}"
    monkeypatch.setattr(supervisor, "_start", lambda staging, scratch: _speaks(script, staging))
    module = toy.Toy()
    client = ClientModule("support.models.toy", {})
    job = Job("toy", "inductor", "cpu", toy.shapes(), toy.shapes(), {}, skeleton.dump(module), client)
    compiled = supervisor.compile_in_child(job, tmp_path, ignore)
    assert compiled.files == ("graph.aoti",)


def test_where_capturing_took_the_process_down_it_ends(home: Path, source: ModelSource) -> None:
    def engine_with_graph(policy: Policy = ANY_SPEED) -> LoadedGraph:
        graph = Registry(Store(home), policy=policy).obtain(toy.request(toy.Toy(), source), "wait", ignore)
        assert isinstance(graph, LoadedGraph)
        return graph

    def may_capture(graph: LoadedGraph) -> bool:
        assert graph._runners.first.runner.cuda_graphs is not None
        return graph._runners.first.runner.cuda_graphs._allowed

    entry = engine_with_graph().entry
    assert not may_capture(engine_with_graph())  # the compile did not try it, on a CPU
    manifest = entry.manifest.model_copy(update={"cuda_graphs": True})
    rewrite(Store(home), entry, manifest)
    assert may_capture(engine_with_graph())
    assert not may_capture(engine_with_graph(dataclasses.replace(ANY_SPEED, captures=False)))
    folder = str(entry.folder)
    script = (
        "import os, sys; from pathlib import Path\n"
        "from onegraph.graph_cache.entry import read; from onegraph.graph_cache.store import Store\n"
        "with Store(Path(sys.argv[1])).markers.capturing(Path(sys.argv[2])): os._exit(1)"
    )
    assert not Store(home).markers.died_while_capturing(entry.folder)
    assert subprocess.run([sys.executable, "-c", script, str(home), folder], check=False).returncode == 1
    assert Store(home).markers.died_while_capturing(entry.folder)
    graph = engine_with_graph()  # it is not quarantined, only never captured
    assert not may_capture(graph)


def test_nobody_else_waits_for_a_compile(home: Path, source: ModelSource) -> None:
    """Another graph of the model is obtained and called, reports and releases are answered, while one compiles."""

    class Interrupted(BaseException):
        pass

    engine, over = Registry(Store(home), policy=ANY_SPEED), threading.Event()

    def watch(progress: Progress) -> None:
        if over.is_set():
            raise Interrupted

    def compile_slowly() -> None:
        with contextlib.suppress(Interrupted):
            engine.obtain(toy.request(toy.Toy(), source, spec=toy.exact(), state={"sleep": 600}), "wait", watch)

    thread = threading.Thread(target=compile_slowly)
    thread.start()
    try:
        wait_until(engine.compiles.under_way)
        engine.preloads.run(toy.request(toy.Toy(), source), 0)
        graph = engine.obtain(toy.request(toy.Toy(), source), "wait", ignore)
        assert isinstance(graph, LoadedGraph)
        call(engine, graph, toy.Toy())
        assert engine.release_captures(toy.CPU, "needed") == 0
        engine.release_orphans()
        assert engine.compiles.in_background() == 0
        assert [found["component"] for found in engine.status()["compiling"]] == ["toy"]  # all the time
    finally:
        over.set()
        thread.join(60)
    assert not thread.is_alive()
    assert engine.counters.compiles == 0
