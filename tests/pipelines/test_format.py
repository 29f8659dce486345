"""One more format of quantised weights is one file: blocks with a toy one run compiled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.models.block_pipes import BLOCKS, CASE
from support.models.diffusers_blocks import FIRST, OTHERS, Sizes
from support.models.toy_format import Int8, Int8Weight, dequantise, quantise
from support.scenes.judge import distance

from onegraph.graph_cache.store import Store
from onegraph.pipelines import compile_client, compile_module, library_weights, weight_formats
from onegraph.runtime.obtain.registry import Registry, using
from onegraph.runtime.policy import ANY_SPEED

EXACT = 1e-5  # relative L2 in float32


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """The format is known while a test lasts."""
    known = [one for one in weight_formats.FORMATS if type(one) is not Int8]
    weight_formats.FORMATS[:] = known
    weight_formats.register(Int8())
    yield
    weight_formats.FORMATS[:] = known


def model(seed: int = 0) -> Any:
    """A small transformer whose blocks have such weights."""
    made = CASE.model(seed)
    quantise(made.transformer_blocks)
    return made


def called(module: Any, sizes: Sizes) -> torch.Tensor:
    found: torch.Tensor = module(**CASE.arguments(sizes))[0]
    return found


def check(module: Any, seed: int = 0) -> None:
    """Calls of several sizes compute what the same values in plain float weights do."""
    plain = dequantise(model(seed))
    for sizes in (FIRST, *OTHERS):
        assert distance(called(module, sizes), called(plain, sizes)) < EXACT, sizes


def test_a_toy_format_runs_compiled(fresh: Registry) -> None:
    first: Any = compile_module(model())
    assert type(first.transformer_blocks[0].attn.to_q.weight) is Int8Weight
    check(first)
    check(compile_module(model(1)), 1)
    # The first call of a model shows how its blocks are called, and runs eager.
    assert (fresh.counters.compiles, fresh.counters.eager_calls) == (1, BLOCKS), str(first.onegraph.report())
    with using(Registry(Store(fresh.store.home), policy=ANY_SPEED)) as process:
        assert process is not None
        again: Any = compile_module(model())
        check(again)
        counters = process.counters
        assert (counters.compiles, counters.restores, counters.eager_calls) == (0, 1, 0), str(again.onegraph.report())
        report = again.onegraph.report()[CASE.name]
        assert report.blocks["calls"] == BLOCKS * (1 + len(OTHERS)), report.text


def test_quantising_changes_what_is_computed() -> None:
    assert distance(called(model(), FIRST), called(CASE.model(), FIRST)) > 10 * EXACT


def test_compiling_processes_import_the_format() -> None:
    assert "support.models.toy_format" in compile_client.client().state["modules"]
    weight_formats.FORMATS.pop()
    assert "support.models.toy_format" not in compile_client.client().state["modules"]


def test_without_the_format_no_graph_reads_such_weights() -> None:
    layer = model().transformer_blocks[0].attn.to_q
    assert library_weights.refusal(layer, "to_q") is None
    weight_formats.FORMATS.pop()
    reason = library_weights.refusal(layer, "to_q")
    assert reason is not None and reason.code == "library_weight"
