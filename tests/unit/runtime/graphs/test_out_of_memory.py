"""Which errors of a graph may be those of memory."""

from __future__ import annotations

import pytest
import torch

from onegraph.runtime.graphs.out_of_memory import suspicious


@pytest.mark.parametrize(
    ("text", "device", "memory"),
    [
        ("Error: API call failed at model.cpp, line 3", "cuda", True),
        ("Error: API call failed at model.cpp, line 3", "cpu", False),
        ("the sizes do not match", "cuda", False),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", "cuda", True),
    ],
)
def test_a_graphs_error_may_be_one_of_memory_on_a_gpu(text: str, device: str, memory: bool) -> None:
    error = torch.OutOfMemoryError(text) if "out of memory" in text else RuntimeError(text)
    assert suspicious(error, torch.device(device)) == memory
