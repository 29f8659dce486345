"""A captured block calls attention functions by name, as its own code would, with the options of the call."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from onegraph.common.errors import CaptureError
from onegraph.compiler.blocks import attention
from onegraph.compiler.blocks.attention import Call, OtherResultError, StandIn, Zeros, attending
from onegraph.compiler.blocks.capture import BlockCalls, CapturedBlock, Settings, capture_block
from onegraph.signature.call_rules import CallRules
from onegraph.signature.call_tree import flatten

PACKAGES = (__name__.partition(".")[0],)
OPTIONS = {"block_index": 3, "patches": {}}


class Container:
    """As newer hosts hand tensors over."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def chosen(q: Any, k: Any, v: Any, heads: int, scale: float = 1.0, transformer_options: Any = None) -> Any:
    """[B,N,H*D] -> the same."""
    q, k, v = (one.tensor if isinstance(one, Container) else one for one in (q, k, v))
    if transformer_options is not None and "override" in transformer_options:
        return transformer_options["override"](q, k, v, heads=heads, transformer_options=transformer_options)
    split = (one.unflatten(2, (heads, -1)).transpose(1, 2) for one in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(*split, scale=scale).transpose(1, 2).flatten(2)


class Block(torch.nn.Module):
    """Attends in as many ways as blocks do."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(8, 24)

    def forward(self, x: Any, transformer_options: Any = {}) -> Any:  # noqa: B006
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        own = transformer_options.copy()
        own["number"] = 5
        once = chosen(q, k, v, 2, transformer_options=transformer_options)
        twice = chosen(once, k, v, heads=2, scale=0.5, transformer_options=own)
        packed = chosen(*map(Container, (twice, k, v)), 2)
        return chosen(packed + q, k, v, 4, transformer_options=None) + once + v


@pytest.fixture
def block() -> Iterator[Block]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield Block()


def _shape(q: Any, k: Any, v: Any, heads: int, scale: float = 1.0) -> Any:
    return (q.tensor if isinstance(q, Container) else q).shape


def captured(block: torch.nn.Module, monkeypatch: pytest.MonkeyPatch) -> CapturedBlock:
    own, here = chosen, sys.modules[__name__]
    form, _ = flatten({"x": torch.ones(2, 5, 8), "transformer_options": {}}, PACKAGES)
    calls = BlockCalls(form, (((2, 5, 8),), ((3, 7, 8),)), OPTIONS, PACKAGES, "called")
    with monkeypatch.context() as patch:
        patch.setattr(here, "chosen", StandIn(f"{__name__}:chosen", own, _shape))
        return capture_block(block, calls, torch.device("cpu"), Settings(fewest=1))


def called(graph: CapturedBlock, x: torch.Tensor, options: Any) -> torch.Tensor:
    found: torch.Tensor = graph.program.module()(x)[0]
    return found


def test_functions_are_called_as_by_the_block_itself(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = captured(block, monkeypatch)
    assert graph.signature.attention == "called"
    assert graph.signature.options.absent == graph.signature.options.present == graph.signature.options.values == ()
    again = json.loads(json.dumps(graph.signature.to_json()))
    assert CallRules.from_json(again, PACKAGES) == graph.signature
    seen: list[Any] = []

    def override(q: Any, k: Any, v: Any, heads: int, transformer_options: Any) -> Any:
        seen.append((heads, transformer_options.get("number"), transformer_options["sigmas"]))
        q.mul_(2)  # of which the block makes use later
        v.add_(1)
        return q * 0.5 + v

    for options in ({}, {"sigmas": 7, "override": override}):
        for shape in ((2, 5, 8), (1, 3, 8)):
            x = torch.randn(shape)
            seen.clear()
            wanted, by_eager = block(x, options), [*seen]
            seen.clear()
            with attending(Call(options, PACKAGES)):
                found = called(graph, x, options)
            torch.testing.assert_close(found, wanted)
            assert seen == by_eager and len(seen) == (2 if options else 0)


def test_whatever_a_name_refers_to_now_is_called(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = captured(block, monkeypatch)
    x = torch.randn(2, 5, 8)
    monkeypatch.setattr(sys.modules[__name__], "chosen", lambda q, *args, **kwargs: getattr(q, "tensor", q) * 3)
    with attending(Call({}, PACKAGES)):
        torch.testing.assert_close(called(graph, x, {}), block(x, {}))


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda q: q.double(), "[2, 5, 8] float64 on cpu"),
        (lambda q: q[:1], "[1, 5, 8] float32 on cpu"),
        (lambda q: (q, q), "a tuple"),
        (lambda q: q.to("meta"), "[2, 5, 8] float32 on meta"),
    ],
)
def test_another_result_is_an_error(
    block: Block, monkeypatch: pytest.MonkeyPatch, make: Callable[[Any], Any], what: str
) -> None:
    graph = captured(block, monkeypatch)
    call = Call({"override": lambda q, *args, **kwargs: make(q)}, PACKAGES)
    with attending(call), pytest.raises(OtherResultError) as raised:
        called(graph, torch.randn(2, 5, 8), {})
    assert str(raised.value) == what and call.error is raised.value


def test_what_a_function_raises_is_kept(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = captured(block, monkeypatch)

    class Interrupted(BaseException):
        pass

    def override(*args: Any, **kwargs: Any) -> Any:
        raise Interrupted

    call = Call({"override": override}, PACKAGES)
    with pytest.raises(Interrupted), attending(call):
        called(graph, torch.randn(2, 5, 8), {})
    assert isinstance(call.error, Interrupted)
    with pytest.raises(RuntimeError, match="outside of a block's call"):  # and nothing attends any more
        called(graph, torch.randn(2, 5, 8), {})


def test_a_trial_attends_to_nothing(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    with attending(Zeros()):
        found = called(captured(block, monkeypatch), torch.ones(2, 5, 8), {})
    torch.testing.assert_close(found, block.qkv(torch.ones(2, 5, 8)).chunk(3, dim=-1)[2])


def test_results_lie_in_memory_of_their_own_and_aligned() -> None:
    given = [torch.randn(2, 5, 8)] * 3
    form = json.dumps({"form": _form(*given, 2), "options": None})
    name = f"{__name__}:{_returned.__name__}"
    for value in (given[0], given[0].transpose(0, 1).contiguous().transpose(0, 1), torch.randn(81)[1:].view(2, 5, 8)):
        _returned.value = value  # type: ignore[attr-defined]
        found = Call(None, ()).attend(given, name, form, [2], [2, 5, 8])
        assert torch.equal(found, value) and found.is_contiguous() and not found.data_ptr() % 16
        assert found.data_ptr() != given[0].data_ptr()
    kept = torch.randn(2, 5, 8)
    _returned.value = kept  # type: ignore[attr-defined]
    assert Call(None, ()).attend(given, name, form, [2], [2, 5, 8]) is kept  # graphs write to no result


def _returned(*args: Any) -> Any:
    return _returned.value  # type: ignore[attr-defined]


def _form(*args: Any) -> Any:
    from onegraph.signature.call_tree import to_json

    return to_json(flatten((args, {}))[0])


class OwnOptions(Block):
    def forward(self, x: Any, transformer_options: Any = {}) -> Any:  # noqa: B006
        return chosen(x, x, x, 2, transformer_options={"mine": 1})


class TensorOptions(Block):
    def forward(self, x: Any, transformer_options: Any = {}) -> Any:  # noqa: B006
        own = transformer_options.copy()
        own["mine"] = x.mean()
        return chosen(x, x, x, 2, transformer_options=own)


class Precision(Block):
    def forward(self, x: Any, transformer_options: Any = {}) -> Any:  # noqa: B006
        return chosen(x, x, x, 2, scale=torch.float32)  # type: ignore[arg-type]


@pytest.mark.parametrize("cls", [OwnOptions, TensorOptions, Precision])
def test_calls_that_cannot_be_repeated_are_refused(cls: type[Block], monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.no_grad(), pytest.raises(CaptureError):
        captured(cls(), monkeypatch)


def test_stand_ins_compute_outside_of_captures() -> None:
    x = torch.randn(2, 5, 8)
    assert torch.equal(StandIn("nobody:nothing", chosen, _shape)(x, x, x, 2), chosen(x, x, x, 2))


def test_a_second_copy_of_the_package_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    assert attention.can_be_called()
    assert attention._register() is None  # as for a copy under another name
    monkeypatch.setattr(attention, "_library", None)
    assert not attention.can_be_called()
