"""When every call is checked in full: where another custom node's function may run between two calls of a sampling."""

from __future__ import annotations

import gc
import sysconfig
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from headless import host

from onegraph.host import custom_nodes
from onegraph.runtime.counters import Counters
from onegraph.runtime.loaded_graph import LoadedGraph

from .conftest import compiled

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call was checked for everything."""
    seen: list[bool] = []
    call = LoadedGraph.call

    def recorded(self: LoadedGraph, *args: Any) -> Any:
        seen.append(args[5])
        return call(self, *args)

    monkeypatch.setattr(LoadedGraph, "call", recorded)
    return seen


def test_the_hosts_sampling_is_checked_in_full_once(model: Any, whole: list[bool], counters: Counters) -> None:
    from comfy_extras.nodes_easycache import EasyCacheNode

    host.sample(compiled(model), steps=4)
    assert whole == [True, False, False, False]
    with_the_hosts_wrappers = EasyCacheNode.execute(model, 0.2, 0.15, 0.95, False).args[0]
    assert not custom_nodes.in_patcher(with_the_hosts_wrappers)
    assert counters.compiled_calls == 4


def test_libraries_of_the_environment_below_are_not_foreign(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A virtual environment with --system-site-packages has torch elsewhere than its own packages."""
    elsewhere = dict.fromkeys(sysconfig.get_path_names(), str(tmp_path))
    monkeypatch.setattr(sysconfig, "get_paths", lambda: elsewhere)
    caches = (custom_nodes._trusted, custom_nodes._is_foreign)
    for cache in caches:
        cache.cache_clear()
    assert not custom_nodes.is_foreign(torch.nn.functional.group_norm)
    for cache in caches:
        cache.cache_clear()


def _foreign(self: Any = None, *args: Any, **kwargs: Any) -> None:
    """This file is no part of the host."""


CHANGES: dict[str, Callable[[pytest.MonkeyPatch, type], None]] = {
    "a method": lambda patch, cls: patch.setattr(cls, "sample", _foreign),
    "a method more": lambda patch, cls: patch.setattr(cls, "more", _foreign, raising=False),
    "a method of its base": lambda patch, cls: patch.setattr(cls.__bases__[0], "sample", _foreign),
    "a property": lambda patch, cls: patch.setattr(cls, "sample", property(_foreign)),
    "a static method": lambda patch, cls: patch.setattr(cls, "sample", staticmethod(_foreign)),
    "a method's code": lambda patch, cls: patch.setattr(vars(cls)["sample"], "__code__", _foreign.__code__),
    "what a method wraps": lambda patch, cls: patch.setattr(
        vars(cls)["sample"], "__wrapped__", _foreign, raising=False
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_class_that_is_changed_later_counts(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known of a class serves only while all of it is as it was."""
    from comfy.samplers import KSAMPLER

    for _ in range(2):
        assert [custom_nodes.is_foreign_class(KSAMPLER) for _ in range(2)] == [False, False]
        CHANGES[change](monkeypatch, KSAMPLER)
        assert [custom_nodes.is_foreign_class(KSAMPLER) for _ in range(2)] == [True, True]
        monkeypatch.undo()


def test_a_class_that_gets_other_bases_counts() -> None:
    from comfy.samplers import KSAMPLER

    assert not custom_nodes.is_foreign_class(KSAMPLER)
    bases = KSAMPLER.__bases__
    KSAMPLER.__bases__ = (type("Base", bases, {"more": _foreign}),)
    try:
        assert custom_nodes.is_foreign_class(KSAMPLER)
    finally:
        KSAMPLER.__bases__ = bases
    assert not custom_nodes.is_foreign_class(KSAMPLER)


def test_no_class_is_kept_that_goes_with_a_run() -> None:
    from comfy.samplers import KSAMPLER

    def made() -> weakref.ref[type]:
        cls = type("Made", (KSAMPLER,), {"__module__": KSAMPLER.__module__})
        assert not custom_nodes.is_foreign_class(cls)
        return weakref.ref(cls)

    known = made()
    gc.collect()
    assert known() is None


def with_wrapper(model: Any) -> Any:
    clone = model.clone()
    clone.set_model_unet_function_wrapper(lambda apply, a: apply(a["input"], a["timestep"], **a["c"]))
    return clone


def with_cfg_function(model: Any) -> Any:
    clone = model.clone()
    clone.set_model_sampler_post_cfg_function(lambda args: args["denoised"])
    return clone


def with_apply_model_wrapper(model: Any) -> Any:
    from comfy.patcher_extension import WrappersMP

    clone = model.clone()
    clone.add_wrapper_with_key(WrappersMP.APPLY_MODEL, "pack", lambda executor, *a, **k: executor(*a, **k))
    return clone


def with_callback(model: Any) -> Any:
    from comfy.patcher_extension import CallbacksMP

    clone = model.clone()
    clone.add_callback_with_key(CallbacksMP.ON_PREPARE_STATE, "pack", lambda *args: None)
    return clone


@pytest.mark.parametrize("patched", [with_wrapper, with_cfg_function, with_apply_model_wrapper, with_callback])
def test_another_nodes_function_has_all_calls_checked(
    patched: Callable[[Any], Any], model: Any, whole: list[bool]
) -> None:
    host.sample(compiled(patched(model)), steps=3)
    assert whole == [True] * 3
    whole.clear()
    host.sample(patched(compiled(model)), steps=3)
    assert whole == [True] * 3


def _sample(model: Any, sampler: Any, callback: Any = None, guider_class: Any = None) -> None:
    import comfy.sample
    import comfy.samplers

    guider = (guider_class or comfy.samplers.CFGGuider)(model)
    guider.set_conds(host.conditioning(77, 2048, 11), host.conditioning(77, 2048, 12))
    guider.set_cfg(5.0)
    with torch.inference_mode():
        latent = torch.zeros(1, 4, 16, 16)
        noise = comfy.sample.prepare_noise(latent, 1)
        sigmas = comfy.samplers.calculate_sigmas(model.get_model_object("model_sampling"), "normal", 3)
        guider.sample(noise, latent, sampler, sigmas, callback=callback, disable_pbar=True, seed=1)


@pytest.mark.parametrize("what", ["nothing", "sampler", "callback", "guider"])
def test_another_nodes_sampler_or_guider_counts(what: str, model: Any, whole: list[bool]) -> None:
    import comfy.samplers
    from comfy.k_diffusion import sampling

    def sampler_function(*args: Any, **kwargs: Any) -> Any:
        return sampling.sample_euler(*args, **kwargs)

    class Guider(comfy.samplers.CFGGuider):  # type: ignore[misc]
        def predict_noise(self, *args: Any, **kwargs: Any) -> Any:
            return super().predict_noise(*args, **kwargs)

    sampler = comfy.samplers.sampler_object("euler")
    if what == "sampler":
        sampler = comfy.samplers.KSAMPLER(sampler_function)
    callback = (lambda *args: None) if what == "callback" else None
    _sample(compiled(model), sampler, callback, Guider if what == "guider" else None)
    assert whole == ([True, False, False] if what == "nothing" else [True] * 3)
