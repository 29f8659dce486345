"""The process of `onegraph bake PLAN.toml` that speaks with Ray. It is never given the publisher's key.

Ray unpickles what nodes return, so that a node can run code here. What leaves this process are bytes, which `on_ray`
checks. It reads one line of JSON, and ends when its standard input does.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import struct
import sys
import threading
from typing import Any

from ..common.errors import in_brief
from .bake_task import Baked
from .plans import Item

FRAME = struct.Struct(">IQ")  # before each result: the number of its task, and how many bytes it has
NO_CLUSTER = 4  # exit code
_KNOCK_SECONDS = 20.0


def main() -> None:
    """Run the tasks that standard input names, and write what each returned to standard output as soon as it has."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # for what Ray prints
    asked = json.loads(sys.stdin.buffer.readline())
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl+C is the parent's, which closes standard input then
    threading.Thread(target=_end_with_parent, daemon=True).start()
    ray = importlib.import_module("ray")
    try:
        _knock(asked["on"])
        address = None if asked["on"] == "auto" else asked["on"]
        ray.init(address=address, log_to_driver=False, logging_level="warning")
    except ConnectionError:
        os._exit(NO_CLUSTER)  # at once: nothing was begun, and the end of standard input would end it with another code
    try:
        running = {_started(ray, asked, Item(**item)): number for number, item in enumerate(asked["items"])}
        while running:
            (ended,), _ = ray.wait([*running], num_returns=1)
            number = running.pop(ended)
            try:
                data = ray.get(ended)
                data = data if isinstance(data, bytes) else b""
            except Exception as error:  # after all retries; or what a node returns cannot be unpickled
                data = Baked((), failed=in_brief(error)).to_bytes()
            out.write(FRAME.pack(number, len(data)))
            out.write(data)
            out.flush()
    finally:
        ray.shutdown()


def _end_with_parent() -> None:
    os.read(0, 1)  # not through sys.stdin, whose lock would be held when this process ends
    os._exit(1)


def _knock(on: str) -> None:
    """Raise ConnectionError where nobody listens at an address: Ray would try for many minutes."""
    host, _, port = on.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return  # `auto`, or what Ray alone understands
    try:
        socket.create_connection((host.strip("[]"), int(port)), _KNOCK_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(str(error)) from error


def _started(ray: Any, asked: dict[str, Any], item: Item) -> Any:
    target = item.target
    wanted: dict[str, Any] = {
        "num_cpus": target.cpus, "num_gpus": target.gpus, "max_retries": asked["retries"],
        "memory": int(target.memory_gb * 1e9) or None, "accelerator_type": target.accelerator or None,
        "resources": target.resources or None,
    }  # fmt: skip
    task = ray.remote(_task).options(**{name: value for name, value in wanted.items() if value is not None})
    return task.remote(item.model_dump_json(), asked["store"], asked["public"])


def _task(item: str, store: str, public: str) -> bytes:
    """Runs in a worker of Ray's."""
    from onegraph.cli import bake_task
    from onegraph.cli.plans import Item

    return bake_task.run(Item.model_validate_json(item), store, public).to_bytes()
