"""ComfyUI's search finds the nodes by what people call them who do not know their names."""

from __future__ import annotations

import pytest
from comfy_api.latest import io

from onegraph import nodes as pack


@pytest.mark.parametrize("node", pack.NODES, ids=lambda node: node.__name__)
def test_what_people_type_finds_the_node(node: type[io.ComfyNode]) -> None:
    aliases = node.GET_NODE_INFO_V1()["search_aliases"]
    assert {"faster", "tensorrt", "optimize", "torch compile"} <= {*aliases}
    assert len(aliases) == len({*aliases})
