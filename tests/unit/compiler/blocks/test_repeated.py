"""Which modules of a model are its repeated blocks."""

from __future__ import annotations

import torch

from onegraph.compiler.blocks.repeated import repeated_blocks, structures
from onegraph.compiler.code.fingerprint import Rules


class Attention(torch.nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(width, 3 * width)


class Block(torch.nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.attention = Attention(width)
        self.inner = torch.nn.ModuleList([Attention(width), Attention(width)])


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Block(), Block(), Block(8)])
        self.projections = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)])
        self.norms = torch.nn.ModuleList([torch.nn.Sequential(torch.nn.LayerNorm(4, elementwise_affine=False))] * 2)
        self.one = torch.nn.ModuleList([Block()])
        self.stages = torch.nn.ModuleList([torch.nn.ModuleDict({"blocks": torch.nn.ModuleList([Block(), Block()])})])


def test_the_outermost_of_a_list_are_blocks() -> None:
    """Not single layers, not what has no weights, not one alone; its parts are looked into."""
    found = repeated_blocks(Model())
    assert list(found) == [
        *("layers.0", "layers.1", "layers.2", "one.0.inner.0", "one.0.inner.1"),
        *("stages.0.blocks.0", "stages.0.blocks.1"),
    ]
    assert type(found["layers.0"]) is Block and type(found["one.0.inner.0"]) is Attention


def test_blocks_of_one_structure_share_graphs() -> None:
    found = repeated_blocks(Model())
    groups = sorted(structures(found, Rules()).values())
    assert groups == [
        ["layers.0", "layers.1", "stages.0.blocks.0", "stages.0.blocks.1"],
        ["layers.2"],
        ["one.0.inner.0", "one.0.inner.1"],
    ]


def test_a_model_without_lists_has_none() -> None:
    assert repeated_blocks(Block(4).attention) == {}
