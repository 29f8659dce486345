"""The size that a workflow names first, where it is one that a warm-up may take."""

from __future__ import annotations

from typing import Any

import pytest

from onegraph.host.comfyui.prompt_size import FIRST, Size, prompt_size


class Prompt:
    """What the host gives of a running workflow, as far as it is asked for it."""

    def __init__(self, *inputs: dict[str, Any]) -> None:
        self._nodes = {str(number): {"class_type": "Any", "inputs": one} for number, one in enumerate(inputs)}

    def all_node_ids(self) -> set[str]:
        return {*self._nodes}

    def get_node(self, node: str) -> dict[str, Any]:
        return self._nodes[node]


def latent(width: Any, height: Any, batch_size: Any = 1) -> dict[str, Any]:
    return {"width": width, "height": height, "batch_size": batch_size}


@pytest.mark.parametrize(
    ("nodes", "size"),
    [
        ([{"text": "a cat"}, latent(1024, 768)], Size(1024, 768)),
        ([latent(512, 512, 4)], Size(512, 512, 4)),
        ([latent(1024, 1024), latent(512, 512)], Size(1024, 1024)),
        ([latent(2048, 2048), latent(512, 512)], Size(512, 512)),  # too large to be warmed up
        ([latent(1024, 1024, 3)], FIRST),
        ([latent(1000, 1024)], FIRST),  # no usual size
        ([latent(["7", 0], 1024)], FIRST),  # another node tells
        ([latent(True, 1024)], FIRST),
        ([latent(1024, 1024, 0)], FIRST),
        ([{"width": 1024, "height": 1024}], FIRST),  # of an image, say
        ([], FIRST),
    ],
)
def test_the_size_of_a_workflow(nodes: list[dict[str, Any]], size: Size) -> None:
    assert prompt_size(Prompt(*nodes)) == size


def test_a_workflow_that_cannot_be_looked_through() -> None:
    assert prompt_size(None) == FIRST
    assert prompt_size(object()) == FIRST
