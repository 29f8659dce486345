"""The proxy that stands where a VAE's `first_stage_model` stood: a second face of one and the same module.

It is an instance of a subclass of the module's class, and it shares the module's `__dict__`. So whatever other nodes
do with a `first_stage_model` (list its modules, move it, set attributes, exchange its decoder, call it) happens to
the module itself; only `decode` and `encode` go through the hook.
"""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any

import torch

from ..common import reasons
from . import compile_client

if TYPE_CHECKING:
    from .vae_hook import VaeHook


class Proxy:
    """Mixed into the module's class. Its two attributes are slots, for in the `__dict__` the module would have them.

    Attributes:
        onegraph_module: the plain module; graphs, guards and skeletons are given this one, never the proxy.
        onegraph_hook: the node's hook.
    """

    __slots__ = ()
    onegraph_module: torch.nn.Module
    onegraph_hook: VaeHook

    def decode(self, z: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """The module's decode: latents [B,C,h,w] -> image [B,3,8h,8w], through a graph where one serves the call."""
        module = self.onegraph_module
        # The class's own: the module may hold a replacement that ends up here again.
        own = functools.partial(_own(self).decode, module)
        if args or kwargs:
            self.onegraph_hook.passed_by("decoder", module, reasons.VaeOptions("decode"))
            return own(z, *args, **kwargs)
        return self.onegraph_hook.serve("decoder", module, z, own)

    def encode(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """The module's encode: image [B,3,H,W] -> latents [B,C,H/8,W/8], through a graph where one serves the call."""
        module = self.onegraph_module
        if args or kwargs:
            self.onegraph_hook.passed_by("encoder", module, reasons.VaeOptions("encode"))
            return _own(self).encode(module, x, *args, **kwargs)
        moments = self.onegraph_hook.serve(
            "encoder", module, x, functools.partial(compile_client.encode_moments, module)
        )
        # The rest may draw random numbers, so it stays the host's own.
        regularization: Any = getattr(module, "regularization", None)
        return moments if regularization is None else regularization(moments)[0]

    def __copy__(self) -> torch.nn.Module:
        return stand_in(copy.copy(self.onegraph_module), self.onegraph_hook)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.nn.Module:
        # The memo makes this the very module that a copied patcher holds.
        return stand_in(copy.deepcopy(self.onegraph_module, memo), self.onegraph_hook)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as the plain module: a hook belongs to its process."""
        # From protocol 2 on, pickle insists on the class of the object at hand.
        return self.onegraph_module.__reduce_ex__(1)


def _own(proxy: Proxy) -> Any:
    """The class of the module behind a proxy."""
    return type(proxy.onegraph_module)


@functools.cache
def _class_for(module_class: Any) -> Any:
    names = {"__module__": module_class.__module__, "__qualname__": module_class.__qualname__}
    slots = {"__slots__": ("onegraph_module", "onegraph_hook"), "__doc__": module_class.__doc__}
    return type(module_class.__name__, (Proxy, module_class), {**names, **slots})


def stand_in(module: torch.nn.Module, hook: VaeHook) -> torch.nn.Module:
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


class Calls:
    """Mixed into the VAE's class: tells the hook which call the proxy is in."""

    onegraph: VaeHook

    def decode(self, *args: Any, **kwargs: Any) -> Any:
        function = functools.partial(super().decode, *args, **kwargs)  # type: ignore[misc]
        return self.onegraph.run("decoder", self, "whole", function)

    def encode(self, *args: Any, **kwargs: Any) -> Any:
        self.onegraph.check_encoder()
        function = functools.partial(super().encode, *args, **kwargs)  # type: ignore[misc]
        return self.onegraph.run("encoder", self, "whole", function)

    def decode_tiled(self, *args: Any, **kwargs: Any) -> Any:
        function = functools.partial(super().decode_tiled, *args, **kwargs)  # type: ignore[misc]
        return self.onegraph.run("decoder", self, "tiles", function)

    def encode_tiled(self, *args: Any, **kwargs: Any) -> Any:
        self.onegraph.check_encoder()
        function = functools.partial(super().encode_tiled, *args, **kwargs)  # type: ignore[misc]
        return self.onegraph.run("encoder", self, "tiles", function)

    def decode_tiled_(self, *args: Any, **kwargs: Any) -> Any:
        function = functools.partial(super().decode_tiled_, *args, **kwargs)  # type: ignore[misc]
        return self.onegraph.run("decoder", self, "tiles", function)

    def encode_tiled_(self, *args: Any, **kwargs: Any) -> Any:
        function = functools.partial(super().encode_tiled_, *args, **kwargs)  # type: ignore[misc]
        return self.onegraph.run("encoder", self, "tiles", function)


@functools.cache
def vae_class_for(vae_class: Any) -> Any:
    """The class of a VAE that came through our node."""
    return type(vae_class.__name__, (Calls, vae_class), {"__module__": vae_class.__module__})
