"""OneDiff's and OneDiffX's names, so that a script runs with only its import lines changed.

`from onegraph.pipelines.onediff import compile_pipe, save_pipe, load_pipe, oneflow_compile`, for example. Each
name is an alias that tells once what it stands for.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from ..common import reasons
from ..common.errors import PipelineError, in_brief
from ..common.log import logger
from . import pipe as pipes
from . import saving
from .component import PipeComponent
from .module import Itself, ModuleMethod, compile_module
from .onediff_lora import (
    TensorInplaceAssign,
    delete_adapters,
    get_active_adapters,
    load_and_fuse_lora,
    load_lora_and_optionally_fuse,
    set_and_fuse_adapters,
    unfuse_lora,
    update_graph_with_constant_folding_info,
)

__all__ = [
    "OneflowCompileOptions",
    "TensorInplaceAssign",
    "compile",
    "compile_pipe",
    "delete_adapters",
    "get_active_adapters",
    "load_and_fuse_lora",
    "load_lora_and_optionally_fuse",
    "load_pipe",
    "oneflow_compile",
    "quantize_pipe",
    "save_pipe",
    "set_and_fuse_adapters",
    "unfuse_lora",
    "update_graph_with_constant_folding_info",
]

log = logger("pipelines")

# Theirs: what it is here.
_BACKENDS = {"oneflow": "auto", "nexfort": "inductor"}
# How OneFlow's own switches begin, which mean nothing to a graph here.
_OF_ONEFLOW = ("attention_", "conv_", "graph_delay_", "kernel_", "matmul_", "mlir_", "run_graph_")


class OneflowCompileOptions:
    """OneDiff's options of a compile. OneFlow's own switches, such as `run_graph_by_vm`, are taken and mean nothing.

    Attributes:
        dynamic: whether one graph serves all sizes.
        use_graph: whether there is a graph at all.
        max_cached_graph_size: how many sizes of a module get a graph of their own, where one graph cannot serve all.
        graph_file: of `oneflow_compile`: a folder whose graphs are used, or that gets them after the first call.

    Raises:
        TypeError: OneDiff has no such option.
    """

    def __init__(
        self,
        dynamic: bool = True,
        use_graph: bool = True,
        debug_level: int = -1,
        max_cached_graph_size: int = 9,
        graph_file: str | None = None,
        graph_file_device: Any = None,
        **switches: Any,
    ) -> None:
        unknown = [name for name in switches if not name.startswith(_OF_ONEFLOW)]
        if unknown:
            raise TypeError(f"OneflowCompileOptions has no option {unknown[0]!r}")
        self.dynamic = dynamic
        self.use_graph = use_graph
        self.debug_level = debug_level
        self.max_cached_graph_size = max_cached_graph_size
        self.graph_file = graph_file
        self.graph_file_device = graph_file_device
        vars(self).update(switches)


@dataclass(frozen=True)
class _Choices:
    """What of a compile's options means something here."""

    dynamic: bool = True
    use_graph: bool = True
    max_cached_graph_size: int = 9
    graph_file: str | None = None

    @classmethod
    def of(cls, options: Any) -> _Choices:
        """Read OneDiff's options, or those of its nexfort backend: a mapping, or JSON of one."""
        if isinstance(options, str):
            options = json.loads(options)
        values = options if isinstance(options, Mapping) else getattr(options, "__dict__", {})
        return cls(**{name: values[name] for name in cls.__dataclass_fields__ if values.get(name) is not None})

    @property
    def shapes(self) -> pipes.Shapes:
        return "any size" if self.dynamic else "exact"


@functools.cache
def _warn(name: str, now: str) -> None:
    """Tell once what takes the place of a name."""
    log.warning("%s is onediff's name; use %s of onegraph.pipelines.", name, now)


def oneflow_compile(
    torch_module: torch.nn.Module,
    *,
    use_graph: bool = True,
    dynamic: bool = True,
    options: Any = None,
) -> torch.nn.Module:
    """`compile_module` under OneDiff's name.

    Args:
        use_graph, dynamic: as in OneDiff's older releases; options have the same names.

    Returns:
        The same module with the methods `save_graph` and `load_graph`, and itself as `_torch_module`.
    """
    _warn("oneflow_compile", "compile_module")
    return _compiled(torch_module, "oneflow", options, use_graph, dynamic)


def compile(torch_module: torch.nn.Module, *, backend: str = "oneflow", options: Any = None) -> torch.nn.Module:
    """`compile_module` under OneDiff's name, like `oneflow_compile` with a choice of the backend."""
    _warn("onediff.infer_compiler.compile", "compile_module")
    return _compiled(torch_module, backend, options)


def _compiled(
    module: torch.nn.Module, backend: str, options: Any, use_graph: bool = True, dynamic: bool = True
) -> torch.nn.Module:
    choices = _Choices.of(options)
    if use_graph and choices.use_graph:
        shapes: pipes.Shapes = choices.shapes if dynamic else "exact"
        compile_module(module, backend=_BACKENDS.get(backend, backend), shapes=shapes)
        _limit(module, choices)
    else:
        pipes.leave_out(module, reasons.GraphsOff())
    vars(module)["save_graph"] = ModuleMethod(module, _save_graph)
    vars(module)["load_graph"] = ModuleMethod(module, _load_graph)
    vars(module)["_torch_module"] = Itself(module)
    if choices.graph_file is not None:
        _use_file(module, choices.graph_file)
    return module


def _use_file(module: torch.nn.Module, path: str) -> None:
    """Have a module use the graphs in a folder, or write them there after its first call."""
    if saving.holds_graphs(Path(path)):
        _load_graph(module, path)
        return
    handle = pipes.handle_of(module)
    assert handle is not None
    save = functools.partial(ModuleMethod(module, _save_graph), path)
    for component in handle.components.values():
        component.then = save


def _why_eager(module: torch.nn.Module) -> str | None:
    """Why a module has no graphs to save or load; None: it may have some."""
    handle = pipes.handle_of(module)
    if handle is None or handle.components:
        return None
    return "; ".join(reason.text for reason in handle.eager.values())


def _save_graph(
    module: torch.nn.Module, file_path: str | Path, *, process_state_dict: Callable[[Any], Any] | None = None
) -> None:
    """`save_graph` with OneDiff's arguments: what was saved there before is overwritten. Graphs hold no weights."""
    why = _why_eager(module)
    if why is None and Path(file_path).is_file():
        raise PipelineError(
            f"{file_path} is a file, as OneDiff writes; OneGraph saves in a folder, so choose another name."
        )
    try:
        if why is None:
            saving.save_graph(module, file_path, overwrite=True)
    except PipelineError as error:  # no call was compiled
        why = in_brief(error)
    if why is not None:
        log.warning("%s has no graph to save: %s", type(module).__name__, why)


def _load_graph(
    module: torch.nn.Module,
    file_path: str | Path,
    device: Any = None,
    run_warmup: bool = True,
    *,
    state_dict: Mapping[str, Any] | None = None,
) -> None:
    """`load_graph` with OneDiff's arguments. The graph is loaded at the first call, where the module's weights are."""
    if state_dict is not None:
        module.load_state_dict(state_dict)
    why = _why_eager(module)
    if why is None and not saving.holds_graphs(Path(file_path)):
        why = f"{reasons.NothingSaved(str(file_path)).text}; it is compiled at its first call"
    if why is not None:
        log.warning("%s loads no graph: %s", type(module).__name__, why)
        return
    saving.load_graph(module, file_path)


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
    choices = _Choices.of(options)
    if not choices.use_graph:
        pipes.leave_out(pipe, reasons.GraphsOff())
        return pipe
    modules = pipes.modules_of(pipe)
    names = [ignores] if isinstance(ignores, str) else [*ignores]
    present = [name for name in names if any(one == name or one.startswith(f"{name}.") for one in modules)]
    pipes.compile_pipe(pipe, backend=_BACKENDS.get(backend, backend), ignores=present, shapes=choices.shapes)
    _limit(pipe, choices)
    return pipe


def quantize_pipe(pipe: Any, *args: Any, **options: Any) -> NoReturn:
    """Refuse: OneGraph quantizes nothing.

    Raises:
        PipelineError: always.
    """
    raise PipelineError(
        "OneGraph does not quantize weights, so quantize_pipe has no counterpart here. Leave the call out: "
        "compile_pipe runs the pipeline in the precision that it was loaded in."
    )


def _limit(owner: Any, choices: _Choices) -> None:
    handle = pipes.handle_of(owner)
    assert handle is not None
    for component in handle.components.values():
        component.most_sizes = choices.max_cached_graph_size


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
    handle = pipes.handle_of(pipe)
    if not saving.holds_graphs(Path(dir)):
        return
    saving.load_components(handle or pipes.attach(pipe), Path(dir), None, _parts(pipe, ignores))


def _parts(pipe: Any, ignores: str | Sequence[str]) -> dict[str, PipeComponent]:
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
