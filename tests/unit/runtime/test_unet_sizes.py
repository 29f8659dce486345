"""Which graph a call of a UNet is for, and that this graph's range holds the call."""

from __future__ import annotations

import pytest
import torch

from onegraph.common.shapes import Dim
from onegraph.runtime import unet_sizes

LEVELS = 3  # SDXL's
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def sizes(width: int, height: int) -> dict[str, int]:
    """Of a call for an image of these pixels."""
    return {"batch": 2, "height": height // 8, "width": width // 8, "context": 77}


def sides(device: torch.device, width: int, height: int) -> list[Dim]:
    dims, _ = unet_sizes.any_size(LEVELS, device, sizes(width, height))
    return [dim for dim in dims if dim.name in ("height", "width")]


@pytest.mark.parametrize("width", [64, 512, 1024, 1152, 2048])
def test_usual_sizes_share_one_graph_on_a_gpu(width: int) -> None:
    assert sides(CUDA, width, 1024) == [Dim("height", 8, 256, 4), Dim("width", 8, 256, 4)]


@pytest.mark.parametrize(
    ("width", "height"), [(1920, 1080), (1000, 1000), (1024, 1032), (40, 1024), (2560, 1440), (4096, 4096)]
)
def test_other_sizes_share_a_second_graph(width: int, height: int) -> None:
    found = sides(CUDA, width, height)
    assert found == [Dim("height", 5, 512), Dim("width", 5, 512)]
    wanted = sizes(width, height)
    assert [dim.refusal(wanted[dim.name]) for dim in found] == [None, None]


@pytest.mark.parametrize("height", [1080, 1088])
def test_one_graph_serves_all_sizes_on_a_cpu(height: int) -> None:
    assert sides(CPU, 1920, height) == [Dim("height", 8, 256), Dim("width", 8, 256)]


def test_labels_tell_the_two_graphs_apart() -> None:
    labels = [unet_sizes.any_size(LEVELS, CUDA, sizes(1920, height))[1] for height in (1080, 1088)]
    assert labels == ["every multiple of 8 pixels 40-4096", "any size 64-2048"]
