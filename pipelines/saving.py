"""save_pipe and load_pipe: a pipeline's graphs in a folder of their own.

The folder is a graph store like the one beside a checkpoint: `<component>.graphs/<model>/<component>/<entry>/`. Graphs
in it are signed like all others, and found, checked and loaded by the same look-ups.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from ..common import reasons
from ..common.errors import PipelineError, in_brief
from ..common.log import logger
from ..common.reasons import Reason
from ..graph_cache.copies import remove_copy
from ..graph_cache.entry import Entry
from ..graph_cache.key import difference, travelling
from ..graph_cache.layout import GRAPHS_SUFFIX
from ..graph_cache.lookup import Hit
from ..graph_cache.sources import bundle
from ..runtime.obtain.registry import registry
from ..runtime.request import Request
from .component import PipeComponent
from .first_calls import first_calls
from .pipe import HANDLE, Handle, attach, handle_of
from .report import ComponentReport

log = logger("pipelines")


def save_pipe(pipe: Any, dir: str | Path, *, overwrite: bool = False) -> None:
    """Write the graphs that a compiled pipeline uses into a folder, for `load_pipe`.

    Before the pipeline has run there are none yet; then they are compiled for the pipeline's usual size, but for models
    whose blocks are compiled: their graphs come with their first call.

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
    _refuse_to_overwrite(Path(dir), overwrite)
    save_components(pipe, handle.components, Path(dir))


def save_components(pipe: Any, components: Mapping[str, PipeComponent], folder: Path) -> None:
    """Save the graphs of some components of a pipeline, in place of theirs that the folder holds."""
    if not any(_used(component) for component in components.values()):
        first_calls(pipe, components)
    _save(components, folder)


def holds_graphs(folder: Path) -> bool:
    """Whether save_pipe wrote graphs into a folder."""
    return any(True for _ in registry().store.saved(folder))


def _refuse_to_overwrite(folder: Path, overwrite: bool) -> None:
    count = len(list(registry().store.saved(folder)))
    if count and not overwrite:
        raise PipelineError(
            f"{folder} already holds {count} saved graphs; save into another folder or pass overwrite=True."
        )


def _save(components: Mapping[str, PipeComponent], folder: Path) -> None:
    """Write the graphs that served, in place of those of these components that are there."""
    before = list(registry().store.saved(folder))
    used = {name: _used(component) for name, component in components.items()}
    if not any(used.values()):
        reports = (ComponentReport.of(name, component.report, ()) for name, component in components.items())
        why = "; ".join(f"{one.name}: {one.text}" for one in reports)
        raise PipelineError(f"There are no graphs to save yet ({why}). Run it once, then save it.")
    written: set[Path] = set()
    names = {f"{name}{GRAPHS_SUFFIX}" for name in used}
    for name, graphs in used.items():
        for request, entry in graphs:
            location = folder / f"{name}{GRAPHS_SUFFIX}" / request.source.digest
            written.add(registry().store.save(entry, location))
    for entry in before:
        # The folder may hold checkpoints too, whose graphs are no concern of this pipeline.
        if entry.folder not in written and entry.folder.relative_to(folder).parts[0] in names:
            remove_copy(entry.folder, registry().store.signer)
    log.info("saved %d graphs in %s", len(written), folder)


def save_graph(module: torch.nn.Module, path: str | Path, *, overwrite: bool = False) -> None:
    """Write the graphs that a module of `compile_module` uses; see `save_pipe`. It must have been called once."""
    _refuse_to_overwrite(Path(path), overwrite)
    _save(_handle(module).components, Path(path))


def load_graph(module: torch.nn.Module, path: str | Path, *, trust: str | None = None) -> None:
    """Run a module of `compile_module` through the graphs that `save_graph` or `save_pipe` wrote; see `load_pipe`."""
    load_components(_handle(module), Path(path), trust)


def _handle(module: torch.nn.Module) -> Handle:
    handle = handle_of(module)
    assert handle is not None
    return handle


def _used(component: PipeComponent) -> list[tuple[Request, Entry]]:
    """The graphs that served a component in this process and are sound."""
    graphs = []
    for request in component.used.values():
        graph = registry().loaded(request.key, request.device)
        if graph is not None and graph.retired is None:
            graphs.append((request, graph.entry))
            continue
        stored = registry().store.find(request.key)
        if isinstance(stored, Hit):
            graphs.append((request, stored.entry))
    return graphs


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
    handle = handle_of(pipe)
    if handle is not None:
        load_components(handle, Path(dir), trust)
        return pipe
    handle = attach(pipe)
    try:
        load_components(handle, Path(dir), trust)
    except BaseException:
        handle.remove()
        del vars(pipe)[HANDLE]
        raise
    return pipe


def load_components(handle: Handle, folder: Path, trust: str | None, names: Collection[str] | None = None) -> None:
    """Check a folder of graphs, then have the components look into it.

    Args:
        names: of the components; None: all.
    """
    if trust is not None:
        _import(folder, trust)
        return
    components = {name: one for name, one in handle.components.items() if names is None or name in names}
    handle.saved |= _check(folder, components)
    for component in components.values():
        component.add_folder(folder)


def _import(path: Path, publisher: str) -> None:
    """Take a publisher's graphs over, if all of them are right."""
    try:
        imported = bundle.import_bundle(registry().store.private, registry().store.signer, path, publisher)
    except OSError as error:
        raise PipelineError(f"The graphs in {path} could not be imported ({in_brief(error)}).") from error
    if isinstance(imported, Reason):
        raise PipelineError(f"The graphs in {path} are not loaded: {imported.text}.")


def _check(folder: Path, components: Mapping[str, PipeComponent]) -> dict[str, Reason]:
    """Refuse a folder without graphs that may be loaded; warn of those that do not fit here, and say which."""
    entries = list(registry().store.saved(folder))
    if not entries:
        if bundle.is_one(folder):
            raise PipelineError(f"{folder} was made by `onegraph export`; pass trust= with its publisher's name.")
        raise PipelineError(f"{reasons.NothingSaved(str(folder)).text}; save_pipe writes them.")
    judged = {entry.folder: registry().store.signer.judge(entry) for entry in entries}
    refused = [why for why in judged.values() if why is not None]
    if len(refused) == len(entries):
        raise PipelineError(
            f"The graphs in {folder} are not loaded: {refused[0].text}. "
            "Those of another user or machine come through `onegraph export` and load_pipe(..., trust=NAME)."
        )
    misfits: dict[str, Reason] = {}
    for name, component in components.items():
        candidates = [entry for entry in entries if entry.manifest.key.get("component") == component.family.component]
        usable = [entry for entry in candidates if judged[entry.folder] is None]
        differing = [_target_differs(entry, component) for entry in usable]
        if usable and all(differing):
            reason = misfits[name] = reasons.SavedForOther(next(one for one in differing if one))
            log.warning("%s: %s", name, reason.text)
    return misfits


def _target_differs(entry: Entry, component: PipeComponent) -> str:
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
    return "" if key["target"] == travelling(here) else difference({**key, "target": here}, key)
