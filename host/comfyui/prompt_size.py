"""What size of images a workflow probably makes, before it makes any: for calls that warm a graph up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...common.log import logger

log = logger("host")

_SIDES = range(256, 2049, 64)  # pixels
_MOST_PIXELS = 1536 * 1536  # of all images; a warm-up takes no more memory than that


@dataclass(frozen=True)
class Size:
    """Of images, in pixels, and how many at once. The default is one that every graph for any size admits."""

    width: int = 256
    height: int = 256
    images: int = 1


FIRST = Size()


def prompt_size(dynprompt: Any) -> Size:
    """The size of the first empty latent of the running workflow, `FIRST` where it has none of a usual size.

    A node counts as one if it is given a width, a height and a batch size in plain numbers.
    """
    if dynprompt is None:
        return FIRST
    try:
        for node in sorted(dynprompt.all_node_ids()):
            size = _size_of(dynprompt.get_node(node).get("inputs", {}))
            if size is not None:
                return size
    except Exception:  # of custom nodes and of a workflow that changes
        log.debug("the workflow could not be looked through", exc_info=True)
    return FIRST


def _size_of(inputs: Mapping[str, Any]) -> Size | None:
    width, height, images = (inputs.get(name) for name in ("width", "height", "batch_size"))
    if not (type(width) is type(height) is type(images) is int) or images < 1:
        return None
    usual = width in _SIDES and height in _SIDES and width * height * images <= _MOST_PIXELS
    return Size(width, height, images) if usual else None
