"""What a node puts on a MODEL: callbacks that begin and end its runs, and a wrapper around its calls."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from ...runtime.guards.guard_cache import GuardCache
from .component import NodeComponent
from .run import HostRun

KEY = "onegraph"
_GUARDS = "onegraph_guards"


class SamplingHook:
    """One node's hook. Clones of the patcher share it, so it holds options and reports, never weights.

    Attributes:
        wraps: the host's name of the wrappers that it belongs to.
    """

    wraps: ClassVar[str]

    def __init__(self, component: NodeComponent) -> None:
        self.component = component

    def __deepcopy__(self, memo: dict[int, Any]) -> SamplingHook:
        """Itself: copies of a MODEL that other nodes make belong to the same node of ours."""
        return self

    def start(self, patcher: Any, module: torch.nn.Module) -> HostRun:
        """Begin a run of a model whose weights are loaded. Never raises."""
        raise NotImplementedError

    def wrapper(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        """The host's wrapper around a call."""
        raise NotImplementedError

    def attach(self, patcher: Any) -> None:
        """Put this hook on a patcher (a fresh clone), in place of any hook of ours already there."""
        from comfy.patcher_extension import CallbacksMP, WrappersMP

        detach(patcher)
        patcher.add_wrapper_with_key(getattr(WrappersMP, self.wraps), KEY, self.wrapper)
        patcher.add_callback_with_key(CallbacksMP.ON_PRE_RUN, KEY, self.on_pre_run)
        patcher.add_callback_with_key(CallbacksMP.ON_CLEANUP, KEY, self.on_cleanup)
        patcher.add_callback_with_key(CallbacksMP.ON_DETACH, KEY, self.on_detach)

    def on_pre_run(self, patcher: Any) -> None:
        module = patcher.model.diffusion_model
        _runs.setdefault(id(module), []).append((self, self.start(patcher, module)))

    def on_cleanup(self, patcher: Any) -> None:
        key = id(patcher.model.diffusion_model)
        active = _runs.get(key, [])
        for number, (hook, run) in reversed([*enumerate(active)]):
            if hook is self and run.patcher is patcher:
                del active[number]
                if not active:
                    _runs.pop(key, None)
                self.component.finish(run)
                return

    def on_detach(self, patcher: Any, unpatch_all: bool) -> None:
        """The weights leave the device, unless `unpatch_all` is False: then a clone takes over where they are."""
        if unpatch_all:
            for _, run in _runs.get(id(patcher.model.diffusion_model), []):
                run.release()
            self.component.release_captures()


# The runs under way by the module's id. The host hands one model's options, and so one node's wrapper, to another
# model's calls (DualModelGuider): whose call it is only the module tells. The last run comes first.
_runs: dict[int, list[tuple[SamplingHook, HostRun]]] = {}


def active(module: Any) -> tuple[SamplingHook, HostRun] | tuple[None, None]:
    """The hook and the run that a call of a module belongs to; None: there are none."""
    runs = _runs.get(id(module))
    return runs[-1] if runs else (None, None)


def guards_of(patcher: Any) -> GuardCache:
    """The guards of a MODEL's modules, which last as long as it does: a node that runs again, as behind another LoRA,
    makes another hook for the same modules, and inspecting those of SDXL's UNet anew takes 0.15 s."""
    guards: GuardCache = vars(patcher.model).setdefault(_GUARDS, GuardCache())
    return guards


def detach(patcher: Any) -> None:
    """Take any hook of ours off a patcher."""
    from comfy.patcher_extension import CallbacksMP, WrappersMP

    patcher.remove_wrappers_with_key(WrappersMP.DIFFUSION_MODEL, KEY)
    patcher.remove_wrappers_with_key(WrappersMP.APPLY_MODEL, KEY)
    patcher.remove_callbacks_with_key(CallbacksMP.ON_PRE_RUN, KEY)
    patcher.remove_callbacks_with_key(CallbacksMP.ON_CLEANUP, KEY)
    patcher.remove_callbacks_with_key(CallbacksMP.ON_DETACH, KEY)
