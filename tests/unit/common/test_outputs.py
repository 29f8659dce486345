from __future__ import annotations

import math

import pytest
import torch

from onegraph.common.outputs import is_finite, mapped, output_of, tensors_of

ONE, TWO = torch.ones(2), torch.full((2,), 2.0)


def test_one_tensor_stands_for_itself() -> None:
    assert output_of([ONE]) is ONE
    assert tensors_of(ONE) == (ONE,)
    assert output_of([ONE, TWO]) == (ONE, TWO)
    assert tensors_of((ONE, TWO)) == (ONE, TWO)


def test_outputs_are_mapped_tensor_by_tensor() -> None:
    assert torch.equal(mapped(torch.add, ONE, TWO), ONE + TWO)  # type: ignore[arg-type]
    sums = mapped(torch.add, (ONE, TWO), (TWO, TWO))
    assert [tensor.tolist() for tensor in sums] == [[3, 3], [4, 4]]
    with pytest.raises(ValueError):
        mapped(torch.add, (ONE, TWO), (ONE, TWO, TWO))


def test_one_value_that_is_not_finite() -> None:
    assert is_finite((ONE, TWO))
    assert not is_finite((ONE, TWO * math.inf))
