"""What a second process does after the first one died or failed, with real child processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from support.models import toy
from support.store.entries import die_while_loading

from onegraph.common.reasons import CompiledAgainLater, DiedInTrial, NoGraph
from onegraph.common.refused import Refused
from onegraph.compiler.process.progress import Progress
from onegraph.graph_cache.entry import Entry, constants_of
from onegraph.graph_cache.layout import STAGING_FOLDER
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.publish import NewEntry
from onegraph.graph_cache.store import Store
from onegraph.runtime.graphs.loaded_graph import LoadedGraph
from onegraph.runtime.obtain import child_load_test
from onegraph.runtime.obtain.registry import Registry
from onegraph.runtime.policy import ANY_SPEED

CRASH = "#include <stdlib.h>\n__attribute__((constructor)) static void crash(void) { abort(); }\n"


def entry_of(store: Store, source: ModelSource) -> Entry:
    (entry,) = store.entries()
    die_while_loading(store, entry)
    return entry


def test_a_sound_graph_survives_a_death(home: Path, source: ModelSource) -> None:
    store, module, inputs = Store(home), toy.Toy(3), toy.inputs()
    entry_of(store, source)
    engine, told = Registry(store, policy=ANY_SPEED), list[Progress]()
    graph = engine.obtain(toy.request(module, source), "wait", told.append)
    assert isinstance(graph, LoadedGraph), graph
    assert {progress.stage for progress in told} == {child_load_test.STAGE}
    served = graph.call(module, inputs, toy.sizes(*inputs), module, engine.counters)
    assert not isinstance(served, Refused)
    torch.testing.assert_close(served.output, module(*inputs))
    assert engine.counters.compiles == 0
    told.clear()
    assert isinstance(Registry(store).obtain(toy.request(module, source), "wait", told.append), LoadedGraph)
    assert not told


@pytest.fixture
def crashing(home: Path, source: ModelSource, tmp_path: Path) -> Store:
    """A store whose graph ends the process that loads it."""
    (sound,) = Store(home).entries()
    library = tmp_path / "crash.so"
    subprocess.run(
        ["g++", "-x", "c", "-shared", "-fPIC", "-o", library, "-"], input=CRASH.encode(), check=True, timeout=60
    )
    store, request = Store(tmp_path / "crashing"), toy.request(toy.Toy(), source)
    with store.staging() as staged:
        with zipfile.ZipFile(sound.folder / "graph.aoti") as old, zipfile.ZipFile(staged / "graph.aoti", "w") as new:
            for name in old.namelist():
                new.writestr(name, library.read_bytes() if name.endswith(".so") else old.read(name))
        made = NewEntry("any size", ("graph.aoti",), constants_of(sound), compile_seconds=1.0, made_by="0")
        store.publish(request.key, staged, made)
    return store


def test_a_graph_that_crashes_takes_only_the_child(crashing: Store, source: ModelSource) -> None:
    entry, engine, request = entry_of(crashing, source), Registry(crashing), toy.request(toy.Toy(), source)
    refused = engine.obtain(request, "eager", lambda progress: None)
    assert isinstance(refused, Refused) and isinstance(refused.reason, CompiledAgainLater)
    assert isinstance(refused.reason.because, DiedInTrial) and "SIGABRT" in refused.reason.because.detail
    assert not entry.folder.exists()
    assert engine.obtain(request, "eager", lambda progress: None) == Refused(NoGraph())
    assert [*(crashing.home / STAGING_FOLDER).iterdir()] == []


def test_an_interrupt_stops_the_child(home: Path, source: ModelSource) -> None:
    class Interrupted(BaseException):
        pass

    def interrupt(progress: Progress) -> None:
        raise Interrupted

    store = Store(home)
    entry = entry_of(store, source)
    with pytest.raises(Interrupted):
        Registry(store).obtain(toy.request(toy.Toy(), source), "wait", interrupt)
    assert entry.folder.exists() and [*(home / STAGING_FOLDER).iterdir()] == []
    assert isinstance(Registry(store).obtain(toy.request(toy.Toy(), source), "wait", lambda _: None), LoadedGraph)


PROCESS = """
import json, sys
from pathlib import Path
import torch
from support.models import toy
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.runtime.obtain.registry import Registry
told = []
refused = Registry(Store(Path(sys.argv[1]))).obtain(
    toy.request(toy.Fixed(), ModelSource(None, "0123456789ab")), "wait", told.append)
print(json.dumps([refused.reason.code, bool(told), refused.text]))
"""


@pytest.mark.full
def test_a_second_process_compiles_nothing_in_vain(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def run() -> list[object]:
        command = [sys.executable, "-c", PROCESS, str(tmp_path / "home")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
        found: list[object] = json.loads(done.stdout.splitlines()[-1])
        return found

    assert run()[:2] == ["compile_failed", True]
    for _ in range(2):
        code, started, text = run()
        assert (code, started) == ("waits_for_change", False)
        assert "onegraph retry" in str(text)
    Store(tmp_path / "home").notes.forget_failures()
    assert run()[:2] == ["compile_failed", True]


COMPILE = """
import sys
from pathlib import Path
import torch
from support.models import toy
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.runtime.obtain.registry import Registry
torch.set_grad_enabled(False)
def watch(progress):
    print("compiling", flush=True)
Registry(Store(Path(sys.argv[1]))).obtain(
    toy.request(toy.Toy(), ModelSource(None, "0123456789ab"), state={"sleep": 600}), "wait", watch)
"""


def test_a_killed_server_leaves_nothing_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, scratch = tmp_path / "home", tmp_path / "scratch"
    scratch.mkdir()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(scratch)}
    with subprocess.Popen(
        [sys.executable, "-c", COMPILE, str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as server:
        assert server.stdout is not None and server.stdout.readline() == b"compiling\n"
        server.kill()
        server.stdout.read()
    left = [path.name for path in scratch.iterdir()]
    assert len(left) == 1 and left[0].startswith("onegraph-")
    assert [*(home / STAGING_FOLDER).iterdir()]
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    source = ModelSource(None, "0123456789ab")
    refused = Registry(Store(home)).obtain(toy.request(toy.Toy(), source), "eager", lambda _: None)
    assert refused == Refused(NoGraph())
    assert [*scratch.iterdir()] == [] and not [*(home / STAGING_FOLDER).iterdir()]
