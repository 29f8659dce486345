"""What plans of tests call: a toy compiled with the graph folder and the stores that the environment names."""

from __future__ import annotations

import os
import time
from pathlib import Path

from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.sources.source import Taken
from onegraph.graph_cache.store import Store
from support.store.entries import key, publish


def toy(number: int, log: str, gate: str = "", first: int = 0) -> None:
    """Compile the toy of a number, and write that into a log: a line when it begins, and one when it is done.

    Args:
        gate: a file, for which all wait but the first that begin.
        first: how many these are.
    """
    import torch

    from onegraph.runtime.graphs.loaded_graph import LoadedGraph
    from onegraph.runtime.obtain.registry import Registry
    from onegraph.runtime.policy import ANY_SPEED
    from support.models import toy as model

    torch.set_grad_enabled(False)
    registry = Registry(Store(), policy=ANY_SPEED)
    _note(log, f"begun {number}")
    begun = [line for line in Path(log).read_text().splitlines() if line.startswith("begun")]
    if gate and f"begun {number}" not in begun[:first]:
        while not Path(gate).exists():
            time.sleep(0.1)
    module = model.Toy(heads=number + 2)
    graph = registry.obtain(model.request(module, ModelSource(None, f"{number:012x}")), "wait", lambda progress: None)
    assert isinstance(graph, LoadedGraph), graph
    if registry.counters.compiles:
        _note(log, f"compiled {number}")
    registry.close()


def bytes_of(number: int, log: str) -> None:
    """As `toy`, with a graph of a few bytes that nothing compiled."""
    import torch

    from onegraph.backends.inductor.target import target

    store, wanted = Store(), key(architecture=f"toy {number}", target=target(torch.device("cpu")))
    _note(log, f"begun {number}")
    if isinstance(store.take(wanted, ModelSource(None, "0123456789ab")), Taken):
        return
    publish(store, ModelSource(None, f"{number:012x}"), wanted, f"graph {number}".encode())
    _note(log, f"compiled {number}")


def fails(why: str) -> None:
    """A task that ends with an error."""
    raise SystemExit(why)


def _note(log: str, line: str) -> None:
    handle = os.open(Path(log), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(handle, f"{line}\n".encode())
    os.close(handle)
