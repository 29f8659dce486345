"""Video VAEs of ComfyUI's own classes, small: their frames are eager's, their blocks' graphs serve all sizes."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from support.comfyui import vaes
from support.scenes.nodes import NODE, compiled_vae, told
from support.scenes.process import new_process

from onegraph.runtime.counters import Counters
from onegraph.runtime.graphs.faithfulness import relative_l2

pytestmark = pytest.mark.usefixtures("inference")
SAME = 1e-5  # relative L2
VIDEOS = [name for name, small in vaes.VAES.items() if small.dims == 3]
QUICK = ("minimax h3",)  # of which `make test` compiles the decoder: one kind of block
ALL = [pytest.param(name, marks=() if name in QUICK else pytest.mark.full) for name in VIDEOS]
SIZES = ((8, 6, 5), (6, 9, 7), (5, 7, 9))  # height and width of latents, frames; the first is the one compiled for


def video(name: str, height: int, width: int, frames: int) -> torch.Tensor:
    small = vaes.VAES[name]
    shape = (small.frames * (frames - 1) + 1, height * small.pixels, width * small.pixels, 3)
    return torch.rand(shape, generator=torch.Generator().manual_seed(1))


def check(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert found.shape == wanted.shape
    assert relative_l2(found, wanted) < SAME


def check_decode(fast: Any, vae: Any, z: torch.Tensor, **tiles: int) -> None:
    method = "decode_tiled" if tiles else "decode"
    found, wanted = getattr(fast, method)(z, **tiles), getattr(vae, method)(z, **tiles)
    check(found, wanted)
    assert float((found - wanted).abs().max()) < 1 / 255


def in_another_thread(run: Callable[[], None]) -> None:
    """As ComfyUI's queue does in each process."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(torch.inference_mode()(run)).result()


@pytest.mark.parametrize("name", ALL)
def test_frames_of_any_size_and_number(name: str, counters: Counters, graphs_home: Path) -> None:
    """The first decode is eager; its blocks' graphs serve others, tiles, other weights and another process."""
    vae, fast = vaes.load(name), compiled_vae(vaes.load(name), backend="inductor")
    check_decode(fast, vae, vaes.latents(name, *SIZES[0][:2], frames=SIZES[0][2]))
    assert counters.compiled_calls == 0 < counters.compiles
    text = told(f"{NODE}:decoder")
    first = r"uncompiled: the first call, by which graphs are compiled for its blocks; [1-9]\d* kinds? compiled in "
    assert re.match(first, text), text
    # Of calls that differ by a size of 1, one kind is compiled after each decode.
    check_decode(fast, vae, vaes.latents(name, *SIZES[0][:2], frames=SIZES[0][2]))
    compiles = counters.compiles
    for height, width, frames in SIZES:
        before = counters.eager_calls
        check_decode(fast, vae, vaes.latents(name, height, width, frames=frames))
        assert counters.eager_calls == before, counters.reasons
    text = told(f"{NODE}:decoder")
    assert text.startswith("block graphs: ") and " compiled in " not in text, text
    assert counters.compiles == compiles

    with new_process(graphs_home) as fresh:
        other = vaes.load(name, seed=6)
        fast = compiled_vae(other, backend="inductor")
        in_another_thread(lambda: check_decode(fast, other, vaes.latents(name, 6, 9, frames=5)))
        assert (fresh.counters.compiles, fresh.counters.eager_calls) == (0, 0), fresh.counters.reasons
        assert fresh.counters.compiled_calls and fresh.counters.restores


@pytest.mark.full
@pytest.mark.parametrize("name", VIDEOS)
def test_encoded_frames(name: str, counters: Counters, graphs_home: Path) -> None:
    vae, fast = vaes.load(name), compiled_vae(vaes.load(name), backend="inductor", parts="encoder")
    for height, width, frames in SIZES:
        check(fast.encode(video(name, height, width, frames)), vae.encode(video(name, height, width, frames)))
    assert counters.compiles and counters.compiled_calls, counters.reasons
    z = vaes.latents(name, *SIZES[0][:2], frames=SIZES[0][2])
    before = counters.compiled_calls
    assert torch.equal(fast.decode(z), vae.decode(z)) and counters.compiled_calls == before


@pytest.mark.parametrize("name", QUICK)
def test_a_decode_that_is_interrupted_leaves_all_as_it_was(
    name: str, counters: Counters, graphs_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the midst of it, by what an operation raises: the next one is right, and nothing stays on the module."""
    vae, fast = vaes.load(name), compiled_vae(vaes.load(name), backend="inductor", when_missing="eager")
    z = vaes.latents(name, 4, 4, frames=5)
    check_decode(fast, vae, z)  # for which the host loads it
    module = fast.patcher.model
    calls: list[int] = []

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        raise InterruptedError("by the user")

    before = [set(vars(one)) for one in module.modules()]
    with monkeypatch.context() as patched:
        patched.setattr(type(module.decoder), "forward", interrupted)
        with pytest.raises(InterruptedError):
            fast.decode(z)
    assert calls and [set(vars(one)) for one in module.modules()] == before
    check_decode(fast, vae, z)


@pytest.mark.parametrize("name", ["wan 2.1", "hunyuan video", "ltx"])
def test_tiles_are_served_together(name: str, counters: Counters, graphs_home: Path) -> None:
    """Each decode in tiles is one run, and starts no compile where there are to be none."""
    vae, fast = vaes.load(name), compiled_vae(vaes.load(name), backend="inductor", when_missing="eager")
    z = vaes.latents(name, 6, 6, frames=5)
    check_decode(fast, vae, z, tile_x=4, tile_y=4, overlap=1, tile_t=4, overlap_t=1)
    assert told(f"{NODE}:decoder").startswith("uncompiled: no graph is cached for this model yet")
    assert counters.compiles == counters.compiled_calls == 0


def test_frames_that_blocks_keep_by_thread_are_part_of_their_calls_not_of_them() -> None:
    """Threads have other numbers in each process, which would compile anew; a guard that sees them read all again."""
    from comfy.ldm.lightricks.vae import causal_video_autoencoder as home

    from onegraph.compiler.blocks.repeated import repeated_blocks
    from onegraph.host.weights import eligibility
    from onegraph.runtime.guards.module_guard import ModuleGuard

    module = vaes.load("ltx").first_stage_model
    for block in repeated_blocks(module).values():
        guard = ModuleGuard(block, eligibility.rules())
        version, digest = guard.version, guard.architecture(block)
        home.mark_conv3d_ended(block)
        kept = [getattr(one, "temporal_cache_state", {}) for one in block.modules()]
        assert [one[threading.get_ident()] for one in kept if one] == 2 * [(None, True)]
        assert guard.refresh(block) == version and guard.architecture(block) == digest
        assert ModuleGuard(block, eligibility.rules()).architecture(block) == digest


@pytest.mark.parametrize("name", VIDEOS)
def test_two_threads_ask_for_the_same_graphs(name: str, graphs_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the second decode, which finds what the first has left."""
    from onegraph.runtime.obtain.registry import Registry

    asked: list[str] = []
    obtain = Registry.obtain

    def noted(self: Registry, request: Any, *args: Any) -> Any:
        asked.append(request.key.digest)
        return obtain(self, request, *args)

    monkeypatch.setattr(Registry, "obtain", noted)
    vae, fast = vaes.load(name), compiled_vae(vaes.load(name), backend="inductor", when_missing="eager", parts="both")
    z, frames = vaes.latents(name, 6, 6, frames=5), video(name, 6, 6, 5)

    def run() -> None:
        check_decode(fast, vae, z)
        check(fast.encode(frames), vae.encode(frames))

    run()
    first = {*asked}
    asked.clear()
    in_another_thread(run)
    assert first == {*asked} != set()


def test_a_class_that_nobody_knows_passes_through() -> None:
    """What it keeps between chunks might be anything."""
    from onegraph.host.calls.vae import hook

    vae = vaes.load("cosmos")
    module: Any = vae.first_stage_model
    module.__class__ = type("Another", (type(module),), {})
    passed, text = hook.compile_vae(vae, hook.VaeNodeOptions(backend="inductor"), NODE)
    assert passed is vae and text == "uncompiled: Another is a video or audio VAE"


def test_a_copy_under_dynamic_vram_runs_uncompiled_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pages are those of the VAE that it was copied from."""
    from onegraph.host.weights import paged_weights

    vae, fast = vaes.load("ltx"), compiled_vae(vaes.load("ltx"), backend="inductor", when_missing="eager")
    z = vaes.latents("ltx", 4, 4, frames=3)
    with monkeypatch.context() as patched:
        patched.setattr(paged_weights, "is_paged", lambda patcher: True)
        patched.setattr(fast.patcher, "model", vae.first_stage_model)
        check_decode(fast, vae, z)
    assert told(f"{NODE}:decoder").startswith("uncompiled: "), told(f"{NODE}:decoder")
    assert "copied" in told(f"{NODE}:decoder") or "copy" in told(f"{NODE}:decoder"), told(f"{NODE}:decoder")
