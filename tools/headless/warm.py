"""Processes of Python that start as copies of one that has imported what takes ten seconds: for runs of many tests.

`python warm.py SOCKET` imports and serves until its standard input ends. `tools/run_tests.py` starts one for all its
layers and names it in `ONEGRAPH_TESTING_WARM`; without it, everything starts as ever. A copy runs a script as Python
does: in a session of its own, with the given arguments, environment, folder and files. It is killed when whoever
started it ends. Linux only.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

VARIABLE = "ONEGRAPH_TESTING_WARM"  # names the socket
# What compiles share, as one user's do: tests whose stores are empty would each probe the CPU and compile the runtime.
# Code that only calls kernels is not optimised: each compile takes some seconds less, and its results are the same.
SETTINGS = {
    "TORCHINDUCTOR_CACHE_DIR": str(Path(__file__).parents[2] / "build" / "test" / "inductor"),
    "AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL": "O0",
    "ONEGRAPH_TESTING_PRECOMPILE_HEADERS": "1",
}
NOTES = Path(__file__).parents[2] / "build" / "test" / "copies.tsv"  # what each copy took
# What ComfyUI's server, compiling processes and diffusers import of other projects; what is missing is left out.
_IMPORTS = (
    "torch", "torch._dynamo", "torch.export", "torch._inductor.compile_fx", "torch._inductor.graph",
    "torch._inductor.codegen.cpp", "torch._inductor.codegen.cpp_wrapper_cpu", "torchvision", "numpy", "scipy.integrate",
    "PIL.Image", "einops", "safetensors.torch", "transformers", "torchsde", "kornia", "comfy_kitchen", "aiohttp.web",
    "sqlalchemy.orm", "alembic", "av", "pydantic", "blake3", "filelock", "psutil",
    "peft", "torchao", "diffusers.models.transformers", "diffusers.models.autoencoders", "diffusers.models.unets",
    "diffusers.pipelines.stable_diffusion_xl.pipeline_stable_diffusion_xl",
)  # fmt: skip
_READ_AT_START = ("MALLOC_", "LD_", "GLIBC_", "OMP_")  # variables that a copy would not follow
_HEAD = 4  # bytes of a request's length
_FILES = 3


def _read_at_start(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(_READ_AT_START)}


_AT_START = _read_at_start(os.environ)


class Copy:
    """A copy that runs, with what is used of `subprocess.Popen`.

    Attributes:
        stdin, stdout: of a copy that was started with pipes.
    """

    def __init__(self, channel: socket.socket, stdin: IO[bytes] | None, stdout: IO[bytes] | None) -> None:
        self._channel = channel
        self.stdin, self.stdout = stdin, stdout
        self._lines = channel.makefile("rb")
        self.pid = int(self._lines.readline())
        self.returncode: int | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._wait, name="onegraph-testing-copy", daemon=True).start()

    def _wait(self) -> None:
        line = self._lines.readline()
        self.returncode = int(line) if line else -signal.SIGKILL
        self._ended.set()
        self._channel.close()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired("a copy", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, sign: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sign)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


Process = Copy | subprocess.Popen[bytes]


def start(command: Sequence[str], *, environ: Mapping[str, str], cwd: Path, out: int | None = None) -> Process:
    """Start a script of Python in a session of its own, as a copy where that is the same.

    Args:
        command: the interpreter, the script and its arguments.
        out: descriptor of a file for all that it prints, with nothing to read; None: pipes for both, and errors go
            nowhere.
    """
    address = os.environ.get(VARIABLE)
    if address and _read_at_start(environ) == _AT_START:
        return _started(address, command, environ, cwd, out)
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL if out is not None else subprocess.PIPE,
        stdout=out if out is not None else subprocess.PIPE,
        stderr=out if out is not None else subprocess.DEVNULL,
        cwd=cwd,
        env=dict(environ),
        start_new_session=True,
    )


def _started(address: str, command: Sequence[str], environ: Mapping[str, str], cwd: Path, out: int | None) -> Copy:
    channel = socket.socket(socket.AF_UNIX)
    channel.connect(address)
    data = json.dumps({"script": command[1:], "environ": dict(environ), "cwd": str(cwd)}).encode()
    with contextlib.ExitStack() as given:
        nothing = os.open(os.devnull, os.O_RDWR)
        given.callback(os.close, nothing)
        stdin = stdout = None
        files = [nothing, out, out]
        if out is None:
            (read, own_in), (own_out, write) = os.pipe(), os.pipe()
            given.callback(os.close, read)
            given.callback(os.close, write)
            stdin, stdout = os.fdopen(own_in, "wb"), os.fdopen(own_out, "rb")
            files = [read, write, nothing]
        socket.send_fds(channel, [len(data).to_bytes(_HEAD, "big")], [cast(int, file) for file in files])
        channel.sendall(data)
        return Copy(channel, stdin, stdout)


def serve(path: str) -> list[str]:
    """Copy this process for each request. Returns in the copies, with the script and its arguments."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"{path}.new")
    listening.listen(64)
    Path(f"{path}.new").rename(path)
    sources: list[Any] = [listening, sys.stdin]
    while True:
        ready, _, _ = select.select(sources, [], [], 1.0)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if sys.stdin in ready:
            sys.exit(0)
        if listening not in ready:
            continue
        channel, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            return _copied(channel)
        channel.close()


def _copied(channel: socket.socket) -> list[str]:
    """Copy once more, and tell how that one ends. Returns in it."""
    head, files, _, _ = socket.recv_fds(channel, _HEAD, _FILES)
    with channel.makefile("rb") as lines:
        request = json.loads(lines.read(int.from_bytes(head, "big")))
    copy = os.fork()
    if copy == 0:
        channel.close()
        return _set_up(files, **request)
    for file in files:
        os.close(file)
    channel.sendall(f"{copy}\n".encode())
    ended = os.pidfd_open(copy)
    sources: list[Any] = [ended, channel]
    if ended not in select.select(sources, [], [])[0]:  # whoever started it has ended
        with contextlib.suppress(ProcessLookupError):
            os.killpg(copy, signal.SIGKILL)
    _, status, used = os.wait4(copy, 0)
    code = os.waitstatus_to_exitcode(status)
    _note(request, used.ru_utime + used.ru_stime)
    with contextlib.suppress(OSError):
        channel.sendall(f"{code}\n".encode())
    os._exit(0)


def _note(request: Mapping[str, Any], seconds: float) -> None:
    """Write down how much CPU time a copy took, with what it starts and waits for, and which test it was for."""
    test = request["environ"].get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    line = f"{seconds:.2f}\t{Path(request['script'][0]).name}\t{test}\n"
    with contextlib.suppress(OSError), NOTES.open("a") as notes:
        notes.write(line)


def _set_up(files: list[int], script: list[str], environ: dict[str, str], cwd: str) -> list[str]:
    """Make this copy what the script would find in a process of its own."""
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup this process ignores it
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environ)
    tempfile.tempdir = None
    sys.argv, sys.path[0] = script, str(Path(script[0]).parent)
    return script


def _find_headers_by_name() -> None:
    """Have copies find a precompiled header by what it is made with.

    torch names it by the text of all that it includes, which it lets the compiler gather and hashes at each compile:
    twice half a second, for headers that do not change while tests run.
    """
    codecache: Any = importlib.import_module("torch._inductor.codecache")
    usual = getattr(codecache, "_precompile_header", None)
    if usual is None or not hasattr(codecache, "_HEADER_DIR"):
        return

    def known(header: str, command: str, **options: Any) -> str:
        made_with = repr((header, command, sorted((name, str(value)) for name, value in options.items())))
        note = Path(codecache._HEADER_DIR) / f"{hashlib.sha256(made_with.encode()).hexdigest()}.known"
        if note.exists():
            found = note.read_text()
            if Path(f"{found}.gch").exists():
                return found
        found = str(usual(header, command, **options))
        scratch = note.with_suffix(f".{os.getpid()}")
        scratch.write_text(found)
        scratch.replace(note)
        return found

    codecache._precompile_header = known


def main(path: str) -> None:
    """Import, serve, and run what is asked for in the copies."""
    os.environ.update({name: value for name, value in SETTINGS.items() if name not in os.environ})
    for name in _IMPORTS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    _find_headers_by_name()
    assert threading.active_count() == 1, "copies would wait for threads that they do not have"
    gc.collect()
    gc.freeze()
    NOTES.unlink(missing_ok=True)
    script, *_ = serve(path)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1])
