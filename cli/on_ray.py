"""`onegraph bake PLAN.toml`: tasks of a plan on a Ray cluster, which places them, retries them, and moves results.

The publisher's key stays with this process. Each task that ended well is noted in the store, signed, so that another
run of the plan leaves it out.
"""

from __future__ import annotations

import importlib
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .plans import Item, Plan

if TYPE_CHECKING:
    from ..graph_cache.remote.pushing import Pusher
    from .bake_task import Baked

_PURPOSE = b"onegraph bake, version 1\n"
_MOST_BYTES = 64 << 10
_KNOCK_SECONDS = 20.0


@dataclass
class Row:
    """What became of one task.

    Attributes:
        did: `missing` is that of a dry run.
        keys: of the graphs that it compiled, as lists show them.
    """

    item: Item
    did: Literal["baked", "hit", "failed", "missing"]
    keys: list[str] = field(default_factory=list)
    fetched: int = 0
    why: str = ""


class NoRayError(ImportError):
    """The package `ray` cannot be imported."""


def versions() -> str:
    """What graphs depend on besides what a plan says: its machines are to have the same as the one that runs it."""
    from ..common.installed import torch_version
    from ..common.version import __version__
    from ..graph_cache.key import FORMAT

    return f"onegraph {__version__}, format {FORMAT}, torch {torch_version()}"


def split(items: list[Item], pusher: Pusher) -> tuple[list[Item], list[Item]]:
    """Tell the tasks that another run has done from those that are left. Raises StoreError."""
    done: list[Item] = []
    left: list[Item] = []
    for item in items:
        (done if _is_done(item, pusher) else left).append(item)
    return done, left


def bake(plan: Plan, items: list[Item], pusher: Pusher, on: str, home: Path) -> Iterator[Row]:
    """Run tasks on a cluster, and push what each returns as soon as it does.

    Args:
        on: `auto`, or an address as `ray.init` takes it.
        home: this user's graph folder.

    Raises:
        NoRayError: Ray is not installed.
        ConnectionError: the cluster does not answer.
        StoreError: the store cannot be written.
    """
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise NoRayError("ray") from error
    mine = not ray.is_initialized()
    if mine:
        _knock(on)
        ray.init(address=None if on == "auto" else on, log_to_driver=False, logging_level="warning")
    try:
        running = {_started(ray, plan, item, pusher.public): item for item in items}
        while running:
            (ended,), _ = ray.wait([*running], num_returns=1)
            item = running.pop(ended)
            try:
                baked = ray.get(ended)
            except ray.exceptions.RayError as error:  # after all retries
                yield Row(item, "failed", why=str(error).strip().splitlines()[0][:200])
                continue
            yield _published(item, baked, pusher, home)
    finally:
        if mine:
            ray.shutdown()
    pusher.write_index()


def _knock(on: str) -> None:
    """Raise ConnectionError where nobody listens at an address: Ray would try for many minutes."""
    host, _, port = on.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return  # `auto`, or what Ray alone understands
    try:
        socket.create_connection((host.strip("[]"), int(port)), _KNOCK_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(str(error)) from error


def _started(ray: Any, plan: Plan, item: Item, public: str) -> Any:
    target = item.target
    wanted: dict[str, Any] = {
        "num_cpus": target.cpus, "num_gpus": target.gpus, "max_retries": plan.retries,
        "memory": int(target.memory_gb * 1e9) or None, "accelerator_type": target.accelerator or None,
        "resources": target.resources or None,
    }  # fmt: skip
    task = ray.remote(_task).options(**{name: value for name, value in wanted.items() if value is not None})
    return task.remote(item.model_dump_json(), plan.store, public)


def _task(item: str, store: str, public: str) -> Baked:
    """Runs in a worker of Ray's."""
    from onegraph.cli import bake_task
    from onegraph.cli.plans import Item

    return bake_task.run(Item.model_validate_json(item), store, public)


def _published(item: Item, baked: Baked, pusher: Pusher, home: Path) -> Row:
    """Check, sign and push what a task returned. Raises StoreError."""
    from ..graph_cache.integrity import describe
    from ..graph_cache.manifest import Manifest
    from ..graph_cache.remote.pushing import Pushed
    from ..graph_cache.remote.records import key_digest
    from ..graph_cache.sharing import unsigned

    keys, why = [], baked.failed
    for graph in baked.graphs:
        try:
            done = unsigned.publish(graph, pusher, home)
        except OSError as error:
            why = why or f"{error.strerror or error}"
            continue
        if isinstance(done, Pushed):
            keys.append(key_digest(Manifest.model_validate_json(graph.manifest).key)[:12])
        else:
            why = why or describe(done)
    if why:
        return Row(item, "failed", keys, baked.fetched, why)
    _note_done(item, pusher)
    return Row(item, "baked" if keys else "hit", keys, baked.fetched)


def _name(item: Item, pusher: Pusher) -> str:
    return f"bakes/{pusher.public}/{item.digest(versions())}.json"


def _is_done(item: Item, pusher: Pusher) -> bool:
    return pusher.read_note(_name(item, pusher), _PURPOSE, _MOST_BYTES) == _statement(item)


def _note_done(item: Item, pusher: Pusher) -> None:
    pusher.write_note(_name(item, pusher), _PURPOSE, _statement(item))


def _statement(item: Item) -> str:
    return json.dumps({"version": 1, "item": item.digest(versions())})
