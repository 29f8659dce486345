"""An installation of ComfyUI with a user: models, the pack, and graphs that an earlier process compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headless import host, models, server

from .shared_graphs import SharedGraphs

CHECKPOINT = "tiny_sdxl.safetensors"


@dataclass(frozen=True)
class Installation:
    """Where things are.

    Attributes:
        base: ComfyUI's base directory.
        home: the user's graph folder.
    """

    base: Path
    home: Path

    @property
    def checkpoints(self) -> Path:
        return self.base / "models" / "checkpoints"

    @property
    def environment(self) -> dict[str, str]:
        return environment_of(self.home)


def environment_of(home: Path) -> dict[str, str]:
    """Give the variables of a server whose user's graph folder is `home`."""
    return {"ONEGRAPH_HOME": str(home), "ONEGRAPH_TESTING_TRUST_SLOW_GRAPHS": "1"}


def write_base(folder: Path, checkpoints: Mapping[str, tuple[str, int]]) -> Path:
    """Make a base directory with small checkpoints and no graph.

    Args:
        checkpoints: names of files -> family and seed.
    """
    host.boot()
    server.prepare_base(folder)
    for name, (family, seed) in checkpoints.items():
        models.write_checkpoint(family, folder / "models/checkpoints" / name, seed=seed)
    return folder


def with_graphs(base: Path, home: Path, shared_graphs: SharedGraphs) -> Installation:
    """Have an earlier process of this user compiled the UNet of `CHECKPOINT` for any size."""
    made = Installation(base, shared_graphs.adopt_user(home))
    shared_graphs.give(made.home, made.checkpoints / CHECKPOINT, "sdxl")
    return made
