"""A server that is killed while it restores a graph; the next one restores it, and nothing is left of the first."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
from pathlib import Path

import pytest
import websocket
from headless import host, server, workflows
from headless.standstill import wait_until

from .conftest import difference, environment_of, txt2img


@pytest.fixture
def copied(base: Path, environment: dict[str, str], tmp_path: Path) -> tuple[Path, Path]:
    """A base directory and a user's folder of this test's own, with the same graphs."""
    shutil.copytree(base / "models", tmp_path / "comfyui" / "models")
    shutil.copytree(environment["ONEGRAPH_HOME"], tmp_path / "home")
    return tmp_path / "comfyui", tmp_path / "home"


def end_while_loading(running: server.Server, home: Path, sign: int) -> threading.Thread:
    """End a server as soon as it marks that it loads a graph."""

    def watch() -> None:
        wait_until(lambda: any(_size(marker) for marker in home.glob(".loading/*/*")), pause=0.001)
        os.kill(running.pid, sign)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def _size(file: Path) -> int:
    """Bytes of a file; 0 for one that is gone. A marker says nothing before it names its process."""
    with contextlib.suppress(OSError):
        return file.stat().st_size
    return 0


@pytest.mark.full  # two servers each; tests/faults has the same with processes that cost less
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_server_ended_while_it_restores(sign: int, copied: tuple[Path, Path]) -> None:
    base, home = copied
    prompt = txt2img(seed=61)
    with server.running(base, host.comfyui_path(), env=environment_of(home)) as first:
        thread = end_while_loading(first, home, sign)
        with contextlib.suppress(OSError, websocket.WebSocketException):
            first.run(prompt)
        thread.join()
        assert first.wait() == -sign
    with server.running(base, host.comfyui_path(), env=environment_of(home)) as second:
        result = second.run(prompt)
        assert result.text("2").startswith("restored in ")
        status = second.status()
        assert (status["compiles"], status["restores"], status["eager_calls"]) == (0, 1, 0)
        assert difference(second.run(workflows.without_onegraph(prompt)), result) <= 2
    left = [path for path in home.rglob("*") if path.is_file() and {".loading", ".loading-copies"} & {*path.parts}]
    assert left == []
