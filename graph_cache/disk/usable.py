"""Whether any process of this installation can use a graph: its target, its format, its checkpoint."""

from __future__ import annotations

import functools
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from ...common.installed import torch_version
from ...common.reasons import CheckpointGone, MadeForAnother, Reason
from ..key import FORMAT
from ..layout import GRAPHS_SUFFIX, listed_now
from .facts import Facts


@dataclass(frozen=True)
class Here:
    """What graphs that can be used here are made for. An empty text: nobody can tell, so nothing is excluded."""

    torch: str
    platform: str
    machine: str

    @classmethod
    def now(cls) -> Here:
        return cls(torch_version(), platform.system().lower(), platform.machine())


class Usable:
    """Judges the graphs of one list. It looks into each folder of checkpoints once."""

    def __init__(self, here: Here | None = None) -> None:
        here = here or Here.now()
        self._here = {"torch": here.torch, "platform": here.platform, "machine": here.machine}
        self._stems = functools.cache(_stems)

    def why_not(self, facts: Facts, beside: str) -> Reason | None:
        """Say why a graph can be of no use here, or None.

        Args:
            beside: the `.graphs` folder that it is a copy in; empty in the home, whose graphs serve any checkpoint.
        """
        if facts.digest and facts.format != FORMAT:
            return MadeForAnother("format", str(facts.format), str(FORMAT))
        for what, here in self._here.items():
            made_for = facts.target.get(what, here)
            if here and made_for != here:
                return MadeForAnother(what, made_for, here)
        if beside:
            root, name = os.path.split(beside)
            stem = name.removesuffix(GRAPHS_SUFFIX)
            if stem not in self._stems(root):
                return CheckpointGone(stem)
        return None


def _stems(folder: str) -> frozenset[str]:
    """What the files of a folder are called without their suffixes."""
    names = listed_now(Path(folder))
    return frozenset(os.path.splitext(name)[0] for name in names if not name.endswith(GRAPHS_SUFFIX))  # noqa: PTH122
