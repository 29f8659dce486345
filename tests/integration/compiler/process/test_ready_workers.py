"""Compiling processes that wait for a job: they do it, and none stays that is of no use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from headless.standstill import wait_until
from support.models import toy

from onegraph.compiler import skeleton
from onegraph.compiler.process import ready_workers, supervisor
from onegraph.compiler.process.job import ClientModule, Job

pytestmark = pytest.mark.skipif(os.name != "posix", reason="looks at processes as POSIX has them")


@pytest.fixture(autouse=True)
def none_before_and_after() -> Iterator[None]:
    ready_workers.end_all()
    yield
    ready_workers.end_all()


CACHE = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or tempfile.gettempdir())


def job() -> Job:
    given = skeleton.dump(toy.Toy())
    return Job("toy", "inductor", "cpu", toy.shapes(), toy.shapes(), {}, given, ClientModule("support.models.toy", {}))


def start(count: int = 1, **given: float) -> None:
    ready_workers.start(count, "cpu", CACHE, **given)


def the_one() -> ready_workers.ReadyWorker:
    (one,) = ready_workers._waiting
    return one


def test_a_process_that_waits_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start()
    one = the_one()
    monkeypatch.setattr(supervisor, "_start", lambda staging, scratch: pytest.fail("another process was started"))
    compiled = supervisor.compile_in_child(job(), tmp_path, lambda progress: None)
    assert compiled.files and compiled.stages
    assert {*compiled.files} <= {path.name for path in tmp_path.iterdir()}
    assert ready_workers.waiting() == 0
    assert one.process.poll() is not None  # it does one compile


def test_an_interrupt_stops_one_that_waited(tmp_path: Path) -> None:
    start()
    one = the_one()

    def interrupt(progress: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        supervisor.compile_in_child(job(), tmp_path, interrupt)
    assert one.process.poll() == -signal.SIGKILL


def test_no_more_wait_than_a_model_needs() -> None:
    start(1)
    first = the_one()
    start(1)
    assert the_one() is first
    start(5)
    assert ready_workers.waiting() == ready_workers.MOST
    timers = threading.active_count()
    for _ in range(60):  # nodes that run while none compiles
        start(5)
    assert (ready_workers.waiting(), threading.active_count()) == (ready_workers.MOST, timers)


def test_one_that_died_is_not_taken(tmp_path: Path) -> None:
    start()
    one = the_one()
    one.process.kill()
    one.process.wait()
    assert ready_workers.take() is None
    start()
    dying = ready_workers.take()
    assert dying is not None
    dying.process.kill()  # just now
    dying.process.wait()
    assert dying.begin(tmp_path, str(tmp_path)) is None


def test_one_of_another_environment_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    start()
    one = the_one()
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")
    assert ready_workers.take() is None
    assert one.process.poll() is not None


def test_one_that_nobody_needs_ends() -> None:
    start(1, idle_seconds=0.1)
    one = the_one()
    wait_until(lambda: ready_workers.waiting() == 0)
    assert one.process.poll() is not None


_SERVER = """
import sys
from pathlib import Path
from onegraph.compiler.process import ready_workers
ready_workers.start(1, "cpu", Path(sys.argv[1]))
print(ready_workers._waiting[0].process.pid, flush=True)
sys.stdin.read()
"""


def test_it_ends_with_the_server() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER, str(CACHE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as server:
        assert server.stdout is not None
        worker = int(server.stdout.readline())
        assert Path(f"/proc/{worker}").exists()
        server.kill()
    wait_until(lambda: not Path(f"/proc/{worker}/cmdline").exists() or not Path(f"/proc/{worker}/cmdline").read_bytes())
