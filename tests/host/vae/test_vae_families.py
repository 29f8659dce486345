"""VAEs of ComfyUI's own classes, small: images and videos are eager's, what no graph serves says why."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.comfyui import vaes
from support.scenes.nodes import NODE, compiled_vae, told
from support.scenes.process import new_process

from onegraph.common.reasons import NoGraph
from onegraph.graph_cache.lookup import Miss
from onegraph.host.calls.vae import hook
from onegraph.runtime.counters import Counters
from onegraph.runtime.graphs.faithfulness import relative_l2
from onegraph.runtime.obtain.registry import Registry

pytestmark = pytest.mark.usefixtures("inference")
SAME = 1e-5  # relative L2, of latents; images differ by less than one step of 8 bits
DEFAULT = ("wan 2.1",)  # of which `make test` compiles both halves
IMAGES = [name for name in vaes.VAES if name not in ("ltx", "cosmos", "minimax h3")]  # the others are of videos alone
ALL = [pytest.param(name, marks=() if name in DEFAULT else pytest.mark.full) for name in IMAGES]
VIDEO = [name for name, small in vaes.VAES.items() if small.dims == 3]


@functools.cache
def loaded(name: str) -> Any:
    return vaes.load(name)


def compiled(vae: Any, **options: Any) -> Any:
    return compiled_vae(vae, **{"backend": "inductor", **options})


def node_text(part: str = "decoder") -> str:
    return told(f"{NODE}:{part}")


def check_decode(fast: Any, vae: Any, z: torch.Tensor) -> None:
    found, wanted = fast.decode(z), vae.decode(z)
    assert found.shape == wanted.shape
    assert float((found - wanted).abs().max()) < 1 / 255
    assert relative_l2(found, wanted) < SAME, node_text()


def check_encode(fast: Any, vae: Any, images: torch.Tensor) -> None:
    found, wanted = fast.encode(images), vae.encode(images)
    assert found.shape == wanted.shape
    assert relative_l2(found, wanted) < SAME, node_text("encoder")


def as_new_process(home: Path, check: Callable[[Counters], None]) -> None:
    with new_process(home) as fresh:
        check(fresh.counters)


@pytest.mark.parametrize("name", ALL)
def test_images_of_any_size_and_batch(name: str, counters: Counters, graphs_home: Path) -> None:
    """Both halves compile once, for all sizes; another process, and other weights, compile nothing."""
    vae = loaded(name)
    fast = compiled(vae)
    for height, width, batch in ((8, 6, 1), (5, 11, 2), (16, 7, 1)):
        check_decode(fast, vae, vaes.latents(name, height, width, batch))
        if batch == 1 or name not in VIDEO:  # a video VAE takes a batch of images for frames
            check_encode(fast, vae, vaes.images(name, height, width, batch))
    assert (counters.compiles, counters.eager_calls) == (2, 0), counters.reasons
    assert node_text().startswith("compiled, any size"), node_text()

    def others(counters: Counters) -> None:
        other = vaes.load(name, seed=6)
        check_decode(compiled(other), other, vaes.latents(name, 6, 9))
        check_encode(compiled(other), other, vaes.images(name, 6, 9))
        assert (counters.compiles, counters.restores, counters.eager_calls) == (0, 2, 0), counters.reasons

    as_new_process(graphs_home, others)


@pytest.mark.parametrize("name", ["wan 2.1", "flux.2"])
def test_tiles_never_compile(name: str, fresh_process: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do those that the host falls back to when memory runs out."""
    import comfy.model_management

    monkeypatch.setattr(fresh_process.store, "find", lambda *args: Miss(NoGraph()))
    monkeypatch.setattr(fresh_process.store, "take", lambda *args: None)
    vae, z = loaded(name), vaes.latents(name, 8, 8)
    fast, tiled = compiled(vae), {"tile_x": 4, "tile_y": 4, "overlap": 1}
    assert torch.equal(fast.decode_tiled(z, **tiled), vae.decode_tiled(z, **tiled))
    whole: list[int] = []

    def limited(self: Any, part: Any, module: Any, x: torch.Tensor, own: Any) -> Any:
        if not whole:
            whole.append(1)
            raise comfy.model_management.OOM_EXCEPTION("no memory for a whole image")
        return served(self, part, module, x, own)

    served = hook.VaeHook.serve
    monkeypatch.setattr(hook.VaeHook, "serve", limited)
    assert bool(torch.isfinite(fast.decode(z)).all()) and whole
    assert fresh_process.counters.compiles == fresh_process.counters.compiled_calls == 0
