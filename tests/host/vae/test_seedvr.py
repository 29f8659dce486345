"""SeedVR2's VAE, small: it tiles itself, as its templates have it do, and computes large inputs in pieces."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from support.comfyui import vaes
from support.scenes.nodes import NODE, compiled_vae, told

from onegraph.common import reasons
from onegraph.runtime.counters import Counters

pytestmark = pytest.mark.usefixtures("inference")
NAME = "seedvr 2"
TILES = {"tile_x": 64, "tile_y": 64, "overlap": 16, "tile_t": 16, "overlap_t": 4}  # in pixels
LATENT_TILES = {**TILES, "tile_x": 8, "tile_y": 8, "overlap": 2}


def check(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert found.shape == wanted.shape
    assert float((found - wanted).abs().max()) < 1 / 255


@pytest.mark.full
def test_graphs_of_a_decode_in_tiles_serve_other_tiles(counters: Counters, graphs_home: Path) -> None:
    """They are compiled when all tiles are done, of which those at the edges are smaller. Images are videos, too."""
    vae, fast = vaes.load(NAME), compiled_vae(vaes.load(NAME), backend="inductor")
    for _ in range(2):
        z = vaes.latents(NAME, 14, 14, frames=1)
        check(fast.decode_tiled(z, **LATENT_TILES), vae.decode_tiled(z, **LATENT_TILES))
    assert told(f"{NODE}:decoder").startswith("block graphs: "), told(f"{NODE}:decoder")
    compiles, eager = counters.compiles, counters.eager_calls
    z = vaes.latents(NAME, 9, 14, frames=1)
    check(fast.decode_tiled(z, **LATENT_TILES), vae.decode_tiled(z, **LATENT_TILES))
    assert (counters.compiles, counters.eager_calls) == (compiles, eager), counters.reasons


def test_an_input_that_is_computed_in_pieces_is_given_no_graph(counters: Counters, graphs_home: Path) -> None:
    """The frames are the same to the last bit, and the run says why."""
    from comfy.ldm.seedvr import vae as home

    vae, fast = vaes.load(NAME), compiled_vae(vaes.load(NAME), backend="inductor", when_missing="eager")
    z = vaes.latents(NAME, 6, 6, frames=3)
    for one in (vae, fast):
        one.patcher.model.set_memory_limit(1e-4, 1e-4)
    try:
        assert torch.equal(fast.decode(z), vae.decode(z))
    finally:
        home.set_norm_limit(home.BYTEDANCE_VAE_NORM_MEM_GIB)
    assert counters.compiles == counters.compiled_calls == 0
    assert counters.reasons[reasons.BlockInPieces()] == 12, counters.reasons  # of 26 calls, those of the larger frames


@pytest.mark.parametrize("cls", ["ResnetBlock3D", "Upsample3D", "Downsample3D"])
def test_the_limit_is_never_passed_where_the_host_does_not_split(cls: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every block and size: whatever the host computes in pieces, is refused."""
    from comfy.ldm.seedvr import vae as home

    from onegraph.host.families import vae_seedvr

    largest: list[int] = []

    def prod(sides: Any) -> int:
        largest.append(real(sides))
        return largest[-1]

    blocks = [one for one in vaes.load(NAME).first_stage_model.modules() if type(one).__name__ == cls]
    real = home.math.prod
    monkeypatch.setattr(home, "math", type("Counting", (), {**vars(home.math), "prod": staticmethod(prod)}))
    states = (home.MemoryState.INITIALIZING, home.MemoryState.ACTIVE, home.MemoryState.DISABLED)
    for block, (frames, height, width) in itertools.product(blocks, ((3, 8, 6), (4, 5, 9))):
        given = {"temb": None} if cls == "ResnetBlock3D" else {}
        kept: dict[Any, Any] = {}
        x = torch.randn(2, block.in_channels if given else block.channels, frames, height, width)
        convolutions = [one for one in block.modules() if isinstance(one, home.InflatedCausalConv3d)]
        for state in states:
            largest.clear()
            block(x, **given, memory_state=state, memory_cache=kept)
            assert largest and not vae_seedvr._in_pieces(block, x)
            for one in convolutions:
                one.memory_limit = 4 * max(largest) / 1024**3  # of which the host computes the largest in pieces
            assert vae_seedvr._in_pieces(block, x)
            for one in convolutions:
                one.memory_limit = home.BYTEDANCE_VAE_CONV_MEM_GIB
