"""A video that a VAE decodes part by part: the host's own loop, with a stand-in for the module that decodes a part.

The live VAE stays as it is: the loop runs over a second face of it, whose decoder goes through the hook.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..module_proxy import ModuleProxy, stand_in

# What decodes a part: the decoder's own call, and its arguments.
Serve = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class _PartDecoder(ModuleProxy):
    """A decoder whose calls are served as `onegraph_hook` says."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.onegraph_hook(self.onegraph_module, args, kwargs)


class _InParts(ModuleProxy):
    """A VAE with another decoder, which `onegraph_hook` is."""

    __slots__ = ()

    @property
    def decoder(self) -> torch.nn.Module:
        found: torch.nn.Module = self.onegraph_hook
        return found


def in_parts(module: Any, serve: Serve) -> torch.nn.Module:
    """A second face of a VAE, for one call of its class's `decode`."""
    return stand_in(_InParts, module, stand_in(_PartDecoder, module.decoder, serve))
