"""A real headless ComfyUI: started as a process with the pack in custom_nodes, spoken to over HTTP and websocket."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import itertools
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import websocket

from . import warm
from .standstill import PATIENCE, moved, wait_until

ROOT = Path(__file__).resolve().parents[2]
ON_CPU = ("--cpu",)
# What stands in custom_nodes, by name: the pack as a clone, and nodes for tests.
PACK = {"ComfyUI-OneGraph": ROOT}
TESTING = {"onegraph_testing": ROOT / "tests" / "nodes" / "onegraph_testing"}


@dataclass
class Outcome:
    """What one queued prompt gave.

    Attributes:
        status: `success`, `error` or `interrupted`.
        texts: text shown on nodes while it ran, (node id, text) in order.
        images: pixels of every saved image, uint8 [H, W, 3].
        written: every text that an output node shows.
        progress: number of progress messages.
        ticks: of those messages the value, its largest, the seconds since queueing, and the node.
        seconds: from queueing to the end.
        seconds_of: of each node that ran.
        outputs: of its entry in ComfyUI's history, by node.
    """

    status: str
    texts: list[tuple[str, str]] = field(default_factory=list)
    images: list[Any] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    progress: int = 0
    ticks: list[tuple[int, int, float, str]] = field(default_factory=list)
    seconds: float = 0.0
    seconds_of: dict[str, float] = field(default_factory=dict)
    error: str = ""
    prompt_id: str = ""
    outputs: dict[str, Any] = field(default_factory=dict)

    def text(self, node: str) -> str:
        """The last text on a node."""
        return next((text for n, text in reversed(self.texts) if n == node), "")


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def prepare_base(base: Path, packs: Mapping[str, Path] | None = None) -> Path:
    """A ComfyUI base directory with links to `packs` in custom_nodes: the pack and the test nodes, unless given."""
    for folder in ("models/checkpoints", "models/loras", "custom_nodes", "input", "output", "temp", "user"):
        (base / folder).mkdir(parents=True, exist_ok=True)
    for name, target in ({**PACK, **TESTING} if packs is None else packs).items():
        link = base / "custom_nodes" / name
        if not link.is_symlink():
            link.symlink_to(target)
    return base


def _front_end(base: Path) -> list[str]:
    """ComfyUI does not start without a front end; nobody looks at an empty one."""
    if importlib.util.find_spec("comfyui_frontend_package") is not None:
        return []
    empty = base / "no_front_end"
    empty.mkdir(exist_ok=True)
    (empty / "index.html").write_text("")
    return ["--front-end-root", str(empty)]


class Server:
    """One server process. Use `running`."""

    def __init__(self, base: Path, comfyui: Path, log: Path, env: Mapping[str, str], options: tuple[str, ...]) -> None:
        self.port = _free_port()
        self.log = log
        self._client = uuid.uuid4().hex
        command = [
            sys.executable, str(comfyui / "main.py"), "--port", str(self.port), "--base-directory", str(base),
            "--disable-auto-launch", "--disable-api-nodes", "--database-url", "sqlite:///:memory:", *_front_end(base),
            *options,
        ]  # fmt: skip
        # PYTHONPATH must not smuggle the pack in: the server finds it in custom_nodes alone.
        clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        with log.open("ab") as out:
            self._process = warm.start(
                command, environ={**clean, "PYTHONUNBUFFERED": "1", **env}, cwd=Path.cwd(), out=out.fileno()
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def written(self) -> int:
        """Bytes of its log: they grow while something goes on."""
        return self.log.stat().st_size

    def wait_ready(self) -> None:
        """Wait until it answers. Raises TimeoutError, or RuntimeError where it ended."""
        wait_until(self._answers, self.written, pause=0.2)

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError(f"ComfyUI ended with code {self._process.returncode}; its log: {self.log}")
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            self.get("/system_stats")
            return True
        return False

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=PATIENCE) as answer:
            return json.loads(answer.read())

    def post(self, path: str, data: Any) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            json.dumps(data).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            body = answer.read()
        return json.loads(body) if body else None

    def wait_warm(self) -> float:
        """Wait until its warm-up list is restored, as a load balancer does; the seconds that took.

        Raises:
            TimeoutError: nothing goes on.
        """
        began = time.monotonic()
        wait_until(self._is_warm, self.written)
        return time.monotonic() - began

    def _is_warm(self) -> bool:
        try:
            return bool(self.get("/onegraph/ready")["ready"])
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise
            return False

    def status(self) -> dict[str, Any]:
        """GET /onegraph/status."""
        result: dict[str, Any] = self.get("/onegraph/status")
        return result

    def image(self, filename: str, subfolder: str = "", kind: str = "output") -> Any:
        import numpy as np
        from PIL import Image

        query = urllib.parse.urlencode({"filename": filename, "subfolder": subfolder, "type": kind})
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/view?{query}", timeout=PATIENCE) as answer:
            return np.asarray(Image.open(io.BytesIO(answer.read())).convert("RGB"))

    def run(
        self,
        prompt: Mapping[str, Any],
        *,
        seconds: float = math.inf,
        on_text: Any = None,
    ) -> Outcome:
        """Queue a prompt and wait for its end. `on_text(node, text)` is called as texts arrive.

        Args:
            seconds: after which nobody waits any more, although messages come.
        """
        address = f"ws://127.0.0.1:{self.port}/ws?clientId={self._client}"
        channel = websocket.create_connection(address, timeout=PATIENCE)
        outcome = Outcome("error")
        began: list[tuple[str | None, float]] = []  # of each node
        started = time.monotonic()
        try:
            prompt_id = self.post("/prompt", {"prompt": prompt, "client_id": self._client})["prompt_id"]
            outcome.prompt_id = prompt_id
            while time.monotonic() - started < seconds:
                message = channel.recv()
                moved()
                if isinstance(message, bytes):  # a preview
                    continue
                event = json.loads(message)
                data = event.get("data", {})
                if data.get("prompt_id") not in (None, prompt_id):
                    continue
                if event["type"] == "onegraph.text":
                    outcome.texts.append((data["node"], data["text"]))
                    if on_text is not None:
                        on_text(data["node"], data["text"])
                if event["type"] == "executing":
                    began.append((data["node"], time.monotonic()))
                if event["type"] == "progress":
                    outcome.progress += 1
                    outcome.ticks.append((data["value"], data["max"], time.monotonic() - started, data["node"]))
                if event["type"].startswith("execution_") and event["type"] not in (
                    "execution_start",
                    "execution_cached",
                ):
                    outcome.status = event["type"].removeprefix("execution_")
                    outcome.error = str(data.get("exception_message", ""))
                    break
        finally:
            channel.close()
        outcome.seconds = time.monotonic() - started
        began.append((None, started + outcome.seconds))
        outcome.seconds_of = {node: end - at for (node, at), (_, end) in itertools.pairwise(began) if node}
        history = self._history(prompt_id)
        outcome.outputs = history.get("outputs", {})
        for output in outcome.outputs.values():
            outcome.written += output.get("text", [])
            for image in output.get("images", []):
                outcome.files.append(image["filename"])
                outcome.images.append(self.image(image["filename"], image["subfolder"], image["type"]))
        return outcome

    def _history(self, prompt_id: str) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def is_written() -> bool:
            found.update(self.get(f"/history/{prompt_id}"))
            return prompt_id in found

        wait_until(is_written)  # the last message is sent a moment before
        entry: dict[str, Any] = found[prompt_id]
        return entry

    def wait(self) -> int:
        """Wait for the end of a server that was ended; its exit code, negative: the signal."""
        return self._process.wait(PATIENCE)

    def stop(self) -> None:
        for sign, patience in ((signal.SIGINT, 10), (signal.SIGKILL, 10)):
            if self._process.poll() is None:
                self._process.send_signal(sign)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(patience)


@contextlib.contextmanager
def running(
    base: Path,
    comfyui: Path,
    *,
    env: Mapping[str, str] | None = None,
    options: tuple[str, ...] = (),
    device: tuple[str, ...] = ON_CPU,
    log: str = "server.log",
    packs: Mapping[str, Path] | None = None,
) -> Iterator[Server]:
    """A ready server on `base`; stopped at the end of the block. Its log is `base/<log>`, to which it adds.

    Args:
        device: the options that choose the device; none leaves the choice to ComfyUI.
        packs: as for `prepare_base`.
    """
    server = Server(prepare_base(base, packs), comfyui, base / log, env or {}, (*device, *options))
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()
