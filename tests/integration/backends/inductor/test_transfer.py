"""Regions of a graph on their way to another process: shapes keep their symbols, tensors their layout."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import toy
from torch.fx import GraphModule
from torch.nn.attention import SDPBackend, _cur_sdpa_kernel_backends

from onegraph.backends.inductor import InductorBackend, partition, sharing, transfer
from onegraph.backends.inductor.repetition import CompileTime
from onegraph.backends.worker_pool import WorkerPool
from onegraph.compiler import export


def exported(module: torch.nn.Module) -> torch.export.ExportedProgram:
    with InductorBackend().capture_settings():
        return export.capture(toy.Call(module), toy.shapes(), {"batch": 2, "height": 8}, toy.CPU)


def layouts(module: GraphModule) -> list[tuple[Any, ...]]:
    values = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
    return [(v.dtype, v.device, str(v.shape), str(v.stride()), str(v.storage_offset())) for v in values]


@pytest.fixture(scope="module")
def regions() -> list[GraphModule]:
    found = partition.cut(exported(toy.Deep(wide=3, narrow=3)), CompileTime(2, 4))
    assert found is not None and len(found[1]) > 1
    return found[1]


def test_a_region_is_the_same_elsewhere(regions: list[GraphModule]) -> None:
    for region in regions:
        there = transfer.load(transfer.dump(region), toy.CPU)
        assert there.code == region.code
        assert layouts(there) == layouts(region)
        for (name, weight), (other, given) in zip(there.named_parameters(), region.named_parameters(), strict=True):
            assert (name, weight.shape, weight.stride(), weight.dtype) == (
                other,
                given.shape,
                given.stride(),
                given.dtype,
            )
            assert not weight.any()


def test_sizes_keep_their_range_and_hint_elsewhere(regions: list[GraphModule]) -> None:
    there = transfer.load(transfer.dump(regions[0]), toy.CPU)
    compared = 0
    for here, other in zip(
        regions[0].graph.find_nodes(op="placeholder"), there.graph.find_nodes(op="placeholder"), strict=True
    ):
        for size, same in zip(here.meta["val"].shape, other.meta["val"].shape, strict=True):
            if isinstance(size, torch.SymInt):
                (symbol,) = size.node.expr.free_symbols
                assert size.node.hint == same.node.hint
                assert size.node.shape_env.var_to_range[symbol] == same.node.shape_env.var_to_range[symbol]
                compared += 1
    assert compared


def test_writing_a_region_leaves_it_as_it_was(regions: list[GraphModule]) -> None:
    region = regions[1]
    before = (
        region.code,
        layouts(region),
        [dict(node.meta) for node in region.graph.nodes],
        dict(region.named_parameters()),
    )
    transfer.dump(region)
    region.graph.lint()
    after = (
        region.code,
        layouts(region),
        [dict(node.meta) for node in region.graph.nodes],
        dict(region.named_parameters()),
    )
    assert str(before[:3]) == str(after[:3])
    assert all(before[3][name] is weight for name, weight in after[3].items())


def test_weights_stay_behind() -> None:
    found = partition.cut(exported(toy.Deep(wide=3, narrow=3)), CompileTime(2, 4))
    assert found is not None
    largest = max(found[1], key=lambda region: sum(w.nbytes for w in region.parameters()))
    for weight in largest.parameters():
        torch.nn.init.constant_(weight, 0.123456)
    assert torch.tensor(0.123456).numpy().tobytes() * 4 not in transfer.dump(largest)


def test_views_of_views_with_an_offset() -> None:
    """What one region hands to the next may be any view; torch 2.11 cannot write a view of a view as it is."""
    found = partition.cut(exported(toy.Deep(wide=3, narrow=3)), CompileTime(2, 4))
    assert found is not None
    region = found[1][1]
    last = region.graph.find_nodes(op="placeholder")[-1]
    value = last.meta["val"]
    with torch.enable_grad(), value.fake_mode:
        last.meta["val"] = value.unsqueeze(0).transpose(1, 2)[..., 1:]
    assert last.meta["val"]._is_view()
    assert layouts(region)[-1][-1] != "0"
    there = transfer.load(transfer.dump(region), toy.CPU)
    assert layouts(there) == layouts(region)


@pytest.mark.parametrize("cudnn_first", [False, True])
def test_workers_call_the_attention_that_was_chosen(
    regions: list[GraphModule], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cudnn_first: bool
) -> None:
    first: list[SDPBackend] = []

    def compiled(*args: Any) -> None:
        first.append(_cur_sdpa_kernel_backends(with_priority=True)[0])

    monkeypatch.setattr(sharing, "compile_region", compiled)
    sharing.hand_out(regions, range(len(regions)), tmp_path, cudnn_first=cudnn_first)
    sharing.compile_handed_out(tmp_path, toy.CPU, {}, WorkerPool(tmp_path, is_main=False))
    assert len(first) == len(regions)
    assert {one is SDPBackend.CUDNN_ATTENTION for one in first} == {cudnn_first}


def test_what_cannot_be_handed_out_is_logged(
    regions: list[GraphModule], tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(module: GraphModule) -> bytes:
        raise pickle.PicklingError("a lambda")

    monkeypatch.setattr(transfer, "dump", fail)
    sharing.hand_out(regions, range(len(regions)), tmp_path)
    assert not (tmp_path / sharing.ORDER_FILE).exists()
    assert "one process compiles all regions" in caplog.text
