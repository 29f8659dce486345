"""A second face of a module: what stands where the host keeps the module, so that its calls go through a hook.

It is an instance of a subclass of the module's class, and it shares the module's `__dict__`. So whatever other nodes do
with it (list its modules, move it, set attributes, exchange a child) happens to the module itself; only the methods
that a kind of proxy puts before the module's own go through the hook.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch


class ModuleProxy:
    """Mixed into the module's class. Its two attributes are slots, for in the `__dict__` the module would have them.

    Attributes:
        onegraph_module: the plain module; graphs, guards and skeletons are given this one, never the proxy.
        onegraph_hook: the node's hook.
    """

    __slots__ = ()
    onegraph_module: torch.nn.Module
    onegraph_hook: Any

    def __copy__(self) -> torch.nn.Module:
        return self.onegraph_like(copy.copy(self.onegraph_module))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as the plain module: a hook belongs to its process."""
        # From protocol 2 on, pickle insists on the class of the object at hand.
        return self.onegraph_module.__reduce_ex__(1)

    def onegraph_like(self, module: torch.nn.Module) -> torch.nn.Module:
        """A proxy of another module that asks the same hook."""
        mixin = next(base for base in type(self).__bases__ if issubclass(base, ModuleProxy))
        return stand_in(mixin, module, self.onegraph_hook)


@functools.cache
def _class_for(mixin: Any, module_class: Any) -> Any:
    names = {"__module__": module_class.__module__, "__qualname__": module_class.__qualname__}
    slots = {"__slots__": ("onegraph_module", "onegraph_hook"), "__doc__": module_class.__doc__}
    return type(module_class.__name__, (mixin, module_class), {**names, **slots})


def stand_in(mixin: Any, module: torch.nn.Module, hook: Any) -> torch.nn.Module:
    """A proxy of `module`, which must not be one itself, that asks `hook`. `mixin`: a subclass of `ModuleProxy`."""
    module_class: Any = type(module)
    proxy: torch.nn.Module = object.__new__(_class_for(mixin, module_class))
    # Past torch.nn.Module.__setattr__, which would register the module as its own child.
    object.__setattr__(proxy, "__dict__", module.__dict__)
    object.__setattr__(proxy, "onegraph_module", module)
    object.__setattr__(proxy, "onegraph_hook", hook)
    return proxy


@functools.cache
def _hooked_class(mixin: Any, its_class: Any) -> Any:
    return type(its_class.__name__, (mixin, its_class), {"__module__": its_class.__module__})


def hooked(one: Any, mixin: Any, hook: Any) -> Any:
    """Have the methods that a mixin puts before those of an object's class ask a hook, `one.onegraph`.

    Args:
        one: a fresh copy of the host's VAE or CLIP: its own class is exchanged.
    """
    its_class: Any = type(one)
    if not isinstance(one, mixin):
        one.__class__ = _hooked_class(mixin, its_class)
    one.onegraph = hook
    return one


def unhooked(one: Any, mixin: Any) -> Any:
    """A copy of an object as it was before `hooked`: where a node comes twice, the later one counts."""
    plain_one = copy.copy(one)
    if isinstance(one, mixin):
        classes = type(one).__mro__
        plain_one.__class__ = classes[classes.index(mixin) + 1]
        del plain_one.onegraph
    return plain_one


def plain(module: Any) -> Any:
    """The module behind a proxy; anything else as it is."""
    return module.onegraph_module if isinstance(module, ModuleProxy) else module
