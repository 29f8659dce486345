"""The server's side of a compile: start the worker, follow it, stop it within a moment."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..common.errors import Cause, CompileError, in_brief
from ..common.shapes import ShapeRange
from ..common.tensor_meta import TensorMeta
from ..graph_cache.manifest import CodeRecord
from .progress import STAGES, Estimate, Progress
from .worker import JOB_FILE, LOG_FILE, STRUCTURE_FILE

log = logging.getLogger("onegraph.compiler")

POLL_SECONDS = 0.1
LIMIT_SECONDS = 1800.0  # of a compile in all; the longest measured takes five minutes
_PATIENCE = 10  # times as long for one that gives way to every run


@dataclass(frozen=True)
class Client:
    """Who rebuilds the module in the worker: a module with `prepare(state)` and `wrap(component, module)`.

    `module` is a dotted name; with a leading dot it is relative to the pack, whatever the pack is called here.
    """

    module: str
    state: Mapping[str, Any]


@dataclass(frozen=True)
class Job:
    """One compile.

    Attributes:
        capture: the range to capture under, when the backend can make graphs for other sizes of it later.
        structure: the module without weights, from `structure.dump`; empty when there is a `kept` graph.
        kept: folder of a graph of the same architecture to rebuild from, and
        constants: the weights that it reads,
        code: the functions that it was captured from.
        hint: sizes the compiler tunes for, by dimension name.
        niceness: by how much the compile gives way to other processes (POSIX nice).
        helpers: how many further processes compile parts of the graph.
        cache: folder for what compilers share between compiles, where the user chose none.
        weights: how many the model has, for the estimate.
    """

    component: str
    backend: str
    device: str
    shapes: ShapeRange
    capture: ShapeRange
    hint: Mapping[str, int]
    structure: bytes
    client: Client
    niceness: int = 0
    kept: Path | None = None
    constants: tuple[TensorMeta, ...] = ()
    code: CodeRecord | None = None
    helpers: int = 0
    cache: Path | None = None
    weights: int = 0


@dataclass(frozen=True)
class Compiled:
    """What the worker left in the staging folder."""

    files: tuple[str, ...]
    constants: tuple[TensorMeta, ...]
    seconds: float
    code: CodeRecord | None = None
    cuda_graphs: bool = False  # whether its calls may be captured
    stages: Mapping[str, float] = field(default_factory=dict)  # what each of them took, seconds


def limit_seconds() -> float:
    """How long a compile may take: `ONEGRAPH_COMPILE_TIMEOUT` in seconds, else half an hour; 0 is no limit."""
    chosen = os.environ.get("ONEGRAPH_COMPILE_TIMEOUT", "").strip()
    if not chosen:
        return LIMIT_SECONDS
    try:
        seconds = float(chosen)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        log.warning("ONEGRAPH_COMPILE_TIMEOUT is %r, not a number of seconds; it counts as %.0f", chosen, LIMIT_SECONDS)
        return LIMIT_SECONDS
    return seconds


def _write_job(job: Job, staging: Path) -> None:
    (staging / STRUCTURE_FILE).write_bytes(job.structure)
    description = {
        "component": job.component,
        "backend": job.backend,
        "device": job.device,
        "shapes": job.shapes.to_json(),
        "capture": job.capture.to_json(),
        "kept": str(job.kept) if job.kept else None,
        "constants": [c.to_json() for c in job.constants],
        "hint": dict(job.hint),
        "niceness": job.niceness,
        "helpers": job.helpers,
        "cache": str(job.cache) if job.cache else "",
        "client": job.client.module,
        "state": dict(job.client.state),
        "path": [p for p in sys.path if p],
    }
    (staging / JOB_FILE).write_text(json.dumps(description), encoding="utf-8")


def _start(staging: Path, scratch: str) -> subprocess.Popen[bytes]:
    worker = Path(__file__).with_name("worker.py")
    # A session of its own, so that the compilers it starts can be stopped with it; nothing of the server's
    # command line reaches it.
    return subprocess.Popen(
        [sys.executable, str(worker), str(staging)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=staging,
        env={**os.environ, "TMPDIR": scratch},
        start_new_session=os.name == "posix",
    )


class _Pause:
    """Has a child and its compilers stand still and go on. They go on by themselves when this process is gone."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._since: float | None = None
        self._before = 0.0

    @property
    def seconds(self) -> float:
        """How long they stood still so far."""
        return self._before + (time.perf_counter() - self._since if self._since is not None else 0.0)

    def set(self, wanted: bool) -> None:
        if sys.platform != "linux" or wanted == (self._since is not None):
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGSTOP if wanted else signal.SIGCONT)
        if self._since is not None:
            self._before = self.seconds
        self._since = time.perf_counter() if wanted else None


def _stop(process: subprocess.Popen[bytes]) -> None:
    if os.name == "posix":
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def _last_lines(staging: Path, count: int = 20) -> str:
    try:
        return "\n".join((staging / LOG_FILE).read_text(errors="replace").splitlines()[-count:])
    except OSError:
        return ""


def compile_in_child(
    job: Job,
    staging: Path,
    watch: Callable[[Progress], None],
    limit: float = LIMIT_SECONDS,
    expected: Mapping[str, float] | None = None,
    paused: Callable[[], bool] | None = None,
) -> Compiled:
    """Compile `job` into `staging` in a child process.

    Args:
        watch: called at least every 0.1 s; whatever it raises stops the child and its compilers at once and goes on
            to the caller.
        limit: seconds after which the child and its compilers are stopped, ten times as many where the job gives way
            to other processes; 0 is no limit.
        expected: seconds that each stage will probably take.
        paused: whether the child and its compilers are to stand still for now (Linux). That time counts nowhere.

    Raises:
        CompileError: capturing, compiling or the trial load failed, the child was killed or took too long. Its message
            is for the user; what the child printed last is in `__cause__`.
    """
    _write_job(job, staging)
    # Processes that are ended leave what they had unpacked there: megabytes for each part of a graph.
    with tempfile.TemporaryDirectory(prefix="onegraph-", ignore_cleanup_errors=True) as scratch:
        return _compile(job, staging, scratch, watch, limit, expected, paused)


def _compile(
    job: Job,
    staging: Path,
    scratch: str,
    watch: Callable[[Progress], None],
    limit: float,
    expected: Mapping[str, float] | None,
    paused: Callable[[], bool] | None,
) -> Compiled:
    started = time.perf_counter()
    limit *= _PATIENCE if job.niceness else 1
    try:
        process = _start(staging, scratch)
    except OSError as error:
        raise CompileError(f"The compiling process could not be started ({in_brief(error)}).", lasting=False) from error
    messages: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        with contextlib.suppress(ValueError, OSError):
            for line in process.stdout:
                with contextlib.suppress(json.JSONDecodeError):
                    messages.put(json.loads(line))
        messages.put(None)

    threading.Thread(target=read, name="onegraph-compile-reader", daemon=True).start()
    stage = STAGES[0]
    estimate = Estimate(expected or dict.fromkeys(STAGES, 1.0))
    parts: Mapping[str, float] = {}
    usable: Compiled | None = None
    pause, has_spoken = _Pause(process), False  # until it speaks, nothing would wake it when this process dies
    try:
        while True:
            pause.set(has_spoken and paused is not None and paused())
            seconds = time.perf_counter() - started - pause.seconds
            watch(estimate.at(stage, seconds, _done(parts, staging)))
            if limit and seconds > limit:
                if usable is not None:  # only the trial that follows the checks hangs
                    return usable
                raise _too_long(stage, limit, staging)
            try:
                message = messages.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            has_spoken = True
            if message is None:
                if usable is not None:  # only the trial of capturing a call went wrong
                    return usable
                raise _death(process, staging)
            if message["event"] == "stage":
                stage = message["stage"]
            elif message["event"] == "parts":
                parts = message["sizes"]
            elif message["event"] == "failed":
                raise CompileError(
                    message["reason"], lasting=message["lasting"], cause=message.get("cause", "")
                ) from RuntimeError(_last_lines(staging))
            elif message["event"] in ("checked", "done"):
                constants = tuple(TensorMeta.from_json(c) for c in message["constants"])
                code = CodeRecord.model_validate(message["code"]) if message.get("code") else None
                seconds = time.perf_counter() - started - pause.seconds
                usable = Compiled(tuple(message["files"]), constants, seconds, code)
                if message["event"] == "done":
                    estimate.finish(usable.seconds)
                    return replace(usable, stages=estimate.stages, cuda_graphs=bool(message["cuda_graphs"]))
    finally:
        _stop(process)


def _done(parts: Mapping[str, float], staging: Path) -> float:
    """The share of the parts, by their sizes, whose files are there."""
    if not parts:
        return 0.0
    return sum(size for name, size in parts.items() if (staging / name).exists()) / sum(parts.values())


def _too_long(stage: str, limit: float, staging: Path) -> CompileError:
    """The child is still at work, or hangs."""
    took = f"{limit / 60:.0f} minutes" if limit >= 120 else f"{limit:.0f} seconds"
    error = CompileError(
        f"The compile was stopped after {took}, while {stage}; ONEGRAPH_COMPILE_TIMEOUT sets another limit.",
        cause="time",
    )
    error.__cause__ = RuntimeError(_last_lines(staging))
    return error


def _death(process: subprocess.Popen[bytes], staging: Path) -> CompileError:
    """The child ended without a word."""
    code = process.wait()
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        hint = ", which is what happens when memory runs out" if name == "SIGKILL" else ""
        # What the system kills first when memory runs out may be the server the next time.
        cause: Cause = "memory" if name == "SIGKILL" else ""
        error = CompileError(f"The compiling process was killed ({name}{hint}).", lasting=False, cause=cause)
    else:
        error = CompileError(f"The compiling process ended with exit code {code} before it was done.", lasting=False)
    error.__cause__ = RuntimeError(_last_lines(staging))
    return error
