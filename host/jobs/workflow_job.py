"""A workflow run in a short form on a ComfyUI server: `python -m onegraph.host.jobs.workflow_job TASK`.

TASK is JSON with the fields of `WorkflowTask`. Nothing is rendered: `trial_runs` says what is run in place of the
workflow. Each line printed is JSON, an event; the last one is `done` or `failed`. Imports neither torch nor ComfyUI:
the server does.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import editor_workflow, inserting
from .trial_runs import (
    CannotTellError,
    JobError,
    Mode,
    NodeType,
    Prompt,
    checked,
    nodes_of_ours,
    read,
    refusal_text,
    run_until_nothing_compiles,
)

_START_SECONDS = 600
_PAUSE = 0.3
_SIZE = re.compile(r"(\d+)x(\d+)")


@dataclass(frozen=True)
class WorkflowTask:
    """What to run.

    Attributes:
        workflow: file of the workflow, in ComfyUI's API format or as its editor saves it.
        mode: `bake` compiles what is missing; `explain` compiles nothing.
        sizes: `WIDTHxHEIGHT` each; none: as in the workflow.
        comfyui: ComfyUI's folder, from which a server is started.
        server: address of a running one, in place of that.
        options: for the server that is started.
        no_run: `explain` tells what files and graphs do, and runs nothing.
    """

    workflow: str
    mode: Mode
    sizes: tuple[str, ...] = ()
    comfyui: str = ""
    server: str = ""
    options: tuple[str, ...] = ()
    no_run: bool = False


# The server -----------------------------------------------------------------------------------------------------


class HttpServer:
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

    def status(self) -> dict[str, Any]:
        """Ask what OneGraph did there. Raises OSError, ValueError."""
        status: dict[str, Any] = self.ask("/onegraph/status")
        return status

    def node_type(self, kind: str) -> NodeType:
        """Describe a type of node; one that is missing ends no workflow. Raises OSError, ValueError."""
        info = self.ask(f"/object_info/{urllib.parse.quote(kind, safe='')}").get(kind) or {}
        return NodeType(bool(info.get("output_node")), tuple(map(str, info.get("output") or ())))

    def queue(self, prompt: Prompt) -> str:
        """Queue a workflow; its id. Raises JobError, OSError."""
        try:
            return str(self.ask("/prompt", {"prompt": prompt})["prompt_id"])
        except urllib.error.HTTPError as error:
            raise JobError(f"ComfyUI refuses the workflow: {_refusal(error)}") from error

    def result(self, prompt_id: str) -> dict[str, Any] | None:
        """Return the status of a workflow that has ended."""
        history = self.ask(f"/history/{prompt_id}").get(prompt_id)
        return None if history is None else dict(history.get("status") or {})

    def stop(self, prompt_id: str) -> None:
        """Interrupt what runs. Never raises."""
        with contextlib.suppress(OSError, ValueError):
            self.ask("/interrupt", {})


def _refusal(error: urllib.error.HTTPError) -> str:
    with contextlib.suppress(OSError):
        return refusal_text(error.read(), error.code)
    return f"HTTP {error.code}"


@contextlib.contextmanager
def started(task: WorkflowTask) -> Iterator[HttpServer]:
    """Give a running server: the one that the task names, or a new one, which ends with the block. Raises JobError."""
    if task.server:
        server = HttpServer(task.server)
        with contextlib.suppress(OSError, ValueError):
            server.ask("/system_stats")
            yield server
            return
        raise JobError(f"No ComfyUI answers at {task.server}.")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="onegraph-workflow-") as folder:
        command = [
            sys.executable, str(Path(task.comfyui) / "main.py"), "--port", str(port), "--disable-auto-launch",
            "--output-directory", folder, "--temp-directory", folder, "--database-url", "sqlite:///:memory:",
            *_front_end(Path(folder)), *task.options,
        ]  # fmt: skip
        log = Path(folder) / "log.txt"
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            yield _wait(HttpServer(f"http://127.0.0.1:{port}"), process, log)
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


def _wait(server: HttpServer, process: subprocess.Popen[bytes], log: Path) -> HttpServer:
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


def run(task: WorkflowTask) -> None:
    """Run a task, and tell of each run what its nodes did. Raises JobError, OSError."""
    path = Path(task.workflow)
    data = read(path)
    prompt = None if editor_workflow.is_editors(data) else checked(data, path.name)
    if prompt is not None:
        _check_nodes(prompt, task.mode)
    for size in task.sizes:
        if _SIZE.fullmatch(size) is None:
            raise JobError(f"{size} is not a size; write it like 1024x1024.")
    tell("starting")
    with started(task) as server:
        with contextlib.suppress(urllib.error.HTTPError):
            server.ask("/onegraph/status")
        lacks: list[str] = []
        if prompt is None:
            types = server.ask("/object_info")
            prompt, behind = inserting.prompt_of_editors(data, types, path.name)
            if behind:
                tell("added", text=f"with Compile Model (OneGraph) after node {', '.join(behind)}")
            lacks = editor_workflow.lacking(prompt, types)
            _check_nodes(prompt, task.mode)
        if task.mode == "explain":
            with contextlib.suppress(urllib.error.HTTPError):  # of a server with an older OneGraph
                tell("models", models=server.ask("/onegraph/explain", {"prompt": prompt})["models"])
        if lacks:
            raise CannotTellError(f"This ComfyUI does not have all that {path.name} names: {'; '.join(lacks)}.")
        for size in () if task.no_run else task.sizes or ("",):
            run_until_nothing_compiles(server, task.mode, prompt, size, tell)
    tell("done")


def _check_nodes(prompt: Prompt, mode: Mode) -> None:
    ours = nodes_of_ours(prompt)
    if not ours:
        raise JobError("The workflow has no node of OneGraph. Put Compile Model (OneGraph) behind its loader.")
    old = [n for n in ours if not prompt[n]["class_type"].startswith("OneGraph")]
    if mode == "explain" and old:
        raise JobError(f"Node {old[0]} is one of OneDiff's, which always compiles. Use the nodes of OneGraph.")


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a server that was started ends, too
    fields = json.loads(sys.argv[1])
    task = WorkflowTask(**{**fields, "sizes": tuple(fields["sizes"]), "options": tuple(fields["options"])})
    try:
        run(task)
    except JobError as error:
        tell("failed", text=str(error), told=not isinstance(error, CannotTellError))
        sys.exit(1)
    except (OSError, ValueError, KeyError) as error:
        tell("failed", text=f"ComfyUI does not answer as expected ({type(error).__name__}: {error}).")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
