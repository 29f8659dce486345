"""The host's memory: what it plans to take, whether it has nothing to do, and that it may have ours when it asks.

ComfyUI makes room by asking the models in `comfy.model_management.current_loaded_models` to leave the device, and no
callback of a model tells when another one needs room. So captured CUDA graphs are in that list, too, as a model of
the host's own classes: first to be asked, and gone after `/free`, an out-of-memory error or an unload of everything.
While a run lasts it stands there for the weights, too, that the run keeps alive: the host may move them at any time.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from ...common import memory
from ...common.log import logger
from ...runtime.graphs.binding import is_held, release_held
from ...runtime.obtain.registry import registry
from ..comfyui import contract
from ..comfyui.prompt_server import prompt_server

log = logger("host")

_UNLOAD_ALL = 1e29  # bytes: who asks for more wants everything gone, not room for something
_FIRST = 1 << 60  # the host asks first whose weights are elsewhere for the most part

_announced: dict[torch.device, Any] = {}
_lock = threading.Lock()


def queue_is_idle() -> bool:
    """Tell whether no prompt runs or waits. Without a server (in-process use) nobody can tell, so never."""
    return _tasks() == 0


def queue_is_busy() -> bool:
    """Tell whether a prompt runs or waits. Without a server nobody can tell, so never."""
    return (_tasks() or 0) > 0


def _tasks() -> int | None:
    """Prompts that run or wait."""
    queue = getattr(prompt_server(), "prompt_queue", None)
    return None if queue is None else int(queue.get_tasks_remaining())


def call_bytes(patcher: Any, x: torch.Tensor) -> int:
    """Return the bytes that an eager call takes by the host's own estimate; 0: it has none."""
    estimate = getattr(patcher.model, "memory_required", None)
    if estimate is None:
        return 0
    return int(estimate(list(x.shape)))


def inference_bytes(call: int) -> int:
    """Return the bytes of the device that the host keeps free for a run, besides the weights.

    Args:
        call: of one eager call, by the host's estimate.
    """
    import comfy.model_management as management

    return int(max(management.minimum_inference_memory(), call + management.extra_reserved_memory()))


def missing_bytes(patcher: Any) -> int:
    """Return the bytes of the weights that the host has yet to bring for a run that has begun, as DynamicVRAM does."""
    return int(max(0, patcher.model_size() - patcher.loaded_size()))


def announce_run(device: torch.device) -> None:
    """Have the host ask for the weights that a run on a GPU will keep alive before it moves them. Never raises."""
    if device.type == "cuda":
        _announce(device, lambda: True)


def announce_captures(device: torch.device) -> int:
    """Have the host know what captured CUDA graphs hold on a device, which is returned in bytes. Never raises."""
    return _announce(device, lambda: is_held(device))


def _announce(device: torch.device, wanted: Callable[[], bool]) -> int:
    """List what is held, if it is something or is `wanted` in the list all the same."""
    held = 0
    try:
        held = registry().captured_bytes(device)
        if contract.refusal("memory") is not None:
            return held
        import comfy.model_management as management

        loaded = management.current_loaded_models
        with _lock:
            captures: Any = _announced.get(device)
            listed = captures is not None and any(one is captures for one in loaded)
            needed = bool(held) or wanted()
            if needed and not listed:
                captures = _announced[device] = captures or _loaded_captures()(device)
                captures.model_load()
                loaded.append(captures)
            elif listed and not needed:
                loaded.remove(captures)
                captures.forget()
    except Exception:  # never into the queue: the graphs then go when their model does
        log.debug("captured CUDA graphs could not be announced to the host", exc_info=True)
    return held


@functools.cache
def _loaded_captures() -> Any:
    """The class of what stands in the host's list. Made late, for its bases are the host's."""
    from comfy.model_management import LoadedModel
    from comfy.model_patcher import ModelPatcher

    class OneGraphCudaGraphs(torch.nn.Module):
        """A model without weights, whose name the host's log shows."""

        def __init__(self, device: torch.device) -> None:
            super().__init__()
            self.device = device

    class CapturesPatcher(ModelPatcher):
        """Loads and unloads nothing. Its size is what the captured graphs hold at the moment."""

        def model_size(self) -> int:
            return registry().captured_bytes(self.load_device)

        def loaded_size(self) -> int:
            return self.model_size()

        def partially_load(self, device_to: Any, extra_memory: Any = 0, force_patch_weights: Any = False) -> int:
            return 0

        def partially_unload(self, device_to: Any, memory_to_free: Any = 0, force_patch_weights: Any = False) -> int:
            return _release(self.load_device, memory_to_free)

        def detach(self, unpatch_all: Any = True) -> Any:
            if unpatch_all:
                _release(self.load_device, _UNLOAD_ALL)
            return self.model

        def __del__(self) -> None:
            """Nothing is pinned, and a collector must not release anything."""

    class LoadedCaptures(LoadedModel):
        """What captured CUDA graphs hold on one device."""

        model_finalizer: Any

        def __init__(self, device: torch.device) -> None:
            # The host keeps a weak reference only.
            self._patcher = CapturesPatcher(OneGraphCudaGraphs(device), device, torch.device("cpu"))
            super().__init__(self._patcher)

        @property
        def currently_used(self) -> bool:
            """Never: nodes that load again what is in use would load this."""
            return False

        @currently_used.setter
        def currently_used(self, value: bool) -> None:
            pass

        def model_offloaded_memory(self) -> int:
            return _FIRST

        def model_memory_required(self, device: Any) -> int:
            return 0

        def model_unload(self, memory_to_free: Any = None, unpatch_weights: Any = True) -> bool:
            """Release, and leave the list; the next run that captures comes back."""
            _release(self.device, _UNLOAD_ALL if memory_to_free is None else memory_to_free)
            self.forget()
            return True

        def forget(self) -> None:
            """Not in the list any more."""
            if self.model_finalizer is not None:
                self.model_finalizer.detach()
                self.model_finalizer = None

    return LoadedCaptures


def _release(device: torch.device, wanted: float) -> int:
    release_held(device)
    released = registry().release_captures(device, "freed" if wanted >= _UNLOAD_ALL else "needed")
    if released:
        log.debug("the host asks for memory: captured CUDA graphs of %s are released", memory.in_words(released))
    return released
