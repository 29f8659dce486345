"""A machine with Windows: `pull_and_run.py HOME STORE PUBLIC CASES.pt`. Prints JSON.

It trusts a publisher, looks a graph up, fetches it from a folder store, verifies it, loads it and runs it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from onegraph.backends import get
from onegraph.graph_cache.entry import constants_of
from onegraph.graph_cache.integrity import Sound, check
from onegraph.graph_cache.lookup import Hit
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.sources import transport
from onegraph.graph_cache.sources.remote import Layers
from onegraph.graph_cache.sources.source import Taken
from onegraph.graph_cache.store import Store
from support.models import toy
from support.store.entries import trust

NOWHERE = ModelSource(None, "0123456789ab")


def pull(home: Path, folder: Path, public: str, cases: Path) -> dict[str, Any]:
    wanted = toy.request(toy.Toy(), NOWHERE).key
    store = Store(home)
    result: dict[str, Any] = {"here": type(store.find(wanted)).__name__}
    store.remotes = Layers(home, [transport.parse(folder.as_uri())], 60.0)
    untrusted = store.take(wanted, NOWHERE)
    result["untrusted"] = getattr(untrusted, "code", "")
    trust(store, public)
    store.remotes = Layers(home, [transport.parse(folder.as_uri())], 60.0)
    taken = store.take(wanted, NOWHERE)
    if not isinstance(taken, Taken):
        return result | {"refused": repr(taken)}
    hit = store.find(wanted)
    assert isinstance(hit, Hit)
    result |= {"sound": check(hit.entry) == Sound(), "name": hit.entry.folder.name}
    runner = get("inductor").load(hit.entry.folder, toy.CPU)
    stored = torch.load(cases)
    runner.bind({one.name: stored["weights"][one.name] for one in constants_of(hit.entry)})
    found = [(runner(*inputs), result_of_eager) for inputs, result_of_eager in stored["cases"]]
    result["far"] = [float((a - b).norm() / b.norm()) for a, b in found if isinstance(a, torch.Tensor)]
    runner.close()
    (hit.entry.folder / "graph.aoti").write_bytes(b"evil")
    result["damaged"] = type(check(hit.entry)).__name__
    return result


def main() -> None:
    if len(sys.argv) == 1:  # the target that this machine asks for, which the Linux side compiles for
        print(json.dumps({"target": get("inductor").target(toy.CPU)}))
        return
    with torch.no_grad():
        print(json.dumps(pull(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]).read_text(), Path(sys.argv[4]))))


main()
