"""save_pipe and load_pipe: a pipeline's graphs in a folder of their own.

The folder is a graph store like the one beside a checkpoint: `<component>.graphs/<model>/<component>/<entry>/`. Graphs
in it are signed like all others, and found, checked and loaded by the same look-ups.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..common import messages, reasons
from ..common.errors import PipelineError, in_brief
from ..common.reasons import Reason
from ..graph_cache import bundle, importing
from ..graph_cache.entry import Entry, read
from ..graph_cache.key import difference
from ..graph_cache.layout import GRAPHS_SUFFIX
from ..graph_cache.lookup import Hit
from ..graph_cache.manifest import MANIFEST_FILE
from ..graph_cache.signing import Signer
from ..runtime.registry import registry
from ..runtime.request import Request
from .component import Component
from .first_calls import first_calls
from .pipe import Handle, compile_pipe, handle_of

log = logging.getLogger("onegraph.pipelines")


def save_pipe(pipe: Any, dir: str | Path, *, overwrite: bool = False) -> None:
    """Write the graphs that a compiled pipeline uses into a folder, for `load_pipe`.

    Before the pipeline has run there are none yet; then they are compiled for the pipeline's usual size.

    Args:
        pipe: from `compile_pipe` or `load_pipe`.
        dir: made where it is not there. Files of others in it stay as they are.
        overwrite: whether graphs that were saved there before give way to these.

    Raises:
        PipelineError: the pipeline was not compiled, has no graphs, or the folder has some already.
        OSError: the folder cannot be written.
    """
    handle = handle_of(pipe)
    if handle is None:
        raise PipelineError("This pipeline was not compiled; call compile_pipe(pipe) before save_pipe.")
    folder = Path(dir)
    before = list(_entries(folder))
    if before and not overwrite:
        raise PipelineError(
            f"{folder} already holds {len(before)} saved graphs; save into another folder or pass overwrite=True."
        )
    if not any(_used(component) for component in handle.components.values()):
        first_calls(pipe, handle.components)
    found = {name: _used(component) for name, component in handle.components.items()}
    if not any(found.values()):
        why = "; ".join(f"{one.name}: {one.text}" for one in handle.report().components)
        raise PipelineError(f"The pipeline has no graphs to save ({why}). Run it once, then save it.")
    written: set[Path] = set()
    for name, graphs in found.items():
        for request, entry in graphs:
            location = folder / f"{name}{GRAPHS_SUFFIX}" / request.source.digest
            written.add(registry().store.save(entry, request.key, location).folder)
    for entry in before:
        if entry.folder not in written:
            shutil.rmtree(entry.folder)
    log.info("saved %d graphs in %s", len(written), folder)


def _used(component: Component) -> list[tuple[Request, Entry]]:
    """The graphs that served a component in this process and are sound."""
    found = []
    for request in component.used.requests.values():
        graph = registry().loaded(request.key, request.device)
        if graph is not None and graph.retired is None:
            found.append((request, graph.entry))
            continue
        stored = registry().store.lookup(request.key, request.source, request.neighbours)
        if isinstance(stored, Hit):
            found.append((request, stored.entry))
    return found


def _entries(folder: Path) -> Iterator[Entry]:
    """The entries that save_pipe wrote into a folder."""
    for manifest in sorted(folder.glob(f"*{GRAPHS_SUFFIX}/*/*/*/{MANIFEST_FILE}")):
        if not any(part.startswith(".") for part in manifest.relative_to(folder).parts):
            entry = read(manifest.parent)
            if isinstance(entry, Entry):
                yield entry


def load_pipe(pipe: Any, dir: str | Path, *, trust: str | None = None) -> Any:
    """Run a pipeline through the graphs that `save_pipe` wrote. Compiles nothing, and loads each graph when it is due.

    A pipeline that was not compiled before runs eager where the folder has no graph for a call; one from
    `compile_pipe` goes on as it was told there.

    Args:
        pipe: a pipeline of the same architecture; its weights may be others.
        dir: from `save_pipe` on this machine; or with `trust`, what `onegraph export` wrote.
        trust: the name of a publisher that `onegraph trust add` made known here, for graphs of another machine. They
            are verified, then imported into the user's folder.

    Returns:
        The same pipeline, with the attribute `onegraph`.

    Raises:
        PipelineError: there are no graphs in the folder, or none that this user's installation or the publisher signed.
        OSError: the folder cannot be read.
    """
    folder = Path(dir)
    if trust is not None:
        _import(folder, trust)
    handle = handle_of(pipe) or handle_of(compile_pipe(pipe, when_missing="eager"))
    assert handle is not None
    if trust is None:
        _check(folder, handle)
        for component in handle.components.values():
            component.add_folder(folder)
    return pipe


def _import(path: Path, publisher: str) -> None:
    """Take a publisher's graphs over, if all of them are right."""
    try:
        imported = importing.import_bundle(Signer(registry().store.home), path, publisher)
    except OSError as error:
        raise PipelineError(f"The graphs in {path} could not be imported ({in_brief(error)}).") from error
    if isinstance(imported, Reason):
        raise PipelineError(f"The graphs in {path} are not loaded: {messages.text(imported)}.")


def _check(folder: Path, handle: Handle) -> None:
    """Refuse a folder without graphs that may be loaded; warn of those that do not fit here."""
    entries = list(_entries(folder))
    if not entries:
        if (folder / bundle.BUNDLE_FILE).is_file() or folder.is_file():
            raise PipelineError(f"{folder} was made by `onegraph export`; pass trust= with its publisher's name.")
        raise PipelineError(f"{messages.text(reasons.NothingSaved(str(folder)))}; save_pipe writes them.")
    judged = {entry.folder: registry().store.trust(entry) for entry in entries}
    refused = [why for why in judged.values() if why is not None]
    if len(refused) == len(entries):
        raise PipelineError(
            f"The graphs in {folder} are not loaded: {messages.text(refused[0])}. "
            "Those of another user or machine come through `onegraph export` and load_pipe(..., trust=NAME)."
        )
    for name, component in handle.components.items():
        own = [entry for entry in entries if entry.manifest.key.get("component") == component.family.component]
        usable = [entry for entry in own if judged[entry.folder] is None]
        differing = [_target_differs(entry, component) for entry in usable]
        if usable and all(differing):
            reason = reasons.SavedForOther(next(one for one in differing if one))
            component.saved = reason
            log.warning("%s: %s", name, messages.text(reason))


def _target_differs(entry: Entry, component: Component) -> str:
    """In what a saved graph's target differs from this machine; empty where it does not."""
    from ..backends import get

    key = entry.manifest.key
    device = component.device()
    if device is None or key["target"].get("device") not in (None, device.type):
        return ""  # the pipeline may be moved to the graph's device yet
    try:
        here = get(key["backend"]).target(device)
    except Exception as error:  # a backend of another version of the pack
        return f"backend {key.get('backend')} ({type(error).__name__})"
    return difference({**key, "target": here}, key)
