"""Blocks that compute long sequences in chunks are captured for sequences of any length, and compute the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.models.dits import seeded

from onegraph.backends.inductor import settings
from onegraph.compiler.blocks import capture
from onegraph.compiler.blocks.capture import BlockCalls, CapturedBlock
from onegraph.host.capture import rewrites
from onegraph.signature.call_tree import flatten
from onegraph.signature.parameters import parameters_of
from onegraph.signature.size_rules import sizes_of

CPU = torch.device("cpu")


def captured(block: Any, *calls: tuple[Any, ...]) -> CapturedBlock:
    named = [parameters_of(type(block)).bind(call, {"transformer_options": {}}) for call in calls]
    (form, _), records = flatten(named[0], ("comfy",)), [sizes_of(flatten(one, ("comfy",))[1]) for one in named]
    with settings.capture_settings():
        return capture.capture_block(block, BlockCalls(form, tuple(records)), CPU, rewrites.settings())


def assert_exact(graph: CapturedBlock, block: Any, *call: Any) -> None:
    """The graph serves the call, and gives what the block does."""
    leaves = flatten(parameters_of(type(block)).bind(call, {"transformer_options": {}}), ("comfy",))[1]
    assert graph.signature.sizes.fits(sizes_of(leaves))
    with torch.no_grad():
        result = graph.program.module(check_guards=False)(*graph.signature.inputs(leaves, CPU))
        assert torch.allclose(result[0], block(*call), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["TransformerEncoderBlock", "TransformerDecoderBlock"])
def test_kandinskys_blocks(name: str) -> None:
    import comfy.ops
    from comfy.ldm.kandinsky5 import model as kandinsky

    operations = {"operations": comfy.ops.disable_weight_init, "device": CPU, "dtype": torch.float32}
    block = seeded(getattr(kandinsky, name)(16, 8, 16, 16, operation_settings=operations))
    text = [] if name == "TransformerEncoderBlock" else [5]

    def call(batch: int, tokens: int, words: int) -> tuple[Any, ...]:
        sequences = [torch.randn(batch, length, 16) for length in (tokens, *[words] * len(text))]
        return (*sequences, torch.randn(batch, 8), torch.randn(1, tokens, 1, 8, 2, 2))

    graph = captured(block, call(1, 24, 5), call(3, 40, 7), call(2, 15, 9))
    assert_exact(graph, block, *call(2, 33, 11))
    assert_exact(graph, block, *call(1, 8204, 3))  # eager computes it in chunks


def test_the_blocks_of_pixels() -> None:
    import comfy.ops
    from comfy.ldm.pixeldit.modules import PiTBlock

    block = seeded(
        PiTBlock(
            4, 16, 2, 2, attn_hidden_size=16, attn_num_heads=2, dtype=torch.float32, device=CPU,
            operations=comfy.ops.disable_weight_init, mlp_chunks=2,
        )
    )  # fmt: skip

    def call(batch: int, height: int, width: int) -> tuple[Any, ...]:
        tokens = batch * height * width // 4
        return torch.randn(tokens, 4, 4), torch.randn(tokens, 16), height, width, 2

    graph = captured(block, call(1, 4, 8), call(3, 12, 6), call(2, 6, 10))
    for batch, height, width in ((1, 6, 6), (1, 10, 4), (5, 2, 6)):
        assert_exact(graph, block, *call(batch, height, width))
