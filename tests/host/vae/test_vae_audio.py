"""Audio VAEs: of those whose blocks repeat, as Stable Audio 3's do, these run by graphs."""

from __future__ import annotations

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
LENGTHS = (9, 20, 5)  # of latents


def check(fast: Any, vae: Any, method: str, given: torch.Tensor, **tiles: int) -> None:
    """Both with the same noise, which a decode adds to its latents."""
    results = []
    for one in (fast, vae):
        torch.manual_seed(3)
        results.append(getattr(one, method)(given, **tiles))
    assert results[0].shape == results[1].shape and relative_l2(*results) < SAME


def latents(length: int, batch: int = 1) -> torch.Tensor:
    return torch.randn(batch, 256, length, generator=torch.Generator().manual_seed(0))


def audio(length: int) -> torch.Tensor:
    return torch.randn(1, 4096 * length, 2, generator=torch.Generator().manual_seed(1))


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name, small in vaes.VAES.items() if small.dims == 1])
def test_audio_of_any_length(name: str, counters: Counters, graphs_home: Path) -> None:
    """The first decode is eager; its blocks' graphs serve others and another process."""
    vae, fast = vaes.load(name), compiled_vae(vaes.load(name), backend="inductor")
    check(fast, vae, "decode", latents(LENGTHS[0]))
    assert counters.compiled_calls == 0 < counters.compiles, counters.reasons
    compiles, eager = counters.compiles, counters.eager_calls
    for length in LENGTHS:
        check(fast, vae, "decode", latents(length))
    check(fast, vae, "decode_tiled", latents(30), tile_x=16, tile_y=16, overlap=4)
    assert (counters.compiles, counters.eager_calls) == (compiles, eager), counters.reasons
    assert told(f"{NODE}:decoder").startswith("block graphs: "), told(f"{NODE}:decoder")
    for length in LENGTHS:
        check(fast, vae, "encode", audio(length))
    assert told(f"{NODE}:encoder").startswith("block graphs: "), told(f"{NODE}:encoder")
    with new_process(graphs_home) as fresh:
        other = vaes.load(name, seed=6)
        check(compiled_vae(other, backend="inductor"), other, "decode", latents(12))
        assert (fresh.counters.compiles, fresh.counters.eager_calls) == (0, 0), fresh.counters.reasons
        assert fresh.counters.compiled_calls and fresh.counters.restores


def test_an_audio_vae_whose_blocks_do_not_repeat_passes_through() -> None:
    from comfy.ldm.audio.autoencoder import AudioOobleckVAE

    from onegraph.host.calls.vae import hook

    vae = vaes.load("stable audio 3")
    vae.first_stage_model = AudioOobleckVAE(channels=4)
    passed, text = hook.compile_vae(vae, hook.VaeNodeOptions(backend="inductor"), NODE)
    assert passed is vae and text == "uncompiled: AudioOobleckVAE is a video or audio VAE"
