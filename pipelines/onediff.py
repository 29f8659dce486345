"""OneDiff's and OneDiffX's names, so that a script runs with only its import lines changed.

`from onegraph.pipelines.onediff import compile_pipe, save_pipe, load_pipe, oneflow_compile`, for example. Each
name is an alias that tells once what it stands for.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import pipe as pipes
from . import saving
from .component import Component

log = logging.getLogger("onegraph.pipelines")

# Theirs: what it is here.
_BACKENDS = {"oneflow": "auto", "nexfort": "inductor"}


@dataclass
class OneflowCompileOptions:
    """OneDiff's options of a compile. Of these only the number of graphs means something here.

    Attributes:
        max_cached_graph_size: how many sizes of a module get a graph of their own, where one graph cannot serve all.
    """

    use_graph: bool = True
    debug_level: int = -1
    max_cached_graph_size: int = 9
    graph_file: str | None = None
    graph_file_device: Any = None


@functools.cache
def _warn(name: str, now: str) -> None:
    """Tell once what takes the place of a name."""
    log.warning("%s is onediff's name; use %s of onegraph.pipelines.", name, now)


def _most(options: Any) -> int:
    return int(getattr(options, "max_cached_graph_size", OneflowCompileOptions.max_cached_graph_size))


def oneflow_compile(
    torch_module: torch.nn.Module,
    *,
    use_graph: bool = True,
    dynamic: bool = True,
    options: OneflowCompileOptions | None = None,
) -> torch.nn.Module:
    """`compile_module` under OneDiff's name: the module with `save_graph(path)` and `load_graph(path)`."""
    _warn("oneflow_compile", "compile_module")
    compiled = pipes.compile_module(
        torch_module, shapes="any size" if dynamic else "exact", when_missing="wait" if use_graph else "eager"
    )
    _limit(compiled, options)
    return compiled


def compile_pipe(
    pipe: Any,
    *,
    backend: str = "oneflow",
    options: Any = None,
    ignores: str | Sequence[str] = (),
    fuse_qkv_projections: bool = False,
) -> Any:
    """`compile_pipe` with OneDiffX's arguments. A name in `ignores` that the pipeline lacks is no error there."""
    _warn("onediffx.compile_pipe", "compile_pipe")
    if fuse_qkv_projections and hasattr(pipe, "fuse_qkv_projections"):
        pipe.fuse_qkv_projections()
    known = pipes.modules_of(pipe)
    names = [ignores] if isinstance(ignores, str) else [*ignores]
    present = [name for name in names if any(one == name or one.startswith(f"{name}.") for one in known)]
    pipes.compile_pipe(pipe, backend=_BACKENDS.get(backend, backend), ignores=present)
    _limit(pipe, options)
    return pipe


def _limit(owner: Any, options: Any) -> None:
    handle = pipes.handle_of(owner)
    assert handle is not None
    for component in handle.components.values():
        component.most_sizes = _most(options)


def save_pipe(
    pipe: Any,
    dir: str | Path = "cached_pipe",
    *,
    ignores: str | Sequence[str] = (),
    overwrite: bool = True,
) -> None:
    """`save_pipe` with OneDiffX's arguments. What is in the folder already stays there without `overwrite`."""
    _warn("onediffx.save_pipe", "save_pipe")
    if overwrite or not saving.holds_graphs(Path(dir)):
        saving.save_components(pipe, _parts(pipe, ignores), Path(dir))


def load_pipe(
    pipe: Any,
    dir: str | Path = "cached_pipe",
    *,
    ignores: str | Sequence[str] = (),
) -> None:
    """`load_pipe` with OneDiffX's arguments. A folder that is not there is no error there."""
    _warn("onediffx.load_pipe", "load_pipe")
    if not saving.holds_graphs(Path(dir)):
        return
    handle = pipes.handle_of(pipe) or pipes.attach(pipe)
    saving.load_components(handle, Path(dir), None, _parts(pipe, ignores))


def _parts(pipe: Any, ignores: str | Sequence[str]) -> dict[str, Component]:
    """The components of a compiled pipeline that are not ignored."""
    handle = pipes.handle_of(pipe)
    if handle is None:
        return {}
    names = [ignores] if isinstance(ignores, str) else [*ignores]
    return {
        name: component
        for name, component in handle.components.items()
        if not any(name == one or name.startswith(f"{one}.") for one in names)
    }
