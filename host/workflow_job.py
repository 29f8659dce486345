"""An API workflow run in a short form on a ComfyUI server: `python -m onegraph.host.workflow_job JOB`.

JOB is JSON with the fields of `Job`. Nothing is rendered: of each sampler two steps are run in place of all, nothing
is saved. Everything else is as in a run of the workflow, so that the graphs that this needs are those that a run needs.
Each line printed is JSON, an event; the last one is `done` or `failed`. Imports neither torch nor ComfyUI: the server
does.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import json
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

STEPS = 2
MOST_ROUNDS = 4  # after which something compiles at each run
_START_SECONDS = 600
_PAUSE = 0.3
_SIZE = re.compile(r"(\d+)x(\d+)")

Prompt = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Job:
    """What to run.

    Attributes:
        workflow: file of the workflow in ComfyUI's API format.
        mode: `bake` compiles what is missing; `explain` compiles nothing.
        sizes: `WIDTHxHEIGHT` each; none: as in the workflow.
        comfyui: ComfyUI's folder, from which a server is started.
        server: address of a running one, in place of that.
        options: for the server that is started.
    """

    workflow: str
    mode: Literal["bake", "explain"]
    sizes: tuple[str, ...] = ()
    comfyui: str = ""
    server: str = ""
    options: tuple[str, ...] = ()


class JobError(Exception):
    """The workflow cannot be run; the message tells why and what to do."""


# The workflow ---------------------------------------------------------------------------------------------------


def read(path: Path) -> Prompt:
    """Read a workflow in the API format. Raises JobError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise JobError(f"{path.name} cannot be read as JSON ({error}).") from error
    if isinstance(data, dict) and isinstance(data.get("nodes"), list):
        raise JobError(f"{path.name} is a workflow for the editor. Export it there with `Export (API)`.")
    prompt = data.get("prompt", data) if isinstance(data, dict) else None
    nodes = prompt.values() if isinstance(prompt, dict) else ()
    if not nodes or not all(isinstance(n, dict) and isinstance(n.get("class_type"), str) for n in nodes):
        raise JobError(f"{path.name} is no workflow in ComfyUI's API format.")
    assert isinstance(prompt, dict)
    return prompt


def shortened(prompt: Prompt, mode: str, size: str = "") -> Prompt:
    """Make a workflow short: two steps of each sampler, nothing saved, no graph compiled by `explain`."""
    prompt = copy.deepcopy(prompt)
    for node in prompt.values():
        kind, given = node["class_type"], node.setdefault("inputs", {})
        for name in ("seed", "noise_seed"):  # a server runs nothing anew that is as it was
            if isinstance(given.get(name), int):
                given[name] = random.randrange(2**32)
        if isinstance(given.get("steps"), int):
            given["steps"] = min(given["steps"], STEPS)
        if kind == "KSamplerAdvanced":  # each samples, also one that was to go on where another stops
            given |= {"start_at_step": 0, "end_at_step": 10000}
        elif kind == "SplitSigmas":
            given["step"] = 1
        elif kind == "SaveImage":
            node["class_type"] = "PreviewImage"
            given.pop("filename_prefix", None)
        elif kind.startswith("OneGraph"):
            given["when_missing"] = "eager" if mode == "explain" else "wait"
        if size and kind.startswith("Empty") and isinstance(given.get("width"), int):
            given["width"], given["height"] = (int(side) for side in size.split("x"))
    return prompt


def nodes_of_ours(prompt: Prompt) -> list[str]:
    """The nodes of a workflow that run graphs."""
    return [
        name for name, node in prompt.items() if node["class_type"].startswith(("OneGraph", "OneDiff", "SVDSpeedup"))
    ]


# The server -----------------------------------------------------------------------------------------------------


class Server:
    """A ComfyUI server, spoken to over HTTP."""

    def __init__(self, address: str) -> None:
        self._address = address.rstrip("/")

    def ask(self, path: str, data: Any = None) -> Any:
        """GET, or POST of JSON. Raises OSError, ValueError."""
        body = None if data is None else json.dumps(data).encode()
        request = urllib.request.Request(self._address + path, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def queue(self, prompt: Prompt) -> str:
        """Queue a workflow; its id. Raises JobError, OSError."""
        try:
            return str(self.ask("/prompt", {"prompt": prompt})["prompt_id"])
        except urllib.error.HTTPError as error:
            raise JobError(f"ComfyUI refuses the workflow: {_refusal(error)}") from error

    def result(self, prompt_id: str) -> dict[str, Any] | None:
        """The status of a workflow that has ended."""
        found = self.ask(f"/history/{prompt_id}").get(prompt_id)
        return None if found is None else dict(found.get("status") or {})


def _refusal(error: urllib.error.HTTPError) -> str:
    with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
        data = json.loads(error.read())
        texts = [str(data["error"].get("message"))]
        for node, found in (data.get("node_errors") or {}).items():
            texts += [
                f"node {node} ({found.get('class_type')}): {e.get('message')}, {e.get('details')}"
                for e in found["errors"]
            ]
        return "; ".join(texts)
    return f"HTTP {error.code}"


@contextlib.contextmanager
def started(job: Job) -> Iterator[Server]:
    """Give a running server: the one that the job names, or a new one, which ends with the block. Raises JobError."""
    if job.server:
        server = Server(job.server)
        with contextlib.suppress(OSError, ValueError):
            server.ask("/system_stats")
            yield server
            return
        raise JobError(f"No ComfyUI answers at {job.server}.")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="onegraph-workflow-") as folder:
        command = [
            sys.executable, str(Path(job.comfyui) / "main.py"), "--port", str(port), "--disable-auto-launch",
            "--output-directory", folder, "--temp-directory", folder, "--database-url", "sqlite:///:memory:",
            *_front_end(Path(folder)), *job.options,
        ]  # fmt: skip
        log = Path(folder) / "log.txt"
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            yield _wait(Server(f"http://127.0.0.1:{port}"), process, log)
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _front_end(folder: Path) -> list[str]:
    """ComfyUI does not start without a front end, at which nobody looks here."""
    if importlib.util.find_spec("comfyui_frontend_package") is not None:
        return []
    (folder / "front-end").mkdir()
    (folder / "front-end" / "index.html").write_text("")
    return ["--front-end-root", str(folder / "front-end")]


def _wait(server: Server, process: subprocess.Popen[bytes], log: Path) -> Server:
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            last = (log.read_text(errors="replace").strip().splitlines() or ["it printed nothing"])[-1]
            raise JobError(f"ComfyUI ended with code {process.returncode}: {last}")
        with contextlib.suppress(OSError, ValueError):
            server.ask("/system_stats")
            return server
        time.sleep(_PAUSE)
    raise JobError(f"ComfyUI did not answer within {_START_SECONDS} s.")


# Running --------------------------------------------------------------------------------------------------------


def tell(event: str, **more: Any) -> None:
    """Print an event."""
    sys.stdout.write(json.dumps({"event": event, **more}) + "\n")
    sys.stdout.flush()


def run(job: Job) -> None:
    """Run a job, and tell of each run what its nodes did. Raises JobError, OSError."""
    prompt = read(Path(job.workflow))
    ours = nodes_of_ours(prompt)
    if not ours:
        raise JobError("The workflow has no node of OneGraph. Put Compile Model (OneGraph) behind its loader.")
    old = [n for n in ours if not prompt[n]["class_type"].startswith("OneGraph")]
    if job.mode == "explain" and old:
        raise JobError(f"Node {old[0]} is one of OneDiff's, which always compiles. Use the nodes of OneGraph.")
    for size in job.sizes:
        if _SIZE.fullmatch(size) is None:
            raise JobError(f"{size} is not a size; write it like 1024x1024.")
    tell("starting")
    with started(job) as server:
        with contextlib.suppress(urllib.error.HTTPError):
            server.ask("/onegraph/status")
        for size in job.sizes or ("",):
            _run_until_nothing_compiles(server, job, prompt, size)
    tell("done")


def _run_until_nothing_compiles(server: Server, job: Job, prompt: Prompt, size: str) -> None:
    for number in range(1, MOST_ROUNDS + 1):
        before = server.ask("/onegraph/status")["compiles"]
        tell("running", size=size, round=number)
        prompt_id = server.queue(shortened(prompt, job.mode, size))
        try:
            status = _follow(server, prompt_id)
        except BaseException:
            with contextlib.suppress(OSError, ValueError):
                server.ask("/interrupt", {})
            raise
        compiled = status["compiles"] - before
        if not compiled or job.mode == "explain":
            tell("ran", size=size, compiles=compiled, runs=_runs(status, prompt))
            return
        tell("compiled", size=size, compiles=compiled)
    tell("ran", size=size, compiles=compiled, runs=_runs(status, prompt))


def _runs(status: dict[str, Any], prompt: Prompt) -> dict[str, Any]:
    """The runs of the workflow's own nodes: a server that ran before knows others."""
    return {node: runs for node, runs in status["all_runs"].items() if node in prompt}


def _follow(server: Server, prompt_id: str) -> dict[str, Any]:
    """Wait until a workflow has ended, and what it left to compile, too; the status then. Raises JobError, OSError."""
    while True:
        status: dict[str, Any] = server.ask("/onegraph/status")
        ended = server.result(prompt_id)
        if status["compiling"]:
            tell("compiling", compiles=status["compiling"])
        waits = status["compiling"] or status["background_compiles"] or status["deferred_compiles"]
        if ended is not None and ended.get("status_str") != "success":
            raise JobError(f"The workflow failed: {_failure(ended)}")
        if ended is not None and not waits:
            final: dict[str, Any] = server.ask("/onegraph/status")
            return final
        time.sleep(_PAUSE)


def _failure(ended: dict[str, Any]) -> str:
    for name, data in ended.get("messages") or ():
        if name == "execution_error":
            return f"node {data.get('node_id')} ({data.get('node_type')}): {str(data.get('exception_message')).strip()}"
        if name == "execution_interrupted":
            return "it was interrupted"
    return str(ended.get("status_str"))


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a server that was started ends, too
    fields = json.loads(sys.argv[1])
    job = Job(**{**fields, "sizes": tuple(fields["sizes"]), "options": tuple(fields["options"])})
    try:
        run(job)
    except JobError as error:
        tell("failed", text=str(error))
        sys.exit(1)
    except (OSError, ValueError, KeyError) as error:
        tell("failed", text=f"ComfyUI does not answer as expected ({type(error).__name__}: {error}).")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
