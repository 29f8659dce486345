"""Lives of a server: real processes that call the toy through the dispatcher, and report what came of it.

A life is a process of its own with an own registry on a case's folders. A server process that has imported torch forks
it (`multiprocessing`'s forkserver), since importing takes as long as all the rest ten times over. What goes wrong in a
life is given as faults: context managers of `support.processes.faults`, which are entered before its first call.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import multiprocessing
import os
import re
import shutil
import signal as signals
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

from headless.standstill import PATIENCE, moved

from onegraph.common.reasons import Reason
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.layout import STAGING_FOLDER
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store

CLOSE = 1e-4  # relative L2 between the toy's graph and eager
_CLONE_NEWNS, _CLONE_NEWPID, _MS_REC, _MS_PRIVATE = 0x20000, 0x20000000, 0x4000, 0x40000  # of <sched.h>, <sys/mount.h>
_PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>

_PROBE = re.compile(r"[a-z0-9_]{8}")  # a name that `tempfile` makes up

Fault = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class Case:
    """The folders of one user: a checkpoint with its graphs, the user's folder, and one for temporary files.

    Attributes:
        golden: a folder with the files of the toy's graph, which compiles that cost nothing copy; empty where compiles
            are real.
    """

    root: Path
    golden: Path | None = None

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def temporary(self) -> Path:
        return self.root / "tmp"

    @property
    def compile_log(self) -> Path:
        """One byte for each compile; beside the folders, whose disk may be full."""
        return self.root.with_name(f"{self.root.name}-compiles.log")

    @property
    def source(self) -> ModelSource:
        return ModelSource(self.models / "photo.safetensors", "0123456789ab")

    @property
    def store(self) -> Store:
        return Store(self.home)

    @property
    def entries(self) -> list[Entry]:
        return list(self.store.entries())

    @property
    def entry(self) -> Entry:
        """The toy's only entry."""
        (entry,) = [entry for entry in self.entries if "graph.aoti" in entry.manifest.files and entry.manifest.code]
        return entry

    @property
    def copy(self) -> Path:
        """The toy's only copy beside the checkpoint."""
        (folder,) = self.models.glob("*.graphs/*/toy/any-size-float32-*")
        return folder

    @property
    def compiles(self) -> int:
        """How many compiles began, in all lives together."""
        with contextlib.suppress(FileNotFoundError):
            return self.compile_log.stat().st_size
        return 0

    def grow_older(self, seconds: float = 120.0) -> None:
        """Have everything be as old as if the next start came so much later."""
        for path in [self.root, *self.root.rglob("*")]:
            with contextlib.suppress(OSError):
                then = path.lstat().st_mtime - seconds
                os.utime(path, (then, then), follow_symlinks=False)

    def leftovers(self) -> list[str]:
        """What no process needs: staging folders, private copies, temporary files, crash markers."""
        found = [path for path in self.root.rglob("*") if _is_leftover(path.relative_to(self.root))]
        found = [path for path in found if not _is_pythons(path)]
        return sorted(str(path.relative_to(self.root)) for path in found)


def _is_leftover(path: Path) -> bool:
    if path.parts[0] == "tmp":
        return len(path.parts) > 1
    if path.parts[0] == "home" and path.parts[1:2] in ((".loading",), (".capturing",)):
        return len(path.parts) > 3
    temporary = path.name.startswith(".") and ".json." in path.name
    if path.parts[0] == "home" and path.parts[1:2] == (STAGING_FOLDER,):
        return len(path.parts) == 3
    return path.name.startswith(".writing-") or temporary


def _is_pythons(path: Path) -> bool:
    """Whether it is the file with which `tempfile.gettempdir` tries a folder, of a process killed meanwhile."""
    return _PROBE.fullmatch(path.name) is not None and path.is_file() and path.read_bytes() in (b"", b"blat")


def new_case(root: Path, golden: Path | None = None) -> Case:
    """Make the folders of a case without any graph."""
    case = Case(root, golden)
    for folder in (case.models, case.home, case.temporary):
        folder.mkdir(parents=True)
    assert case.source.path is not None
    case.source.path.write_bytes(b"weights")
    return case


def copy_case(case: Case, root: Path) -> Case:
    """Copy a case's folders, as a user who restores a backup."""
    shutil.copytree(case.root, root, symlinks=True)
    return Case(root, case.golden)


@dataclass(frozen=True)
class Report:
    """What a life told.

    Attributes:
        exit_code: None for 0; negative: the signal that ended it.
        raised: the exception that came out of a call, which none ever should.
        errors: of each call, the relative L2 to eager.
        reasons: why calls ran eager, in order.
        seconds: from the first call to the end of the last.
    """

    exit_code: int = 0
    raised: str = ""
    errors: tuple[float, ...] = ()
    reasons: tuple[Reason, ...] = ()
    compiles: int = 0
    restores: int = 0
    compiled_calls: int = 0
    seconds: float = 0.0

    @property
    def codes(self) -> tuple[str, ...]:
        return tuple(reason.code for reason in self.reasons)

    def fine(self) -> Report:
        """Assert what holds whatever goes wrong: every call gave what eager gives, or ran eager with a reason."""
        assert self.exit_code == 0 and not self.raised, self
        assert self.errors and max(self.errors) <= CLOSE, self
        assert self.compiled_calls + len(self.reasons) == len(self.errors), self
        assert "call_failed" not in self.codes, self
        return self

    def restored(self) -> Report:
        """Assert that its graph came from the store and served every call."""
        self.fine()
        assert (self.restores, self.compiles, self.codes) == (1, 0, ()), self
        return self


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Script:
    """What a life does.

    Attributes:
        runs: of a sampling with one call each.
        when_missing: as on the node.
        between: called between two runs.
        uid: the user who lives it; None: whoever runs the tests.
        contained: whether it lives in a PID namespace of its own, where it always is process 1.
    """

    case: Case
    runs: int = 1
    when_missing: Literal["wait", "eager"] = "wait"
    faults: tuple[Fault, ...] = ()
    between: Callable[[], object] = _nothing
    uid: int | None = None
    contained: bool = False


@functools.cache
def context() -> Any:
    """What starts lives. Its server has imported torch, and computed nothing that a fork could not take along."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["support.processes.lives_preload"])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)  # it takes no other, before 3.13
    try:
        forkserver.ensure_running()
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before
    return found


class Life:
    """A process that lives a script. `begun` returns when its first call is about to be made."""

    def __init__(self, script: Script) -> None:
        self._messages, theirs = context().Pipe(duplex=False)
        self._process: BaseProcess = context().Process(target=_live, args=(script, theirs), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def begun(self) -> Life:
        assert self._messages.poll(PATIENCE), "the process did not start"
        assert self._messages.recv() == "begun"
        return self

    def kill(self, signal: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal)

    def end(self) -> Report:
        """Wait for its end; one that hangs is killed, and fails."""
        told = Report()
        with contextlib.suppress(EOFError):
            while self._messages.poll(PATIENCE):
                message = self._messages.recv()
                moved()
                told = message if isinstance(message, Report) else told
        self._process.join(PATIENCE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
            raise AssertionError("the process hung")
        assert self._process.exitcode is not None
        return Report(**{**vars(told), "exit_code": self._process.exitcode})


def live(case: Case, *faults: Fault, runs: int = 1, when_missing: Literal["wait", "eager"] = "wait") -> Report:
    """Live through a number of runs, in a new process."""
    return Life(Script(case, runs, when_missing, faults)).end()


# In the process ------------------------------------------------------------------------------------------------


def _live(script: Script, connection: Connection) -> None:
    case = script.case
    os.environ["TMPDIR"], tempfile.tempdir = str(case.temporary), None
    if script.uid is not None:
        os.setgroups([])
        os.setgid(script.uid)
        os.setuid(script.uid)
    if script.contained:
        _enter_container()
    with _counted(case), contextlib.ExitStack() as faults:
        for fault in script.faults:
            faults.enter_context(fault())
        connection.send("begun")
        connection.send(_runs(script))
    gc.collect()  # a server that is stopped lets go of its graphs
    connection.close()
    os._exit(0)


def _enter_container() -> None:
    """Go on in the first process of a new PID namespace, with a /proc of it; the process outside ends as it does."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWPID | _CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    inside = os.fork()
    if inside:
        _, status = os.waitpid(inside, 0)
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            os.kill(os.getpid(), -code)
        os._exit(code)
    libc.prctl(_PR_SET_PDEATHSIG, signals.SIGKILL)
    libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    if libc.mount(b"proc", b"/proc", b"proc", 0, None) != 0:
        raise OSError(ctypes.get_errno(), "mount /proc")
    assert os.getpid() == 1


def containers_work() -> bool:
    """Whether this user may make PID namespaces."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", "true"]
    return shutil.which("unshare") is not None and subprocess.run(command, check=False).returncode == 0


def _runs(script: Script) -> Report:
    import torch

    from onegraph.runtime.obtain import registry
    from onegraph.runtime.policy import ANY_SPEED
    from support.models import toy

    torch.set_grad_enabled(False)
    engine = registry.Registry(script.case.store, policy=ANY_SPEED)
    module = toy.Toy(8)
    raised, errors, reasons, started = "", list[float](), list[Reason](), time.perf_counter()
    with registry.using(engine):
        for number in range(script.runs):
            if number:
                script.between()
            torch.manual_seed(number)
            try:
                error, refused = _call(script, module, toy.inputs())
            except Exception as exception:
                raised = f"{type(exception).__name__}: {exception}"
                break
            errors.append(error)
            reasons += refused
    counters = engine.counters
    return Report(
        raised=raised,
        errors=tuple(errors),
        reasons=tuple(reasons),
        compiles=counters.compiles,
        restores=counters.restores,
        compiled_calls=counters.compiled_calls,
        seconds=time.perf_counter() - started,
    )


def _call(script: Script, module: Any, inputs: Any) -> tuple[float, list[Reason]]:
    """One run with one call; the distance from eager, and why it ran eager."""
    from onegraph.runtime.calls.dispatch import Call, Dispatcher
    from onegraph.runtime.calls.run import Run
    from onegraph.runtime.graphs.faithfulness import relative_l2
    from support.models import toy

    run = Run()
    request = toy.request(module, script.case.source, neighbours=(script.case.models,))

    class Host(Dispatcher):
        """A client that knows nothing of memory, and follows no compile."""

        def follow(self, label: str) -> Callable[[object], None]:
            return lambda progress: None

    output = Host().dispatch(
        run, module, lambda: Call(request, inputs, module, script.when_missing), lambda: module(*inputs)
    )
    return relative_l2(output, module(*inputs)), list(run.report.eager.elements())


@contextlib.contextmanager
def _counted(case: Case) -> Iterator[None]:
    """Count compiles over all lives. Where the case has a finished graph, that is what they give."""
    from onegraph.runtime.obtain import compiles

    really = compiles.compile_in_child
    give = really if case.golden is None else functools.partial(_copied, case.golden)

    def counted(*args: Any) -> Any:
        with case.compile_log.open("ab") as log:
            log.write(b".")
        return give(*args)

    compiles.compile_in_child = counted
    try:
        yield
    finally:
        compiles.compile_in_child = really


def _copied(golden: Path, job: Any, staging: Path, *args: object) -> Any:
    """Compile as fast as files are copied: what a real compile of the same gave before."""
    from onegraph.compiler.process.job import Compiled, write_job
    from onegraph.graph_cache.entry import Entry, constants_of, read
    from onegraph.graph_cache.manifest import CONSTANTS_FILE

    write_job(job, staging)
    entry = read(golden)
    assert isinstance(entry, Entry)
    files = tuple(name for name in entry.manifest.files if name != CONSTANTS_FILE)
    for name in files:
        shutil.copyfile(golden / name, staging / name)
    return Compiled(files, constants_of(entry), 1.0, entry.manifest.code)
