"""One task of a plan, on a machine of the fleet's kind: run it with an empty graph folder, and return what it compiled.

The graph folder's key is made for the task and gone with it. What comes back is unsigned: whoever has the publisher's
key checks it, signs it, and puts it into the store. What the store has already is fetched from it and not compiled.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from blake3 import blake3
from pydantic import Field, TypeAdapter, ValidationError

from ..graph_cache import entry
from ..graph_cache.sources import pushing
from ..graph_cache.sources.pushing import UnsignedGraph
from ..graph_cache.sources.records import Digest
from ..graph_cache.sources.transport import STORES
from ..graph_cache.store import Store
from ..graph_cache.trust import trust_list
from ..graph_cache.trust.publishers import Publishers
from .plans import Item

_PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>
_LAST = 500  # characters of what a failed process printed
_MOST_GRAPHS = 1024


@dataclass(frozen=True)
class Baked:
    """What a task did.

    Attributes:
        graphs: that it compiled.
        fetched: manifests of those that it found in the store, by digest.
        failed: why it did not run to its end.
    """

    graphs: Annotated[tuple[UnsignedGraph, ...], Field(max_length=_MOST_GRAPHS)]
    fetched: Annotated[tuple[Digest, ...], Field(max_length=_MOST_GRAPHS)] = ()
    failed: Annotated[str, Field(max_length=_LAST + 100)] = ""

    def to_bytes(self) -> bytes:
        """Write it as JSON."""
        return TypeAdapter(Baked).dump_json(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Baked:
        """Read what anybody may have written. What is none is one that failed."""
        try:
            return TypeAdapter(Baked).validate_json(data)
        except ValidationError:
            return cls((), failed="it returned what no task returns")


def run(item: Item, store: str, public: str) -> Baked:
    """Run a task here. Never raises for what the task does.

    Args:
        store: the address of the store that the graphs are for.
        public: the key of whose graphs it holds.
    """
    with tempfile.TemporaryDirectory(prefix="onegraph-bake-") as folder:
        home = Path(folder) / "home"
        here = Store(home)
        trust_list.add(Publishers(home), "fleet", public)
        environ = {**os.environ, "ONEGRAPH_HOME": str(home), STORES: store}
        environ.pop("ONEGRAPH_SIGNING_KEY", None)
        done = subprocess.run(
            _command(item, Path(folder)), env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, check=False, preexec_fn=_end_with_parent(),
        )  # fmt: skip
        failed = "" if done.returncode == 0 else _why(done.stdout.decode(errors="replace"), done.returncode)
        graphs = tuple(pushing.made_here(here))
        listed = here.disk.entries()
        for one in here.disk.copies():  # of no use to anybody, since their key is gone
            here.disk.delete(one)
        read = [entry.read(one.path) for one in listed if one.facts.signed_by == "publisher"]
        fetched = [blake3(one.text).hexdigest() for one in read if isinstance(one, entry.Entry)]
        return Baked(graphs, tuple(fetched[:_MOST_GRAPHS]), failed)


def _end_with_parent() -> Callable[[], None] | None:
    """What a child runs first, so that Linux ends it when Ray kills this process: it would compile for nobody."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _command(item: Item, folder: Path) -> list[str]:
    if item.call:
        return [sys.executable, "-m", "onegraph.cli.bake_task", item.call, json.dumps(item.argument)]
    workflow = folder / "workflow.json"
    workflow.write_text(json.dumps(item.prompt), encoding="utf-8")
    job = {
        "workflow": str(workflow), "mode": "bake", "sizes": [item.size] if item.size else [], "server": "",
        "comfyui": os.environ.get("COMFYUI_PATH", ""), "options": [*item.options],
    }  # fmt: skip
    return [sys.executable, "-m", "onegraph.host.jobs.workflow_job", json.dumps(job)]


def _why(printed: str, code: int) -> str:
    lines = [line.strip() for line in printed.splitlines() if line.strip()] or ["nothing"]
    try:
        event: Any = json.loads(lines[-1])
        return str(event["text"])[:_LAST]
    except (ValueError, KeyError, TypeError):
        return f"it ended with code {code} and printed {lines[-1][:_LAST]}"


def main() -> None:
    """Call a function that compiles, with the graph folder and the store that the environment names."""
    import importlib

    name, argument = sys.argv[1:3]
    module, _, function = name.partition(":")
    try:
        called = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        sys.exit(f"this machine cannot import {name}, which the plan calls ({error})")
    called(**json.loads(argument))


if __name__ == "__main__":
    main()
