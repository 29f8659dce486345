"""The compiling process: set itself up, compile the job in its staging folder, report.

Run by path, `python compiler/process/worker.py STAGING`, never imported by the server: a compiler crash, an artifact
that crashes on load and the compiler's memory all stay here. The order of a main worker's work:

1. Import the pack, send all output to the log, watch the server: when standard input closes, its parent is gone and it
   ends itself and its compilers.
2. Read the job (`job`), set the environment and the priority, start further workers where the job asks for them. On
   Linux, for a CPU, these are copies of it instead. Only then import torch.
3. Rebuild the module, capture, compile, check (`compile_job`). Further workers compile regions of the graph that the
   main worker hands out (`backends.worker_pool`).
4. Report each step as a line of JSON on standard output. Further workers report nothing.

With `--wait` in place of the folder it imports torch's compiler first, and is then told the folder on standard input
(`ready_workers`).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from onegraph.backends.worker_pool import WorkerPool
    from onegraph.compiler.process.job import Failed, Job, Message

FURTHER = "--further-worker"
WAIT = "--wait"
CACHE = "TORCHINDUCTOR_CACHE_DIR"
_PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>


def import_pack() -> None:
    """Make the pack importable as `onegraph`, whatever its folder is called."""
    root = Path(__file__).resolve().parents[2]
    spec = importlib.util.spec_from_file_location(
        "onegraph", root / "__init__.py", submodule_search_locations=[str(root)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["onegraph"] = module
    spec.loader.exec_module(module)


def _end_with_parent() -> None:
    def wait() -> None:
        while os.read(0, 1024):
            pass
        _end_all()

    threading.Thread(target=wait, daemon=True).start()


def _end_all() -> NoReturn:
    """End this process and its compilers."""
    if os.name == "posix":
        os.killpg(os.getpgid(0), signal.SIGKILL)
    os._exit(1)


def _resume_without_parent() -> None:
    """Have Linux wake this process when its parent dies: a paused one would otherwise never go on."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def _give_way(niceness: int) -> None:
    """Have this process and those that it starts run when nobody else wants a core; elsewhere than on Linux, rarely."""
    if hasattr(os, "nice"):
        os.nice(niceness)
    if hasattr(os, "SCHED_IDLE"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    # Linux may share the cores evenly among sessions, whatever their processes' priorities; this is one of its own.
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text("19")


def _set_up_copy() -> None:
    """Set up a copy of this process, which has none of its threads: not OpenMP's either, and would wait for them."""
    import torch

    _end_with_parent()
    torch.set_num_threads(1)


def _redirect_output(log: Path) -> int:
    """Send everything that prints to the log; the returned descriptor leads to the parent."""
    channel = os.dup(1)
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    return channel


def log_file(number: int | None = None) -> str:
    """Return the name of a further worker's log in the staging folder, or of the main worker's."""
    from onegraph.compiler.process.job import LOG_FILE

    return f"worker{number}.log" if number else LOG_FILE


def start_workers(staging: Path, count: int) -> list[subprocess.Popen[bytes]]:
    """Start further workers in this process group, that end when this process does; fewer where the system refuses."""
    workers: list[subprocess.Popen[bytes]] = []
    with contextlib.suppress(OSError):
        for number in range(1, count + 1):
            worker = subprocess.Popen(
                [sys.executable, __file__, str(staging), FURTHER, str(number)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=staging,
            )
            workers.append(worker)
    return workers


def _read_job(staging: Path) -> Job:
    from onegraph.compiler.process.job import read_job

    job, import_path = read_job(staging)
    sys.path += [path for path in import_path if path not in sys.path]
    return job


def _compile_regions(staging: Path) -> None:
    """Compile regions that the main worker hands out. It has set this process' environment and priority."""
    job = _read_job(staging)
    import torch

    from onegraph import backends
    from onegraph.backends.worker_pool import WorkerPool
    from onegraph.compiler.blocks import attention  # noqa: F401, for its operation

    torch.set_grad_enabled(False)
    gc.disable()
    device = torch.device(job.device)
    backend = backends.get(job.backend)
    assert isinstance(backend, backends.SharesCompiles)
    backend.help_with(staging, device, WorkerPool(staging, is_main=False))


class _MainWorker:
    """The process that compiles the graph and reports to the server.

    Args:
        channel: file descriptor that leads to the server.
    """

    def __init__(self, staging: Path, channel: int) -> None:
        self._staging = staging
        self._channel = channel

    def report(self, message: Message) -> None:
        """Send a message to the server."""
        from onegraph.compiler.process.job import to_json

        os.write(self._channel, (json.dumps(to_json(message)) + "\n").encode())

    def run(self) -> None:
        """Compile the job of the staging folder."""
        from onegraph.compiler.process.job import Stage

        self.report(Stage("starting"))
        job = _read_job(self._staging)
        cache = job.cache if CACHE not in os.environ else None
        # Without a folder to share, one that goes with the staging folder; torch's default is known to all users.
        os.environ.setdefault(CACHE, str(cache or self._staging / "compiler-cache"))
        if job.niceness:
            _give_way(job.niceness)
        pool = self._pool(job)
        from onegraph.backends.inductor import toolchain
        from onegraph.compiler.process import compile_job

        if cache is not None:  # else it is for others to keep small
            toolchain.trim(cache)
        self.report(compile_job.run(job, self._staging, pool, self.report))

    def _pool(self, job: Job) -> WorkerPool:
        """Start what shares the work."""
        # No copy of a process can use the GPU that the process uses.
        by_copies = job.device == "cpu" and sys.platform == "linux"
        workers = [] if by_copies else start_workers(self._staging, job.workers)
        from onegraph.backends.worker_pool import WorkerPool
        from onegraph.compiler.process.job import Regions

        return WorkerPool(
            self._staging,
            workers,
            copies=job.workers if by_copies else 0,
            in_copy=_set_up_copy,
            announce=lambda sizes: self.report(Regions(dict(sizes))),
        )


def _failure(error: Exception) -> Failed:
    """Describe a failure for the server."""
    from onegraph.common import memory
    from onegraph.common.errors import OneGraphError, disk_is_full, in_brief
    from onegraph.compiler.process.job import Failed
    from onegraph.graph_cache.files import is_passing

    try:
        cause = memory.ran_out(error)
    except ImportError as missing:  # torch
        return Failed(f"The compiling process failed ({type(error).__name__}: {missing.name}).")
    is_ours = isinstance(error, OneGraphError)
    if cause:
        which = "memory" if cause == "memory" else "GPU memory"
        names_cause = is_ours and getattr(error, "cause", "") == cause
        text = str(error) if names_cause else f"The compiling process ran out of {which} ({in_brief(error)})."
        return Failed(text, lasting=False, cause=cause)
    text = str(error) if is_ours else f"The compiling process failed ({type(error).__name__}: {in_brief(error)})."
    if disk_is_full(error):
        return Failed(text, lasting=False, cause="disk")
    if getattr(error, "cause", "") == "small":
        return Failed(text, cause="small")
    passing = is_passing(error) or is_passing(error.__cause__)
    return Failed(text, lasting=getattr(error, "lasting", True) and not passing)


def wait_for_job() -> tuple[Path, int]:
    """Import what every compile needs and wait until there is one; its staging folder, and what leads to the server.

    The process ends if none comes.
    """
    channel = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    likely = _next_line()
    sys.path += [path for path in likely["import_path"] if path not in sys.path]
    import_pack()
    chosen = os.environ.get(CACHE)
    os.environ.setdefault(CACHE, likely["cache"])
    import torch

    from onegraph import backends
    from onegraph.backends.inductor import toolchain
    from onegraph.compiler.process import compile_job  # noqa: F401, which takes time

    # First: it copies the process, and what comes after it may start the GPU's driver, which no copy survives.
    backends.get("inductor").prepare(torch.device(likely["device"]), 1)
    toolchain.import_compiler()
    if chosen is None:
        del os.environ[CACHE]  # the job tells it, and whether it is to be kept small
    job = _next_line()
    os.environ["TMPDIR"] = job["scratch"]
    tempfile.tempdir = None  # that of whoever asked before
    os.chdir(job["staging"])
    return Path(job["staging"]), channel


def _next_line() -> dict[str, Any]:
    """Read a line of standard input and nothing that follows it."""
    line = b""
    while not line.endswith(b"\n"):
        one = os.read(0, 1)
        if not one:
            _end_all()
        line += one
    message: dict[str, Any] = json.loads(line)
    return message


def main(staging: Path, number: int | None = None, channel: int | None = None) -> NoReturn:
    """Run as the main worker, or as a further worker with that number.

    Args:
        channel: what leads to the server where standard output does not any more.
    """
    if "onegraph" not in sys.modules:
        import_pack()
    parent_channel = _redirect_output(staging / log_file(number))
    worker = _MainWorker(staging, parent_channel if channel is None else channel)
    _end_with_parent()
    _resume_without_parent()
    try:
        if number is None:
            worker.run()
        else:
            _compile_regions(staging)
        code = 0
    except Exception as error:
        import traceback

        traceback.print_exc()
        worker.report(_failure(error))
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # no interpreter shutdown: thread pools of compilers are known to hang there


if __name__ == "__main__":
    if WAIT in sys.argv:
        folder, channel = wait_for_job()
        main(folder, channel=channel)
    main(Path(sys.argv[1]), int(sys.argv[3]) if FURTHER in sys.argv else None)
