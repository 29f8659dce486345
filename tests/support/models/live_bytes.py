"""How many bytes of tensors live, by what is computed: on a CPU, where no allocator tells."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """While this lasts, what operations return is counted as long as its storage lives.

    Attributes:
        now, peak: bytes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        before = {id(one.untyped_storage()) for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for one in tree_leaves(result):
            if isinstance(one, torch.Tensor):
                storage = one.untyped_storage()
                if id(storage) not in before and storage not in self._known:
                    self._known.add(storage)
                    self.now += storage.nbytes()
                    weakref.finalize(storage, self._freed, storage.nbytes())
        self.peak = max(self.peak, self.now)
        return result

    def _freed(self, size: int) -> None:
        self.now -= size


def elsewhere(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that is not counted, as one in another memory."""
    with _disable_current_modes():
        return tensor.clone()


def peak_of(call: Callable[[], Any]) -> int:
    """The most bytes that a call has at a time, besides what there was before."""
    with LiveBytes() as live:
        call()
    return live.peak
