"""Models that do not fit: the host's own functions bring the weights of one block after the other, to stand-ins of
pages, and blocks run compiled all the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.comfyui import pages
from support.dit_matrix.weights import lora_of
from support.models import dits, quantised
from support.scenes.judge import distance
from support.scenes.nodes import assert_close, blocks, compiled, told

from onegraph.host.weights import paged_blocks
from onegraph.runtime.obtain.registry import Registry, registry


@pytest.fixture(autouse=True)
def inference(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with torch.inference_mode(), pages.simulated(monkeypatch):
        yield


def left_alone(model: Any, vbar: pages.FakeVbar) -> bool:
    """Whether nothing is pinned, fetched or held."""
    fetched = [layer for layer in model.model.modules() if "_prefetch" in vars(layer)]
    return not any(vbar.pins) and not fetched


@pytest.fixture
def flux() -> Any:
    """A small FLUX.1 whose graphs exist."""
    model = dits.load("flux")
    dits.sample(compiled(model), "flux")
    return model


def check(model: Any, vbar: pages.FakeVbar, wanted: torch.Tensor, name: str = "flux", within: float = 1e-6) -> int:
    """A sampling of compiled blocks alone is right; how many of them were streamed."""
    found = dits.sample(compiled(model), name)
    report = blocks()
    assert_close(found, wanted, within)
    assert report["eager_codes"] == {} and report["compiled"] == report["of"], told()
    assert registry().counters.compiles == 0 or report["calls"]
    assert left_alone(model, vbar)
    streamed: int = report["streamed"]
    assert (report["streamed_bytes"] > 0) == (streamed > 0)
    return streamed


@pytest.mark.parametrize(("room", "least", "most"), [(0.6, 1, 4), (0.25, 3, 5), (0.0, 5, 5)])
def test_a_model_with_room_for_a_part_of_it(room: float, least: int, most: int, flux: Any) -> None:
    wanted = dits.sample(flux, "flux")
    vbar = pages.page(flux, room)
    for _ in range(2):
        streamed = check(flux, vbar, wanted)
        assert least <= streamed <= most
        vbar.evict()
    text = told()
    assert (f"5 of 5 blocks compiled, {5 - streamed} resident, {streamed} streamed" in text) == (streamed > 0), text


def test_a_streamed_block_has_the_graph_of_a_resident_one(flux: Any) -> None:
    wanted = dits.sample(flux, "flux")
    before = registry().counters.compiles
    check(flux, pages.page(flux, 0.5), wanted)
    assert registry().counters.compiles == before


def test_loras_are_applied_to_what_is_streamed(flux: Any) -> None:
    """On, stronger, off: to the pages as they are filled, and to each use of what has none."""
    import comfy.sd

    plain = dits.load("flux")
    vbar = pages.page(flux, 0.4)
    dits.sample(compiled(flux), "flux")
    for strength in (0.8, 1.6, 0.0):
        patched = comfy.sd.load_lora_for_models(plain, None, lora_of(plain), strength, 0)[0] if strength else plain
        wanted = dits.sample(patched, "flux")
        assert (pages.patch(flux, patched) > 0) == (strength > 0)
        for _ in range(2):
            assert check(flux, vbar, wanted) > 0
            vbar.evict()


class Stopped(BaseException):
    """An interrupt."""


@pytest.mark.parametrize("error", [ValueError, torch.OutOfMemoryError, Stopped])
@pytest.mark.parametrize("where", ["fetch", "resolve", "run"])
def test_nothing_stays_behind_an_error(
    where: str, error: type[BaseException], flux: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the midst of bringing a block's weights, or of its run: the block is eager or the error is the user's, and no
    page stays pinned."""
    from onegraph.runtime.graphs.loaded_graph import LoadedGraph

    wanted = dits.sample(flux, "flux")
    vbar = pages.page(flux, 0.4)
    calls: list[Any] = []

    def failing(real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(args)
            if len(calls) == 3:
                raise error("no")
            return real(*args, **kwargs)

        return call

    made, run = paged_blocks.streamed, failing(LoadedGraph._run)

    def source(*args: Any) -> Any:
        found = made(*args)
        assert found is not None
        found.host = dataclasses.replace(found.host, **{where: failing(getattr(found.host, where))})
        return found

    with monkeypatch.context() as patching:
        if where == "run":
            patching.setattr(LoadedGraph, "_run", lambda *args: run(*args))
        else:
            patching.setattr(paged_blocks, "streamed", source)
        if error is Stopped:
            with pytest.raises(Stopped):
                dits.sample(compiled(flux), "flux")
        else:
            assert distance(dits.sample(compiled(flux), "flux"), wanted) < 1e-6
            assert blocks()["eager_codes"]
        assert len(calls) >= 3
    assert left_alone(flux, vbar)
    check(flux, vbar, wanted)


def test_a_layer_exchanged_in_mid_run_is_not_served_by_a_copy_of_the_old_one(flux: Any) -> None:
    vbar = pages.page(flux, 0.4)
    module = flux.model.diffusion_model
    done: list[int] = []

    def exchange(*args: Any) -> None:
        if not done:
            done.append(1)
            old = module.single_blocks[0].linear1
            new = type(old)(old.in_features, old.out_features, dtype=old.weight.dtype, device="cpu")
            new.weight = torch.nn.Parameter(old.weight * -1.0, requires_grad=False)
            new.bias = torch.nn.Parameter(old.bias * 2.0, requires_grad=False)
            module.single_blocks[0].linear1 = new.eval()

    fast = compiled(flux)
    fast.set_model_sampler_post_cfg_function(lambda given: (exchange(), given["denoised"])[1])
    found = dits.sample(fast, "flux", steps=3)
    report = blocks()
    assert report["eager_codes"] == {"block_changed": 2}, told()
    done.clear()
    module.single_blocks[0].linear1.weight.mul_(-1.0)
    module.single_blocks[0].linear1.bias.mul_(0.5)
    plain = flux.clone()
    plain.set_model_sampler_post_cfg_function(lambda given: (exchange(), given["denoised"])[1])
    assert distance(found, dits.sample(plain, "flux", steps=3)) < 1e-5
    assert left_alone(flux, vbar)


@pytest.mark.parametrize("fetched", ["all", "some"])
def test_what_the_host_has_fetched_before_a_block(fetched: str, flux: Any) -> None:
    """Some models' own code brings the next block's weights; those are used, and stay the host's to let go."""
    import inspect

    from comfy.model_prefetch import cleanup_prefetched_modules
    from comfy.ops import cast_modules_with_vbar

    wanted = dits.sample(flux, "flux")
    vbar = pages.page(flux, 0.4)
    block = flux.model.diffusion_model.single_blocks[1]
    layers = [layer for layer in block.modules() if vars(layer).get("_v") is not None]
    own = layers if fetched == "all" else layers[:1]
    cast_modules_with_vbar(own, None, torch.device("cpu"), None, True)
    found = dits.sample(compiled(flux), "flux")
    assert distance(found, wanted) < 1e-6
    assert blocks()["eager_codes"] == ({} if fetched == "all" else {"weights_moving": 2})
    assert all("_prefetch" in vars(layer) for layer in own)
    of_block = (block,) if len(inspect.signature(cleanup_prefetched_modules).parameters) > 1 else ()  # ComfyUI 0.33
    cleanup_prefetched_modules(*of_block, own)
    assert left_alone(flux, vbar)


def test_pages_that_go_between_steps(flux: Any) -> None:
    """Other work takes all pages, and lets more or fewer of them come back, in the midst of a run."""
    wanted = dits.sample(flux, "flux", steps=4)
    vbar = pages.page(flux, 0.6)
    rooms = iter([0.1, 0.8, 0.3, 0.6] * 4)

    def taken(given: Any) -> Any:
        vbar.evict()
        vbar.room = int(next(rooms) * len(vbar.pins))
        return given["denoised"]

    fast = compiled(flux)
    fast.set_model_sampler_post_cfg_function(taken)
    for _ in range(2):
        found = dits.sample(fast, "flux", steps=4)
        assert_close(found, wanted, 1e-6)
        assert blocks()["eager_codes"] == {} and left_alone(flux, vbar)


def test_sixty_runs_hold_no_memory(flux: Any) -> None:
    import gc

    vbar = pages.page(flux, 0.4)
    fast = compiled(flux)
    counts = []
    for number in range(60):
        dits.sample(fast, "flux", steps=1)
        if number % 20 == 19:
            gc.collect()
            counts.append(sum(isinstance(one, torch.Tensor) for one in gc.get_objects()))
    assert counts[2] - counts[1] < 10 and counts[1] - counts[0] < 10, counts
    assert left_alone(flux, vbar)


@pytest.mark.parametrize("kind", ["int8 convrot", pytest.param("fp8 scaled", marks=pytest.mark.full)])
def test_quantised_blocks_are_streamed(kind: str, fresh_process: Registry) -> None:
    """With pages for a part and for none, and then with a LoRA, which the host merges and quantises anew."""
    import comfy.sd

    model = quantised.load("qwen-image", kind)
    dits.sample(compiled(model), "qwen-image")
    wanted = dits.sample(compiled(model), "qwen-image")
    compiles = fresh_process.counters.compiles
    vbar = pages.page(model, 0.5)
    for _ in range(2):
        check(model, vbar, wanted, "qwen-image", within=2e-3)
        vbar.evict()
    plain = quantised.load("qwen-image", kind)
    patched = comfy.sd.load_lora_for_models(plain, None, lora_of(plain), 0.5, 0)[0]
    merged = dits.sample(compiled(patched), "qwen-image")
    assert pages.patch(model, patched)
    assert distance(merged, wanted) > 1e-2
    check(model, vbar, merged, "qwen-image", within=3e-2)
    assert fresh_process.counters.compiles == compiles


@pytest.mark.full
def test_weights_that_are_cast_at_each_use_are_streamed() -> None:
    model = quantised.stored("flux")
    dits.sample(compiled(model), "flux")
    wanted = dits.sample(compiled(model), "flux")
    check(model, pages.page(model, 0.4), wanted, within=1e-6)


def test_two_models_in_turns_keep_their_own_pages(flux: Any) -> None:
    """Another one's run takes pages, and none has the other's weights."""
    other = dits.load("flux", seed=1)
    wanted = [dits.sample(model, "flux") for model in (flux, other)]
    vbars = [pages.page(model, 0.6) for model in (flux, other)]
    for _ in range(2):
        for model, vbar, right in zip((flux, other), vbars, wanted, strict=True):
            assert 0 < check(model, vbar, right) < 5
            vbar.free_memory(vbar.loaded_size() // 2)
            vbar.prioritize()


def test_weights_that_change_between_steps_are_read_anew(flux: Any) -> None:
    """In blocks that stay, too: the host forgets what it filled, as it does for another LoRA."""
    module = flux.model.diffusion_model
    vbar = pages.page(flux, 0.6)
    layers = [one for one in module.modules() if vars(one).get("_v") is not None]

    def change(given: Any) -> Any:
        for layer in layers:
            layer.weight.mul_(1.05)
            layer._v_signature = None
        return given["denoised"]

    def run(model: Any) -> torch.Tensor:
        kept = [layer.weight.clone() for layer in layers]
        model.set_model_sampler_post_cfg_function(change)
        found = dits.sample(model, "flux", steps=3)
        for layer, weight in zip(layers, kept, strict=True):
            layer.weight.copy_(weight)
            layer._v_signature = None
        return found

    fast = run(compiled(flux))
    assert blocks()["eager_codes"] == {} and left_alone(flux, vbar)
    assert distance(fast, run(flux.clone())) < 1e-6
