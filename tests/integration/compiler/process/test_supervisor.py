"""The compiling process: its time limit, and what its failures say."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from headless.standstill import PATIENCE, wait_until
from support.models import toy

from onegraph.common.errors import CompileError
from onegraph.common.reasons import WaitsForChange
from onegraph.common.refused import Refused
from onegraph.compiler import skeleton
from onegraph.compiler.process import supervisor
from onegraph.compiler.process.job import ClientModule, Job
from onegraph.compiler.process.progress import Progress
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.runtime.admission import Limits
from onegraph.runtime.obtain.registry import Registry

ROOT = Path(__file__).resolve().parents[4]


def at_work(staging: Path) -> set[int]:
    """Processes of a compile, by their command line; those that wait to be reaped have none."""
    found = set()
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and str(staging).encode() in (folder / "cmdline").read_bytes():
                found.add(int(folder.name))
        except OSError:
            continue
    return found


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_a_hanging_compile_is_stopped_with_its_workers(tmp_path: Path) -> None:
    seen: set[int] = set()
    job = Job(
        "toy", "inductor", "cpu", toy.shapes(), toy.shapes(), {}, skeleton.dump(toy.Toy()),
        ClientModule("support.models.toy", {"sleep": 600}), workers=1,
    )  # fmt: skip
    with pytest.raises(CompileError) as caught:
        supervisor.compile_in_child(job, tmp_path, lambda progress: seen.update(at_work(tmp_path)), limit=8)
    assert str(caught.value).startswith("The compile was stopped after 8 seconds, while ")
    assert str(caught.value).endswith("ONEGRAPH_COMPILE_TIMEOUT sets another limit.")
    assert (caught.value.cause, caught.value.lasting) == ("time", True)
    assert seen
    wait_until(lambda: not at_work(tmp_path))


def test_a_compile_that_took_too_long_is_not_retried(tmp_path: Path, source: ModelSource) -> None:
    engine, told = Registry(Store(tmp_path), Limits(seconds=0.5)), list[Progress]()
    request = toy.request(toy.Toy(), source, state={"sleep": 600})
    refused = engine.obtain(request, "wait", told.append)
    assert isinstance(refused, Refused) and "was stopped after 0 seconds" in refused.text
    told.clear()
    again = engine.obtain(request, "wait", told.append)
    assert isinstance(again, Refused) and isinstance(again.reason, WaitsForChange)
    assert again.reason.because == refused.reason and "timeout" in again.reason.changes
    assert told == []


# A server whose prompt thread compiles, for ten minutes, while a preload thread wants a graph. As ComfyUI's, the prompt
# thread is a daemon, and Ctrl-C ends the main thread's wait.
_SERVER = """
import signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts tests in the background ignores it
from pathlib import Path
import torch
sys.path.insert(0, {tests!r})
from support.models import toy
from onegraph.runtime.obtain.registry import Registry
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store

def prompt_worker():
    def watch(progress):
        begun.set()
    engine.obtain(toy.request(toy.Toy(), source, state={{"sleep": 600}}), "wait", watch)

torch.set_grad_enabled(False)
engine, source = Registry(Store(Path(sys.argv[1]))), ModelSource(None, "0123456789ab")
begun = threading.Event()
module = toy.Toy() if sys.argv[2] == "the same" else toy.Toy(heads=4)
threading.Thread(target=prompt_worker, daemon=True).start()
begun.wait()
request = toy.request(module, source)
threading.Thread(target=engine.preloads.run, args=(request, 0), name="onegraph-preload").start()
print("ready", flush=True)
try:
    threading.Event().wait()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
@pytest.mark.parametrize("wanted", ["the same", "another"])
def test_an_interrupt_ends_compiles_and_preloads(wanted: str, tmp_path: Path) -> None:
    script = _SERVER.format(tests=str(ROOT / "tests"))
    server = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), wanted], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert server.stdout is not None
        for line in server.stdout:
            if line == "ready\n":
                break
        time.sleep(1)
        server.send_signal(signal.SIGINT)
        assert server.wait(PATIENCE) == 0  # and was not killed
        assert "interrupted\n" in server.stdout.read()
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="processes can be paused on Linux only")
def test_a_compile_pauses_as_long_as_it_is_told_to(tmp_path: Path) -> None:
    """Its time limit does not run on meanwhile."""
    states: list[tuple[bool, set[str]]] = []
    began, told = time.monotonic(), [False]

    def state(pid: int) -> str:
        with contextlib.suppress(OSError):
            return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
        return ""

    def paused() -> bool:
        told[0] = 3 < time.monotonic() - began < 9
        return told[0]

    def watch(progress: Progress) -> None:
        states.append((told[0], {state(pid) for pid in at_work(tmp_path)} - {""}))

    job = Job(
        "toy", "inductor", "cpu", toy.shapes(), toy.shapes(), {}, skeleton.dump(toy.Toy()),
        ClientModule("support.models.toy", {"sleep": 600}), workers=1,
    )  # fmt: skip
    with pytest.raises(CompileError, match="stopped after 8 seconds"):
        supervisor.compile_in_child(job, tmp_path, watch, limit=8, paused=paused)
    assert time.monotonic() - began > 13
    still = [seen for wanted, seen in states if wanted]
    assert still.count({"T"}) > len(still) / 2
    assert not any("T" in seen for wanted, seen in states[-10:] if not wanted)
    assert not at_work(tmp_path)


CHILD = """
import sys
from pathlib import Path
from support.models import toy
from onegraph.compiler import skeleton
from onegraph.compiler.process import supervisor
from onegraph.compiler.process.job import ClientModule, Job
job = Job("toy", "inductor", "cpu", toy.shapes(), toy.shapes(), {}, skeleton.dump(toy.Toy()),
    ClientModule("support.models.toy", {"sleep": 600}))
place = Path(sys.argv[1])
stage = []
def watch(progress):
    if not (place / "still").exists() and progress.seconds > float(sys.argv[2]):
        (place / "still").touch()
supervisor.compile_in_child(job, place, watch, paused=lambda: (place / "still").exists())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes can be paused on Linux only")
@pytest.mark.parametrize("after", [pytest.param(0, marks=pytest.mark.full), 3])
def test_a_paused_compile_ends_with_its_parent(after: int, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    parent = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path), str(after)], env=env)
    try:
        wait_until(lambda: (tmp_path / "still").exists() or parent.poll() is not None)
        assert parent.poll() is None
        time.sleep(1)
        children = at_work(tmp_path) - {parent.pid}
        assert children
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: not at_work(tmp_path))
