"""`onegraph bake PLAN.toml`: tasks of a plan on a Ray cluster, which places them, retries them, and moves results.

The publisher's key stays with this process, which neither imports Ray nor unpickles anything: `ray_driver` does, in a
process of its own. Each task that ended well is noted in the store, signed, so that another run of the plan leaves it
out.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
from collections.abc import Collection, Container, Iterator
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Literal

from blake3 import blake3

from .bake_task import Baked
from .plans import Item, Plan
from .ray_driver import FRAME, NO_CLUSTER

if TYPE_CHECKING:
    from ..graph_cache.sources.pushing import Pusher

_PURPOSE = b"onegraph bake, version 2\n"
_MOST_BYTES = 256 << 10  # of a note
_LARGEST = 2 << 30  # of what a task returns
# Not with -m: Ray has its workers search the folder of the script that connects, where modules are called as others'.
_DRIVER = "from onegraph.cli.ray_driver import main; main()"
_KEYS = ("ONEGRAPH_HOME", "ONEGRAPH_SIGNING_KEY")  # what tells where they are
_PATIENCE = 30.0  # seconds for Ray to end what it started


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
    """Name the versions that graphs depend on. The machines of a plan must have those of the one that runs it."""
    from ..common.installed import torch_version
    from ..common.version import __version__
    from ..graph_cache.key import FORMAT

    return f"onegraph {__version__}, format {FORMAT}, torch {torch_version()}"


def split(items: list[Item], pusher: Pusher) -> tuple[list[Item], list[Item]]:
    """Tell the tasks that another run has done from those that are left. Raises StoreError."""
    withdrawn = pusher.withdraw(())  # none besides those that were before
    done: list[Item] = []
    left: list[Item] = []
    for item in items:
        (done if _is_done(item, pusher, withdrawn) else left).append(item)
    return done, left


def bake(plan: Plan, items: list[Item], pusher: Pusher, on: str) -> Iterator[Row]:
    """Run tasks on a cluster, and push what each returns as soon as it does.

    Args:
        on: `auto`, or an address as `ray.init` takes it.

    Raises:
        NoRayError: Ray is not installed.
        ConnectionError: the cluster does not answer.
        StoreError: the store cannot be written.
    """
    if importlib.util.find_spec("ray") is None:
        raise NoRayError("ray")
    asked = {"on": on, "retries": plan.retries, "store": plan.store, "public": pusher.public}
    asked |= {"items": [item.model_dump() for item in items]}
    environ = {name: value for name, value in os.environ.items() if name not in _KEYS}
    left = dict(enumerate(items))
    command = [sys.executable, "-c", _DRIVER]
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as driver:
        assert driver.stdin is not None and driver.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):
                driver.stdin.write(json.dumps(asked).encode() + b"\n")
                driver.stdin.flush()
            while left and (result := _result(driver.stdout, left)) is not None:
                number, baked = result
                yield _published(left.pop(number), baked, pusher)
        finally:
            with contextlib.suppress(OSError):
                if left:
                    driver.stdin.close()  # it ends then
            try:
                driver.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                driver.kill()
    if left and driver.returncode == NO_CLUSTER:
        raise ConnectionError(on)
    why = f"the process that speaks with Ray ended with code {driver.returncode}"
    yield from (Row(item, "failed", why=why) for item in left.values())
    pusher.write_index()


def _result(out: IO[bytes], left: Container[int]) -> tuple[int, Baked] | None:
    """Read what a task returned; None where nothing comes any more, or what is no result of one that is left."""
    head = out.read(FRAME.size)
    number, size = FRAME.unpack(head) if len(head) == FRAME.size else (-1, 0)
    data = out.read(size) if number in left and size <= _LARGEST else b""
    return (number, Baked.from_bytes(data)) if number in left and len(data) == size else None


def _published(item: Item, baked: Baked, pusher: Pusher) -> Row:
    """Check, sign and push what a task returned: all of it, or nothing. Raises StoreError."""
    from ..common.reasons import Reason
    from ..graph_cache.integrity import describe
    from ..graph_cache.key import key_digest
    from ..graph_cache.manifest import Manifest
    from ..graph_cache.sources import pushing

    expected, keys, why = _expected(item), [], baked.failed
    checked = [(graph, pushing.check_unsigned(graph, expected)) for graph in baked.graphs]
    for _, verdict in checked:
        if isinstance(verdict, Reason):
            return Row(item, "failed", why=f"{describe(verdict)}; nothing of it is signed")
    for graph, manifest in checked:
        assert isinstance(manifest, Manifest)
        try:
            done = pushing.push_unsigned(graph, manifest, pusher)
        except OSError as error:
            why = why or f"{error.strerror or error}"
            continue
        if done.reason is None:
            keys.append(key_digest(manifest.key)[:12])
        else:
            why = why or describe(done.reason)
    if why:
        return Row(item, "failed", keys, len(baked.fetched), why)
    _note_done(item, pusher, {*baked.fetched, *(blake3(graph.manifest).hexdigest() for graph in baked.graphs)})
    return Row(item, "baked" if keys else "hit", keys, len(baked.fetched))


def _expected(item: Item) -> dict[str, list[str]]:
    """What the keys of a task's graphs are to say, by field, as far as that is known before."""
    from ..common.installed import torch_version
    from ..graph_cache.key import FORMAT

    here = {"format": str(FORMAT), "torch": torch_version().partition("+")[0]}
    here |= {"platform": platform.system().lower(), "machine": platform.machine()}
    return {name: [value] for name, value in here.items()} | item.expected()


def _name(item: Item, pusher: Pusher) -> str:
    return f"bakes/{pusher.public}/{item.digest(versions())}.json"


def _is_done(item: Item, pusher: Pusher, withdrawn: frozenset[str]) -> bool:
    """Whether another run did a task, and none of the graphs that it needs was taken back since."""
    note = json.loads(pusher.read_note(_name(item, pusher), _PURPOSE, _MOST_BYTES) or "{}")
    return note.get("item") == item.digest(versions()) and withdrawn.isdisjoint(note["graphs"])


def _note_done(item: Item, pusher: Pusher, graphs: Collection[str]) -> None:
    note = {"version": 2, "item": item.digest(versions()), "graphs": sorted(graphs)}
    pusher.write_note(_name(item, pusher), _PURPOSE, json.dumps(note))
