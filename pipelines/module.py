"""compile_module: a module by itself, with methods that save and load its graphs."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from ..runtime.family import Shapes
from ..runtime.request import WhenMissing
from .component import PipelineOptions
from .pipe import take_calls
from .saving import load_graph, save_graph


def compile_module(
    module: torch.nn.Module, *, backend: str = "auto", shapes: Shapes = "any size", when_missing: WhenMissing = "wait"
) -> torch.nn.Module:
    """Run a single module through graphs, as `compile_pipe` does a pipeline's.

    Args:
        module: a UNet, ControlNet, transformer or VAE of diffusers (docs/diffusers.md), a VAE's decoder or encoder, or
            another model of diffusers whose blocks repeat. Any other module stays as it is, and
            `module.onegraph.report()` says so.
        backend, shapes, when_missing: as for `compile_pipe`.

    Returns:
        The same module, with the attribute `onegraph` and the methods `save_graph(path)` and `load_graph(path)`, which
        are `save_pipe` and `load_pipe` for this module.

    Raises:
        NoPipelineError: it is no module.
        PipelineError: an argument is no choice.
    """
    take_calls(module, PipelineOptions(backend, shapes, when_missing), ())
    vars(module)["save_graph"] = ModuleMethod(module, save_graph)
    vars(module)["load_graph"] = ModuleMethod(module, load_graph)
    return module


class ModuleMethod:
    """A function of a module as its method, on the instance. It refers to the module weakly, as handles do."""

    def __init__(self, module: torch.nn.Module, function: Callable[..., None]) -> None:
        self._module = weakref.ref(module)
        self._function = function
        self.__doc__ = function.__doc__

    def __call__(self, *args: Any, **options: Any) -> None:
        self._function(self._module(), *args, **options)

    def __deepcopy__(self, memo: dict[int, Any]) -> ModuleMethod:
        module = self._module()
        copied = memo.get(id(module), module)
        assert isinstance(copied, torch.nn.Module)
        return ModuleMethod(copied, self._function)

    def __reduce__(self) -> Any:
        return ModuleMethod, (self._module(), self._function)


class Itself:
    """A module as an attribute of its own, under a name that other libraries give it. It refers to it weakly."""

    def __init__(self, module: Any) -> None:
        self._module = weakref.ref(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module(), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self._module()
        assert module is not None
        return module(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Itself:
        module = self._module()
        return Itself(memo.get(id(module), module))

    def __reduce__(self) -> Any:
        return Itself, (self._module(),)
