"""Graphs that are restored when the server starts, before anybody asks: those of the list in `ONEGRAPH_WARM_UP`.

Each line of that file is a model, an id or a key, as for `onegraph pin`; or the whole digest of a key, or `*` for all
keys, whose graphs are fetched from the remote stores where they are not here. A graph is loaded from the store and is
warmed up on weights of zeros, as for a preload; no model is read. Nothing is compiled.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from ... import backends
from ...common.errors import BackendError
from ...common.log import logger
from ...common.reasons import NoGraph, Reason
from ...graph_cache.disk import report
from ...graph_cache.disk.listing import Listed
from ...graph_cache.disk.marks import Model
from ...graph_cache.entry import Entry, read
from ...graph_cache.files import read_regular
from ...graph_cache.key import GraphKey, key_digest
from ...graph_cache.manifest import Manifest
from ...graph_cache.model_hash import ModelSource
from ...graph_cache.sources import transport
from ...graph_cache.sources.source import Taken
from ...runtime.obtain.registry import registry
from ...runtime.request import PREFIX, Request
from ...signature.declared import ShapeRange
from ..capture import compile_client
from ..comfyui.garbage import no_collection

log = logger("host")

VARIABLE = "ONEGRAPH_WARM_UP"
ALL = "*"  # the line for all graphs of the remote stores that can be used here
_SHOWN = 12  # digits of a key, as lists show it
_MOST_BYTES = 1 << 20
_PACKAGES = ("comfy",)  # whose objects the arguments of blocks may be


class WarmUp:
    """The list of one start, and what is left of it. `start` begins."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: list[str] = []

    def waiting_for(self) -> list[str]:
        """Lines whose graphs are not restored: not yet, or not to be had."""
        with self._lock:
            return [*self._left]

    def start(self) -> None:
        """Restore what the list names, in a thread. Never raises."""
        text = os.environ.get(VARIABLE, "")
        if transport.from_environment() and not text.strip():  # a server that never misses would hear of nothing
            threading.Thread(target=registry().store.remotes.refresh, name="onegraph-stores", daemon=True).start()
        if not text.strip():
            return
        try:
            lines = read_regular(Path(text), _MOST_BYTES).decode().splitlines()
        except (OSError, ValueError) as error:
            log.warning("%s cannot be read, so nothing is ready: %s", VARIABLE, error)
            lines = [f"the list in {VARIABLE}"]
        names = [*dict.fromkeys(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))]
        with self._lock:
            self._left = [*names]
        # Not a daemon: a process that ends in the midst would leave the mark of a graph that takes it down.
        threading.Thread(target=self._run, args=(names,), name="onegraph-warm-up").start()

    def _run(self, names: Sequence[str]) -> None:
        try:
            store = registry().store
            store.remotes.refresh()
            keys = {name: store.remotes.keys() if name == ALL else [name] for name in names if _is_remote(name)}
            for digest in dict.fromkeys(digest for digests in keys.values() for digest in digests):
                fetch(digest)
            entries = store.disk.entries()
            for name in names:
                if not threading.main_thread().is_alive():  # the server has ended
                    return
                restored = [restore(one, entries) for one in _named(name, keys, entries)]
                if restored and all(restored):
                    with self._lock:
                        self._left.remove(name)
        except Exception:  # the server is there without it, and says that it is not ready
            log.exception("the warm-up list could not be restored")
        if self._left:
            log.warning("no graph was restored for %s", ", ".join(self.waiting_for()))


def fetch(digest: str) -> None:
    """Fetch a graph that can be used here from the remote stores, unless it is here. Never raises for what they do."""
    store = registry().store
    if any(key_digest(entry.manifest.key) == digest for entry in store.entries()):
        return
    fetched = store.take_named(digest, _usable)
    if isinstance(fetched, Taken):
        registry().counters.fetches += 1
    elif isinstance(fetched, Reason):
        log.info("%s... was not fetched: %s", digest[:_SHOWN], fetched.text)


def _usable(manifest: Manifest) -> Reason | None:
    """Why no device here can run a graph, or None."""
    with contextlib.suppress(KeyError, BackendError):
        key = GraphKey(**manifest.key)
        backend = backends.get(key.backend)
        if any(backend.can_run(device).ok and _serves(key, backend.target(device)) for device in _devices()):
            return None
    return NoGraph("target")


def _serves(key: GraphKey, target: dict[str, str]) -> bool:
    """Whether runs on a device with that target would find the graph of a key."""
    return key in dataclasses.replace(key, target=target).alternatives


def _is_remote(name: str) -> bool:
    return name == ALL or re.fullmatch(r"[0-9a-f]{64}", name) is not None


def _named(name: str, keys: Mapping[str, list[str]], entries: Sequence[Listed]) -> list[str]:
    """What a line means among the graphs that are here. `*` leaves out what this machine cannot use."""
    here = {one.facts.digest for one in entries}
    digests = [digest[:_SHOWN] for digest in keys.get(name, ())]
    if name == ALL:
        return [digest for digest in digests if digest in here]
    return digests or [name]


def restore(name: str, entries: Sequence[Listed]) -> bool:
    """Restore all graphs that a name means and that can be used here; whether they are all loaded now."""
    matching = [one for one in report.find(entries, name) if report.state_of(one) == "signed"]
    if not matching:  # a name as loaders show it
        stem = Path(name).stem
        matching = [one for one in report.find(entries, stem) if report.state_of(one) == "signed"]
    loaded = 0
    for one in matching:
        for request in requests_of(one):
            with no_collection():
                registry().preloads.run(request, 0)
            if registry().loaded(request.key, request.device) is not None:
                loaded += 1
                break
    log.info("%d of %d graphs of %s are restored", loaded, len(matching), name)
    return bool(matching) and loaded == len(matching)


def requests_of(one: Listed) -> Iterator[Request]:
    """Iterate over the requests of runs that would find this graph, one for each device here that can run it."""
    entry = read(one.path)
    if not isinstance(entry, Entry):
        return
    key = entry.manifest.key
    fields = GraphKey(**key)
    try:
        backend = backends.get(fields.backend)
    except (KeyError, BackendError):
        return
    model = one.models[0] if one.models else Model("0" * 12, "")
    path = Path(model.beside).with_suffix(".safetensors") if model.beside else None
    is_block = entry.manifest.call_rules is not None
    for device in _devices():
        if backend.can_run(device).reason is not None or not _serves(fields, target := backend.target(device)):
            continue
        yield Request(
            key=dataclasses.replace(fields, target=target),
            source=ModelSource(path, model.digest),
            shapes=ShapeRange((), ()) if is_block else ShapeRange.from_json(fields.shapes),
            label=entry.manifest.label,
            module=torch.nn.Module(),
            prefix=PREFIX,
            backend=backend,
            device=device,
            example_sizes={},
            client=compile_client.client(),
            environment=compile_client.environment(),
            packages=_PACKAGES,
        )


def _devices() -> list[torch.device]:
    """The devices that models of this ComfyUI run on."""
    import comfy.model_management

    return [*dict.fromkeys([comfy.model_management.get_torch_device(), torch.device("cpu")])]


warm_up = WarmUp()
