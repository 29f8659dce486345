"""The compiling process: rebuild the module, capture, compile, load the result once, report.

Run by path, `python compiler/worker.py STAGING`, never imported by the server: a compiler crash, an artifact
that crashes on load and the compiler's memory all stay here. It reads `job.json` and `structure.bin` from
the staging folder, writes the graph's files there and speaks JSON lines on its standard output. When its standard
input closes, its parent is gone and it ends itself and its compilers. Where the job asks for helpers, these are
copies of it (Linux, for a CPU) or it starts itself with `--help-with`: they compile regions of the graph (`WorkerPool`)
and say nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

JOB_FILE = "job.json"
STRUCTURE_FILE = "structure.bin"
LOG_FILE = "compile.log"
HELP = "--help-with"
_PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>


def _import_pack() -> None:
    """Make the pack importable as `onegraph`, whatever its folder is called."""
    root = Path(__file__).resolve().parents[1]
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
        if os.name == "posix":
            os.killpg(os.getpgid(0), signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _go_on_without_parent() -> None:
    """Have Linux wake this process when its parent dies: one that stands still would otherwise do so for ever."""
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


def _in_copy() -> None:
    """In a copy of this process, which has none of its threads: not OpenMP's either, and would wait for them."""
    import torch

    _end_with_parent()
    torch.set_num_threads(1)


def _take_over_output(log: Path) -> int:
    """Send everything that prints to the log; the returned descriptor is the way to the parent."""
    channel = os.dup(1)
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    return channel


def _start_helpers(staging: Path, count: int) -> list[subprocess.Popen[bytes]]:
    """Helpers of this process, in its process group, that end when it does; fewer where the system refuses."""
    helpers: list[subprocess.Popen[bytes]] = []
    with contextlib.suppress(OSError):
        for number in range(1, count + 1):
            helper = subprocess.Popen(
                [sys.executable, __file__, str(staging), HELP, str(number)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=staging,
            )
            helpers.append(helper)
    return helpers


def _read_job(staging: Path) -> dict[str, Any]:
    job: dict[str, Any] = json.loads((staging / JOB_FILE).read_text(encoding="utf-8"))
    for path in job["path"]:
        if path not in sys.path:
            sys.path.append(path)
    return job


def _help(staging: Path) -> None:
    """Compile parts that the leading process hands out. It has set this process' environment and priority."""
    job = _read_job(staging)
    import torch

    from onegraph import backends
    from onegraph.backends.worker_pool import WorkerPool

    torch.set_grad_enabled(False)
    gc.disable()
    device = torch.device(job["device"])
    backend = backends.get(job["backend"])
    assert isinstance(backend, backends.SharesCompiles)
    backend.help_with(staging, device, WorkerPool(staging, is_main=False))


def _run(staging: Path, tell: Any) -> dict[str, Any]:
    tell({"event": "stage", "stage": "starting"})
    job = _read_job(staging)
    ours = bool(job["cache"]) and "TORCHINDUCTOR_CACHE_DIR" not in os.environ  # else it is for others to keep small
    if ours:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = job["cache"]
    if job["niceness"]:
        _give_way(job["niceness"])
    # No copy of a process can use the GPU that the process uses.
    by_copies = job["device"] == "cpu" and sys.platform == "linux"
    helpers = [] if by_copies else _start_helpers(staging, job["helpers"])
    import torch

    from onegraph import backends
    from onegraph.backends.inductor import toolchain
    from onegraph.common import shapes, tensor_meta
    from onegraph.compiler import export

    if ours:
        toolchain.trim(Path(job["cache"]))
    torch.set_grad_enabled(False)
    backend = backends.get(job["backend"])
    device = torch.device(job["device"])
    if job["kept"] is None:
        backend.prepare(device, job["helpers"])
    spec = shapes.ShapeRange.from_json(job["shapes"])
    inputs = export.example_inputs(spec, job["hint"], device)
    if job["kept"] is None:
        from onegraph.backends.worker_pool import WorkerPool

        copies = job["helpers"] if by_copies else 0

        def announce(sizes: Any) -> None:
            tell({"event": "parts", "sizes": dict(sizes)})

        pool = WorkerPool(staging, helpers, True, copies, _in_copy, announce)
        gc.disable()  # a seventh of a compile's time; nearly all that it looks at is there until the end
        files, state, used, code = _compile(staging, job, backend, inputs, pool, tell)
    else:
        tell({"event": "stage", "stage": "compiling"})
        assert isinstance(backend, backends.Rebuilds)
        files, used, code = backend.rebuild(Path(job["kept"]), inputs, staging), set(), None
        weights = map(tensor_meta.TensorMeta.from_json, job["constants"])
        state = {
            w.name: torch.empty_strided(w.shape, w.stride, dtype=w.torch_dtype, device=device).zero_() for w in weights
        }
    runner, constants = _checked(staging, backend, device, inputs, state, used, tell)
    # From here on nothing that goes wrong makes the graph worse than it is.
    tell({"event": "checked", "files": files, "constants": constants, "code": code})
    capturable = runner.cuda_graphs is not None and runner.cuda_graphs.try_out(*inputs)
    return {"event": "done", "files": files, "constants": constants, "code": code, "cuda_graphs": capturable}


def _compile(
    staging: Path, job: dict[str, Any], backend: Any, inputs: Any, pool: Any, tell: Any
) -> tuple[list[str], dict[str, Any], set[str], dict[str, Any]]:
    """Rebuild the module, capture and compile it.

    Returns:
        Files, weights (zeros) by name, the names of those that the code reads, and the record of what was captured.
    """
    client = importlib.import_module(job["client"], "onegraph")
    client.prepare(job["state"])

    from onegraph.common import shapes
    from onegraph.compiler import code_record, export, skeleton

    device = inputs[0].device
    module = skeleton.load((staging / STRUCTURE_FILE).read_bytes(), device)
    wrapped = client.wrap(job["component"], module)
    tell({"event": "stage", "stage": "capturing"})
    with backend.capture_settings():
        with code_record.watched() as seen:
            exported = export.capture(wrapped, shapes.ShapeRange.from_json(job["capture"]), job["hint"], device)
        code = code_record.record(seen, module, client.rules())
        tell({"event": "stage", "stage": "compiling"})
        files = backend.compile(exported, inputs, staging, pool)
    named = [
        *wrapped.named_parameters(remove_duplicate=False),
        *wrapped.named_buffers(remove_duplicate=False),
    ]
    return files, dict(named), _used_constants(exported), code.model_dump(mode="json")


def _checked(
    staging: Path, backend: Any, device: Any, inputs: Any, state: dict[str, Any], used: set[str], tell: Any
) -> tuple[Any, list[dict[str, Any]]]:
    """Load and run the finished graph once, here where a crash costs nothing: its runner, the weights that it reads."""
    import torch

    from onegraph.common.errors import CompileError
    from onegraph.common.tensor_meta import TensorMeta

    tell({"event": "stage", "stage": "checking"})
    runner = backend.load(staging, device)
    names = runner.constant_names()
    unknown = set(names) - set(state)
    if unknown:
        raise CompileError(f"The graph wants {sorted(unknown)[0]}, which is no weight of the model.")
    # A weight that the code never reads may be left out of the graph; one that it reads but does not list has
    # been compiled in by value, and other checkpoints would run with this one's. The exported graph tells.
    inlined = sorted((set(state) - set(names)) & used)
    if inlined:
        raise CompileError(f"The compiler put the weight {inlined[0]} into the code by value; it runs eager instead.")
    runner.bind({name: state[name] for name in names})
    result = runner(*inputs)
    if not bool(torch.isfinite(result).all()):
        raise CompileError("The finished graph returned values that are not finite for zero weights.")
    return runner, [TensorMeta.of(name, state[name]).to_json() for name in names]


def _used_constants(exported: Any) -> set[str]:
    signature = exported.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    return {names[n.name] for n in exported.graph.nodes if n.op == "placeholder" and n.name in names and n.users}


def _explain(error: Exception) -> dict[str, Any]:
    """What the server needs to know of a failure."""
    try:
        from onegraph.common import memory
        from onegraph.common.errors import OneGraphError, in_brief
    except ImportError as missing:  # torch, or the pack itself
        return {"reason": f"The compiling process failed ({type(error).__name__}: {missing.name}).", "lasting": True}
    known, cause = isinstance(error, OneGraphError), memory.ran_out(error)
    if cause:
        which = "memory" if cause == "memory" else "GPU memory"
        own = known and getattr(error, "cause", "") == cause
        text = str(error) if own else f"The compiling process ran out of {which} ({in_brief(error)})."
        return {"reason": text, "lasting": False, "cause": cause}
    text = str(error) if known else f"The compiling process failed ({type(error).__name__}: {in_brief(error)})."
    return {"reason": text, "lasting": getattr(error, "lasting", True)}


def main(staging: Path, help_number: int | None = None) -> NoReturn:
    channel = _take_over_output(staging / (f"helper{help_number}.log" if help_number else LOG_FILE))

    def tell(message: dict[str, Any]) -> None:
        os.write(channel, (json.dumps(message) + "\n").encode())

    _end_with_parent()
    _go_on_without_parent()
    started = time.perf_counter()
    try:
        _import_pack()
        if help_number is None:
            message = _run(staging, tell)
            tell({**message, "seconds": time.perf_counter() - started})
        else:
            _help(staging)
        code = 0
    except Exception as error:
        import traceback

        traceback.print_exc()
        tell({"event": "failed", **_explain(error)})
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # no interpreter shutdown: thread pools of compilers are known to hang there


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[3]) if HELP in sys.argv else None)
