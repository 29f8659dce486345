"""The proxy that stands where a ControlNet's `control_model` stood; only calling it goes through the hook.

The host's copies of a ControlNet, one for each node that applies it, share the proxy.
"""

from __future__ import annotations

import copy
from typing import Any, Protocol

import torch

from .module_proxy import ModuleProxy


class Hook(Protocol):
    """What serves the calls."""

    def serve(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the module, through a graph where one serves the call."""


class ControlNetProxy(ModuleProxy):
    """A ControlNet's module whose calls a hook serves."""

    __slots__ = ()
    onegraph_hook: Hook

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.onegraph_hook.serve(self.onegraph_module, args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.nn.Module:
        """A plain module: the host makes deep copies for other GPUs, whose weights no hook here knows."""
        return copy.deepcopy(self.onegraph_module, memo)
