"""Which graph a call of a UNet is for, and that this graph's range holds the call."""

from __future__ import annotations

import pytest
import torch

from onegraph.runtime.calls import latent_ranges
from onegraph.runtime.family import Axis

LEVELS = 3  # SDXL's
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def sides(device: torch.device, width: int, height: int) -> list[Axis]:
    """Height and width of the graph for an image of these pixels."""
    axes, _ = latent_ranges.any_size(LEVELS, device, height // 8, width // 8)
    return [axis for axis in axes if axis.pixels]


def both(low: int, high: int, step: int) -> list[Axis]:
    return [Axis(name, low, high, step, pixels=8) for name in ("height", "width")]


@pytest.mark.parametrize("width", [64, 512, 1024, 1152, 2048])
def test_usual_sizes_share_one_graph_on_a_gpu(width: int) -> None:
    assert sides(CUDA, width, 1024) == both(8, 256, 4)


@pytest.mark.parametrize(
    ("width", "height"), [(1920, 1080), (1000, 1000), (1024, 1032), (40, 1024), (2560, 1440), (4096, 4096)]
)
def test_other_sizes_share_a_second_graph(width: int, height: int) -> None:
    found = sides(CUDA, width, height)
    assert found == both(5, 512, 1)
    assert all(axis.low <= size // 8 <= axis.high for axis in found for size in (width, height))


@pytest.mark.parametrize("height", [1080, 1088])
def test_one_graph_serves_all_sizes_on_a_cpu(height: int) -> None:
    assert sides(CPU, 1920, height) == both(8, 256, 1)


@pytest.mark.parametrize(("device", "fewest"), [(CPU, 1), (CUDA, 2)])
def test_a_gpus_graph_is_for_two_tokens_and_more(device: torch.device, fewest: int) -> None:
    axes, _ = latent_ranges.any_size(LEVELS, device, 128, 128)
    assert [axis.low for axis in axes if axis.name == "context"] == [fewest]


def test_labels_tell_the_two_graphs_apart() -> None:
    labels = [latent_ranges.any_size(LEVELS, CUDA, height // 8, 1920 // 8)[1] for height in (1080, 1088)]
    assert labels == ["every multiple of 8 pixels 40-4096", "any size 64-2048"]
