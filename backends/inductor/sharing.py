"""How the main worker of a compile hands regions out to workers, which are processes of their own."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ...common.errors import in_brief
from ...common.log import logger
from ..worker_pool import WorkerPool
from . import transfer
from .packages import compile_region, region_file
from .settings import fast_attention
from .specialisation import ANY, Served

log = logger("compiler")

ORDER_FILE = "regions.json"  # of a compile under way: the regions that workers may take, largest first
_POLL_SECONDS = 0.05


def _transfer_file(region_type: int) -> str:
    return f"region{region_type}.graph"


def hand_out(
    modules: Sequence[torch.fx.GraphModule],
    order: Sequence[int],
    folder: Path,
    served: Served = ANY,
    cudnn_first: bool = False,
) -> None:
    """Let workers have the regions. Where that cannot be, this process compiles them all.

    Args:
        served: see `specialisation.check`.
        cudnn_first: see `settings.fast_attention`.
    """
    try:
        for region_type in order:
            (folder / _transfer_file(region_type)).write_bytes(transfer.dump(modules[region_type]))
    except Exception as error:  # of pickling, which may raise anything
        log.warning(
            "one process compiles all regions, for they can't be handed out: %s", in_brief(error), exc_info=True
        )
        return
    complete = folder / f"{ORDER_FILE}.partial"
    complete.write_text(
        json.dumps({"order": [*order], "served": asdict(served), "cudnn_first": cudnn_first}), encoding="utf-8"
    )
    complete.replace(folder / ORDER_FILE)


def compile_handed_out(folder: Path, device: torch.device, options: Mapping[str, Any], pool: WorkerPool) -> None:
    """Wait until regions are handed out, and compile those that nobody took."""
    while not (folder / ORDER_FILE).exists():  # the main worker ends this process when it ends
        time.sleep(_POLL_SECONDS)

    handed_out = json.loads((folder / ORDER_FILE).read_text(encoding="utf-8"))

    def compile_type(region_type: int) -> None:
        module = transfer.load((folder / _transfer_file(region_type)).read_bytes(), device)
        compile_region(module, options, folder, region_type, Served(**handed_out["served"]))

    with fast_attention(handed_out["cudnn_first"]):
        pool.run({region_file(number): functools.partial(compile_type, number) for number in handed_out["order"]})
