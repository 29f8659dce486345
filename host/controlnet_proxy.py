"""The proxy that stands where a ControlNet's `control_model` stood: a second face of one and the same module.

It is an instance of a subclass of the module's class, and it shares the module's `__dict__`. Whatever other nodes do
with a `control_model` happens to the module itself; only calling it goes through the hook. The host's copies of a
ControlNet, one for each node that applies it, share the proxy.
"""

from __future__ import annotations

import copy
import functools
from typing import Any, Protocol

import torch


class Hook(Protocol):
    """What serves the calls."""

    def serve(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the module, through a graph where one serves the call."""


class Proxy:
    """Mixed into the module's class. Its two attributes are slots, for in the `__dict__` the module would have them.

    Attributes:
        onegraph_module: the plain module; graphs, guards and skeletons are given this one, never the proxy.
        onegraph_hook: the node's hook.
    """

    __slots__ = ()
    onegraph_module: torch.nn.Module
    onegraph_hook: Hook

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.onegraph_hook.serve(self.onegraph_module, args, kwargs)

    def __copy__(self) -> torch.nn.Module:
        return stand_in(copy.copy(self.onegraph_module), self.onegraph_hook)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.nn.Module:
        """A plain module: the host makes deep copies for other GPUs, whose weights no hook here knows."""
        return copy.deepcopy(self.onegraph_module, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as the plain module: a hook belongs to its process."""
        return self.onegraph_module.__reduce_ex__(1)


@functools.cache
def _class_for(module_class: Any) -> Any:
    names = {"__module__": module_class.__module__, "__qualname__": module_class.__qualname__}
    slots = {"__slots__": ("onegraph_module", "onegraph_hook"), "__doc__": module_class.__doc__}
    return type(module_class.__name__, (Proxy, module_class), {**names, **slots})


def stand_in(module: torch.nn.Module, hook: Hook) -> torch.nn.Module:
    """A proxy of `module`, which must not be one itself, that asks `hook`."""
    module_class: Any = type(module)
    proxy: torch.nn.Module = object.__new__(_class_for(module_class))
    # Past torch.nn.Module.__setattr__, which would register the module as its own child.
    object.__setattr__(proxy, "__dict__", module.__dict__)
    object.__setattr__(proxy, "onegraph_module", module)
    object.__setattr__(proxy, "onegraph_hook", hook)
    return proxy


def plain(module: Any) -> Any:
    """The module behind a proxy; anything else as it is."""
    return module.onegraph_module if isinstance(module, Proxy) else module
