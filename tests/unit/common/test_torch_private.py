"""Private names of torch, and what stands in their place while a block is captured."""

from __future__ import annotations

import pytest
import torch

from onegraph.common.torch_private import contiguous_where_asked


@pytest.mark.parametrize("dims", [3, 4, 5])
def test_a_norm_of_roots_is_the_same_where_nothing_asks_for_its_strides(dims: int) -> None:
    x, weight = torch.randn(2, *[3] * (dims - 2), 8), torch.randn(8)
    wanted = torch.nn.functional.rms_norm(x, (8,), weight)
    with contiguous_where_asked():
        assert torch.equal(torch.nn.functional.rms_norm(x, (8,), weight), wanted)
