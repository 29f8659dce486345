"""Stable Video Diffusion's UNet: one graph for all sizes and numbers of frames, one video of a batch at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from headless import host
from support.comfyui.shared_graphs import SharedGraphs

from onegraph.common.refused import Refused
from onegraph.host.families import MODELS, family_of
from onegraph.host.families.unet import Unet
from onegraph.host.families.unet_video import VideoUnet
from onegraph.runtime.counters import Counters
from onegraph.runtime.graphs.faithfulness import relative_l2
from onegraph.runtime.obtain.registry import Registry

from .conftest import compiled, node_text

SAME = 1e-4  # relative L2 of latents after two steps, as for an image; eager itself differs by 1e-5 with the batch
CLOSE = 1e-5  # relative L2 of a call


@pytest.fixture
def svd(checkpoint: Callable[..., Path], graphs_home: Path, shared_graphs: SharedGraphs) -> Any:
    path = checkpoint("tiny_svd", vae="none")
    shared_graphs.give(graphs_home, path, "svd")
    return host.load(path)


def sample(model: Any, frames: int, **call: Any) -> torch.Tensor:
    prompts = {name: host.conditioning(1, 1024, seed) for name, seed in (("positive", 11), ("negative", 12))}
    result: torch.Tensor = host.sample(
        model, batch=frames, **{"height": 64, "width": 64, "cfg": 2.5, **prompts, **call}
    )
    return result


def check(model: Any, fast: Any, frames: int, **call: Any) -> None:
    assert relative_l2(sample(fast, frames, **call), sample(model, frames, **call)) < SAME, node_text()


def test_sizes_frames_and_guidance_need_no_new_compile(svd: Any, counters: Counters, fresh_process: Registry) -> None:
    """With guidance the host joins two videos in one batch; their frames stay together."""
    fast = compiled(svd, backend="inductor")
    for frames, call in (
        (2, {"cfg": 1.0}),
        (3, {}),
        (5, {"height": 72, "width": 104}),
        (14, {"cfg": 1.0, "width": 96}),
    ):
        check(svd, fast, frames, **call)
    assert (counters.compiles, counters.restores, counters.eager_calls) == (0, 1, 0), counters.reasons
    assert node_text().startswith("compiled, any size 64-2048, up to 32 frames"), node_text()
    (graph,) = fresh_process.graphs()
    calls = graph.first_use.result.checked  # how far calls of some sizes were from eager's
    assert calls and max(calls.values()) < CLOSE, calls


def test_the_frames_of_a_video_matter_to_each_other(svd: Any, counters: Counters) -> None:
    """What this family is for: a graph that computed frames one by one would give other images."""
    fast = compiled(svd, backend="inductor")
    alone, together = sample(fast, 2, steps=1), sample(fast, 4, steps=1)[:2]
    assert relative_l2(alone, together) > 1e-3
    assert counters.eager_calls == 0


@pytest.mark.parametrize("frames", [1, 33])
def test_other_numbers_of_frames_run_eager_with_the_reason(frames: int, svd: Any, counters: Counters) -> None:
    fast = compiled(svd, backend="inductor")
    call = {"steps": 1, "cfg": 1.0}
    assert torch.equal(sample(fast, frames, **call), sample(svd, frames, **call))
    assert counters.compiled_calls == 0 < counters.eager_calls
    assert [reason.code for reason in counters.reasons] == ["not_admitted"], counters.reasons


def test_a_patch_runs_eager_with_the_reason(svd: Any, counters: Counters) -> None:
    patched = svd.clone()
    patched.set_model_output_block_patch(lambda h, skip, options: (h * 1.1, skip))
    call = {"steps": 1, "cfg": 1.0}
    assert torch.equal(sample(compiled(patched), 2, **call), sample(patched, 2, **call))
    assert [reason.code for reason in counters.reasons] == ["patched"]


def test_what_no_graph_takes(svd: Any) -> None:
    module = svd.model.diffusion_model
    family = family_of(module, MODELS)
    assert isinstance(family, VideoUnet) and not Unet().serves(module)
    usual = dict(family.example(module, svd).kwargs)
    read = family.read(module, (), usual)
    assert not isinstance(read, Refused) and read["x"].shape[:2] == (2, 14)
    stills = torch.zeros(2, 14)
    for change, code in (
        ({"image_only_indicator": stills}, "unknown_argument"),
        ({"time_context": stills}, "unknown_argument"),
        ({"control": {"input": [stills]}}, "unknown_argument"),
        ({"num_video_frames": 5}, "unusual_inputs"),
        ({"num_video_frames": None}, "unusual_inputs"),
        ({"context": None}, "not_plain_inputs"),
    ):
        refused = family.read(module, (), {**usual, **change})
        assert isinstance(refused, Refused) and refused.reason.code == code, change
