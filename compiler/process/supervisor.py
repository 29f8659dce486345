"""Compile in a child process: start the worker, follow it, stop it within a moment."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from ...common.errors import Cause, ChildDiedError, CompileError, in_brief
from ...common.log import logger
from ...graph_cache.crash import leftovers
from . import ready_workers
from .job import LOG_FILE, Checked, Compiled, Done, Failed, Job, Message, Regions, Stage, from_json, write_job
from .progress import STAGES, Estimate, Progress

log = logger("compiler")

POLL_SECONDS = 0.1
LIMIT_SECONDS = 1800.0  # of a compile in all; the longest measured takes five minutes
_PATIENCE = 10  # times as long for one that gives way to every run


def limit_seconds() -> float:
    """Return how long a compile may take: `ONEGRAPH_COMPILE_TIMEOUT` in seconds, else half an hour; 0 is no limit."""
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


def compile_in_child(
    job: Job,
    staging: Path,
    on_progress: Callable[[Progress], None],
    limit: float = LIMIT_SECONDS,
    expected: Mapping[str, float] | None = None,
    paused: Callable[[], bool] | None = None,
) -> Compiled:
    """Compile `job` into `staging` in a child process.

    Args:
        on_progress: called at least every 0.1 s; whatever it raises stops the child and its compilers at once and
            goes on to the caller.
        limit: seconds after which the child and its compilers are stopped, ten times as many where the job gives way
            to other processes; 0 is no limit.
        expected: seconds that each stage will probably take.
        paused: tells whether the child and its compilers shall pause for now (Linux). That time counts nowhere.

    Raises:
        CompileError: capturing, compiling or the trial load failed, the child was killed or took too long. Its message
            is for the user; what the child printed last is in `__cause__`.
    """
    write_job(job, staging)
    # Processes that are ended leave what they had unpacked there: megabytes for each region of a graph.
    with leftovers.owned_folder(None) as scratch:
        child = _Child(staging, str(scratch))
        try:
            estimate = Estimate(expected or dict.fromkeys(STAGES, 1.0))
            return _follow(child, estimate, on_progress, limit * (_PATIENCE if job.niceness else 1), paused)
        finally:
            child.stop()


def _follow(
    child: _Child,
    estimate: Estimate,
    on_progress: Callable[[Progress], None],
    limit: float,
    paused: Callable[[], bool] | None,
) -> Compiled:
    """Follow a compile to its end; whatever goes wrong after the checks costs nothing."""
    stage = STAGES[0]
    regions: Mapping[str, float] = {}
    usable: Compiled | None = None
    while True:
        child.set_paused(paused is not None and paused())
        seconds = child.seconds
        on_progress(estimate.at(stage, seconds, _share_compiled(regions, child.staging)))
        if limit and seconds > limit:
            if usable is not None:
                return usable
            raise _too_long(stage, limit) from child.last_lines()
        try:
            message = child.receive(POLL_SECONDS)
        except queue.Empty:
            continue
        except EOFError:
            if usable is not None:
                return usable
            raise _death(child) from child.last_lines()
        if isinstance(message, Stage):
            stage = message.stage
        elif isinstance(message, Regions):
            regions = message.sizes
        elif isinstance(message, Failed):
            raise CompileError(message.reason, lasting=message.lasting, cause=message.cause) from child.last_lines()
        elif isinstance(message, Checked):
            usable = Compiled(
                message.files,
                message.constants,
                child.seconds,
                message.code,
                outputs=message.outputs,
                signature=message.signature,
            )
            if isinstance(message, Done):
                estimate.finish(usable.seconds)
                return replace(usable, stages=estimate.stages, cuda_graphs=message.cuda_graphs)


def _share_compiled(regions: Mapping[str, float], staging: Path) -> float:
    """Return the share of the regions, by their sizes, whose files are there."""
    if not regions:
        return 0.0
    return sum(size for name, size in regions.items() if (staging / name).exists()) / sum(regions.values())


class _Child:
    """A compiling process with its compilers: what it reports, and how to pause and stop it.

    Raises:
        CompileError: the system could not start it.
    """

    def __init__(self, staging: Path, scratch: str) -> None:
        self.staging = staging
        self._started = time.perf_counter()
        try:
            ready = ready_workers.take()
            begun = None if ready is None else ready.begin(staging, scratch)
            self._process = begun or _start(staging, scratch)
        except OSError as error:
            raise CompileError(
                f"The compiling process could not be started ({in_brief(error)}).", lasting=False
            ) from error
        self._messages: queue.Queue[Message | None] = queue.Queue()
        self._has_reported = False
        self._paused_since: float | None = None
        self._paused_before = 0.0
        threading.Thread(target=self._read, name="onegraph-compile-reader", daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError, OSError):  # the pipe is closed
            for line in self._process.stdout:
                with contextlib.suppress(ValueError):  # no message: something printed while the interpreter started
                    self._messages.put(from_json(json.loads(line)))
        self._messages.put(None)

    def receive(self, timeout: float) -> Message:
        """Return its next message.

        Raises:
            queue.Empty: there is none yet.
            EOFError: there will be none, because it has ended.
        """
        message = self._messages.get(timeout=timeout)
        self._has_reported = True
        if message is None:
            raise EOFError
        return message

    @property
    def seconds(self) -> float:
        """How long it has run, pauses apart."""
        return time.perf_counter() - self._started - self._paused_seconds

    @property
    def _paused_seconds(self) -> float:
        since = self._paused_since
        return self._paused_before + (time.perf_counter() - since if since is not None else 0.0)

    def set_paused(self, wanted: bool) -> None:
        """Pause it or resume it (Linux). It resumes by itself when this process is gone."""
        # Until it reports, nothing would wake it when this process dies.
        wanted = wanted and self._has_reported
        if sys.platform != "linux" or wanted == (self._paused_since is not None):
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGSTOP if wanted else signal.SIGCONT)
        if self._paused_since is not None:
            self._paused_before = self._paused_seconds
        self._paused_since = time.perf_counter() if wanted else None

    def stop(self) -> None:
        """End it and its compilers."""
        if os.name == "posix":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        else:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def exit_code(self) -> int:
        """Return how it ended; negative: by that signal. Waits for its end."""
        return self._process.wait()

    def last_lines(self, count: int = 20) -> RuntimeError:
        """Return what it printed last, as the cause of an error."""
        try:
            lines = (self.staging / LOG_FILE).read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        return RuntimeError("\n".join(lines[-count:]))


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


def _too_long(stage: str, limit: float) -> CompileError:
    """Describe a child that is still at work, or hangs."""
    took = f"{limit / 60:.0f} minutes" if limit >= 120 else f"{limit:.0f} seconds"
    return CompileError(
        f"The compile was stopped after {took}, while {stage}; ONEGRAPH_COMPILE_TIMEOUT sets another limit.",
        cause="time",
    )


def _death(child: _Child) -> CompileError:
    """Describe a child that ended without a last message."""
    code = child.exit_code()
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        explanation = ", which is what happens when memory runs out" if name == "SIGKILL" else ""
        # What the system kills first when memory runs out may be the server the next time.
        cause: Cause = "memory" if name == "SIGKILL" else ""
        if name in ("SIGTERM", "SIGHUP", "SIGINT"):
            cause = "stopped"
        return ChildDiedError(f"The compiling process was killed ({name}{explanation}).", lasting=False, cause=cause)
    return ChildDiedError(f"The compiling process ended with exit code {code} before it was done.", lasting=False)
