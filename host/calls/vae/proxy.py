"""The proxy that stands where a VAE's `first_stage_model` stood; only `decode` and `encode` go through the hook."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

import torch

from ...families import Half
from ..module_proxy import ModuleProxy
from .call import Served


class Hook(Protocol):
    """What serves the calls."""

    def serve(
        self, part: Half, module: torch.nn.Module, x: torch.Tensor, class_method: Callable[[torch.Tensor], Any]
    ) -> Served:
        """A decode or encode, through a graph where one serves the call, else by `class_method`."""

    def bypassed(self, part: Half, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """The proxy was called with these arguments, in a way that only the module itself knows."""

    def regularization(self, module: torch.nn.Module) -> Any:
        """What follows an encoder's graph; None: nothing does."""

    def run(self, part: Half, vae: Any, tiles: Literal["whole", "tiles"], function: Callable[[], Any]) -> Any:
        """A decode or encode of the VAE from outside: `function` calls the proxy."""

    def check_encoder(self) -> None:
        """Refuse to encode by a VAE without an encoder."""


class VaeProxy(ModuleProxy):
    """A VAE's module whose decode and encode a hook serves."""

    __slots__ = ()
    onegraph_hook: Hook

    def decode(self, z: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """The module's decode: latents -> images, through a graph where one serves the call."""
        module = self.onegraph_module
        # Of the class: the module may hold a replacement that ends up here again.
        class_method = functools.partial(_module_class(self).decode, module)
        if args or kwargs:
            self.onegraph_hook.bypassed("decoder", module, (z, *args), kwargs)
            return class_method(z, *args, **kwargs)
        return self.onegraph_hook.serve("decoder", module, z, class_method).tensor

    def encode(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """The module's encode: images -> latents, through a graph where one serves the call."""
        module = self.onegraph_module
        class_method = functools.partial(_module_class(self).encode, module)
        if args or kwargs:
            self.onegraph_hook.bypassed("encoder", module, (x, *args), kwargs)
            return class_method(x, *args, **kwargs)
        served = self.onegraph_hook.serve("encoder", module, x, class_method)
        regularization = None if served.whole else self.onegraph_hook.regularization(module)
        return served.tensor if regularization is None else regularization(served.tensor)[0]

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.nn.Module:
        # The memo makes this the very module that a copied patcher holds.
        return self.onegraph_like(copy.deepcopy(self.onegraph_module, memo))


def _module_class(proxy: VaeProxy) -> Any:
    """The class of the module behind a proxy."""
    return type(proxy.onegraph_module)


class Calls:
    """Mixed into the VAE's class: tells the hook which call the proxy is in."""

    onegraph: Hook


def _told(name: str) -> Callable[..., Any]:
    """A method of the VAE that tells the hook of its calls: a whole decode or encode, or one in tiles."""
    part: Half = "decoder" if name.startswith("decode") else "encoder"
    tiles: Literal["whole", "tiles"] = "tiles" if "tiled" in name else "whole"

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if part == "encoder":
            self.onegraph.check_encoder()
        function = functools.partial(getattr(super(Calls, self), name), *args, **kwargs)
        return self.onegraph.run(part, self, tiles, function)

    method.__name__ = name
    return method


for _part in ("decode", "encode"):
    for _name in (_part, f"{_part}_tiled", f"{_part}_tiled_", f"{_part}_tiled_3d"):
        setattr(Calls, _name, _told(_name))
