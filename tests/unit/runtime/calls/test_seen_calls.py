"""What calls look like and where their tensors are: which ones compiled code may read as they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from onegraph.runtime.calls.seen_calls import Seen, plain


def _aligned() -> torch.Tensor:
    return torch.randn(4, 8)


OTHERS: dict[str, Callable[[], torch.Tensor]] = {
    "turned": lambda: torch.randn(8, 4).t(),
    "conjugated later": lambda: torch.randn(4, 8, dtype=torch.complex64).conj(),
    "negated later": lambda: torch.randn(4, 8, dtype=torch.complex64).conj().imag.contiguous().clone()._neg_view(),
    "between addresses": lambda: torch.randn(33)[1:].view(4, 8),
}


@pytest.mark.parametrize("changed", [[], [0]], ids=["reads", "writes"])
def test_tensors_as_compiled_code_expects_them(changed: list[int]) -> None:
    tensors = [_aligned(), _aligned()]
    memory = Seen.of(tensors, [], {}).memory_of(tensors, changed)
    assert (memory.as_expected, memory.shared) == (True, False)


@pytest.mark.parametrize("changed", [[], [0]], ids=["reads", "writes"])
@pytest.mark.parametrize("name", OTHERS)
def test_others_are_copied(name: str, changed: list[int]) -> None:
    other = OTHERS[name]()
    tensors = [_aligned(), other]
    seen = Seen.of(tensors, [], {})
    assert not seen.memory_of(tensors, changed).as_expected
    copied = plain(other)
    assert torch.equal(copied, other) and Seen.of([copied], [], {}).memory_of([copied], []).as_expected
    assert not (copied.is_neg() or copied.is_conj())


def test_what_is_written_lies_nowhere_else() -> None:
    whole = torch.randn(16, 8)
    first, second, third = whole[:8], whole[8:], whole[4:12]
    seen = Seen.of([first, second], [], {})
    assert not seen.memory_of([first, second], [0]).shared
    assert Seen.of([first, third], [], {}).memory_of([first, third], [0]).shared
    assert Seen.of([first, third], [], {}).memory_of([first, third], [1]).shared
    assert not Seen.of([first, third], [], {}).memory_of([first, third], []).shared  # both are only read
    assert seen.memory_of([first, first], [1]).shared  # the same look at other addresses
