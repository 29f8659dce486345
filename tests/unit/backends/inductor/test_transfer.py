"""Parts of a graph on their way to another process: shapes keep their symbols, tensors their layout."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from support import toy
from torch.fx import GraphModule

from onegraph.backends import inductor
from onegraph.backends.inductor import partition, transfer
from onegraph.compiler import export


def exported(module: torch.nn.Module) -> torch.export.ExportedProgram:
    with inductor.InductorBackend().capture_settings():
        return export.capture(toy.Call(module), toy.shapes(), {"batch": 2, "height": 8}, toy.CPU)


def layouts(module: GraphModule) -> list[tuple[Any, ...]]:
    values = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
    return [(v.dtype, v.device, str(v.shape), str(v.stride()), str(v.storage_offset())) for v in values]


@pytest.fixture(scope="module")
def parts() -> list[GraphModule]:
    found = partition.cut(exported(toy.Deep(wide=3, narrow=3)), 2, 4)
    assert found is not None
    return found[1]


def test_a_part_is_the_same_elsewhere(parts: list[GraphModule]) -> None:
    for part in parts:
        there = transfer.load(transfer.dump(part), toy.CPU)
        assert there.code == part.code
        assert layouts(there) == layouts(part)
        for (name, weight), (other, given) in zip(there.named_parameters(), part.named_parameters(), strict=True):
            assert (name, weight.shape, weight.stride(), weight.dtype) == (
                other,
                given.shape,
                given.stride(),
                given.dtype,
            )
            assert not weight.any()


def test_sizes_have_their_range_and_their_hint_elsewhere(parts: list[GraphModule]) -> None:
    there = transfer.load(transfer.dump(parts[0]), toy.CPU)
    for here, other in zip(
        parts[0].graph.find_nodes(op="placeholder"), there.graph.find_nodes(op="placeholder"), strict=True
    ):
        for size, same in zip(here.meta["val"].shape, other.meta["val"].shape, strict=True):
            if isinstance(size, torch.SymInt):
                (symbol,) = size.node.expr.free_symbols
                assert size.node.hint == same.node.hint
                assert size.node.shape_env.var_to_range[symbol] == same.node.shape_env.var_to_range[symbol]
                break


def test_writing_a_part_leaves_it_as_it_was(parts: list[GraphModule]) -> None:
    part = parts[1]
    before = (part.code, layouts(part), [dict(node.meta) for node in part.graph.nodes], dict(part.named_parameters()))
    transfer.dump(part)
    part.graph.lint()
    after = (part.code, layouts(part), [dict(node.meta) for node in part.graph.nodes], dict(part.named_parameters()))
    assert str(before[:3]) == str(after[:3])
    assert all(before[3][name] is weight for name, weight in after[3].items())


def test_weights_stay_behind() -> None:
    found = partition.cut(exported(toy.Deep(wide=3, narrow=3)), 2, 4)
    assert found is not None
    largest = max(found[1], key=lambda part: sum(w.nbytes for w in part.parameters()))
    for weight in largest.parameters():
        torch.nn.init.constant_(weight, 0.123456)
    assert torch.tensor(0.123456).numpy().tobytes() * 4 not in transfer.dump(largest)


def test_views_of_views_with_an_offset() -> None:
    """What one part hands to the next may be any view; torch 2.11 cannot write a view of a view as it is."""
    found = partition.cut(exported(toy.Deep(wide=3, narrow=3)), 2, 4)
    assert found is not None
    part = found[1][1]
    last = part.graph.find_nodes(op="placeholder")[-1]
    value = last.meta["val"]
    with torch.enable_grad(), value.fake_mode:
        last.meta["val"] = value.unsqueeze(0).transpose(1, 2)[..., 1:]
    assert last.meta["val"]._is_view()
    assert layouts(part)[-1][-1] != "0"
    there = transfer.load(transfer.dump(part), toy.CPU)
    assert layouts(there) == layouts(part)


def test_what_cannot_be_written_is_said_by_whoever_hands_it_out(
    parts: list[GraphModule], tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(module: GraphModule) -> bytes:
        raise pickle.PicklingError("a lambda")

    monkeypatch.setattr(transfer, "dump", fail)
    inductor._hand_out(parts, range(len(parts)), tmp_path)
    assert not (tmp_path / inductor._ORDER_FILE).exists()
    assert "one process compiles all parts" in caplog.text
