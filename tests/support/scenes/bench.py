"""A server with the small models that workflows name."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import urllib.error
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import websocket
from headless import host, models, server, workflows

from ..comfyui import controlnet
from .workflow import LORAS, checkpoint_file, controlnet_file, lora_file

_SETTLES = 0.4  # seconds until ComfyUI's worker has seen what POST /free asked for


class Ended(RuntimeError):
    """The server ended, or does not answer any more."""


class Bench:
    """A server that is started again when a case takes it down."""

    def __init__(self, base: Path, comfyui: Path, env: Mapping[str, str]) -> None:
        self._start = lambda: server.running(base, comfyui, env=env)
        self._stack = contextlib.ExitStack()
        self.starts = 0
        self.server = self._started()

    def _started(self) -> server.Server:
        self.starts += 1
        return self._stack.enter_context(self._start())

    def restart(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.server.pid, signal.SIGKILL)
        self.close()
        self.server = self._started()

    def close(self) -> None:
        self._stack.close()

    def free(self) -> None:
        """Unload all models and forget all nodes' outputs."""
        self.server.post("/free", {"unload_models": True, "free_memory": True})
        time.sleep(_SETTLES)

    def run(self, prompt: workflows.Prompt) -> server.Outcome:
        """Run a prompt.

        Raises:
            Ended: the server is gone or hangs.
            ValueError: ComfyUI does not take the prompt; with its message.
        """
        try:
            return self.server.run(prompt)
        except urllib.error.HTTPError as error:
            raise ValueError(error.read().decode(errors="replace")) from error
        except (OSError, websocket.WebSocketException) as error:
            raise Ended(f"{type(error).__name__}: {error}") from error

    def status(self) -> dict[str, Any]:
        try:
            return self.server.status()
        except OSError as error:
            raise Ended(f"{type(error).__name__}: {error}") from error


def write_models(folder: Path) -> None:
    """Make what workflows name, below ComfyUI's folder of models."""
    checkpoints = folder / "checkpoints"
    for family in ("sdxl", "sd15"):
        name = f"tiny_{family}"
        models.write_checkpoint(name, checkpoints / checkpoint_file(family), seed=1, vae="both")
        models.write_checkpoint(name, checkpoints / checkpoint_file(f"{family}_second"), seed=2)
        for number in range(LORAS):
            models.write_lora(name, folder / "loras" / lora_file(family, number), seed=3 + number)
        controlnet.write_controlnet(name, folder / "controlnet" / controlnet_file(family))
    models.write_checkpoint("tiny_refiner", checkpoints / checkpoint_file("refiner"), seed=1)


@contextlib.contextmanager
def running(root: Path) -> Iterator[Bench]:
    """The server, with its base in `comfyui` and the user's graphs in `home`; no graph is too slow for it."""
    env = {"ONEGRAPH_HOME": str(root / "home"), "ONEGRAPH_TESTING_TRUST_SLOW_GRAPHS": "1"}
    bench = Bench(root / "comfyui", host.comfyui_path(), env)
    try:
        yield bench
    finally:
        bench.close()
