"""How a loaded graph is used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ...backends import Runner
from ...common.reasons import Reason
from ...common.tensor_meta import TensorMeta
from ...graph_cache.disk.leases import Lease
from ..policy import Policy


@dataclass(frozen=True)
class GraphOptions:
    """How a loaded graph is used.

    Attributes:
        constants: the weights that the graph reads.
        another: gives a further runner of the graph, for one that serves many modules at once; None: each module that
            it serves takes the runner from the one before.
        make_room: has other graphs release what only makes calls faster.
        remember_wrong: is told why the graph is quarantined.
        compare_anew: whether what other models' first uses showed says nothing: a graph of its key was wrong here.
        lease: keeps the entry on the disk as long as the graph is loaded.
    """

    constants: tuple[TensorMeta, ...]
    policy: Policy = field(default_factory=Policy)
    another: Callable[[], Runner] | None = None
    make_room: Callable[[], object] = lambda: None
    remember_wrong: Callable[[Reason], object] = lambda reason: None
    compare_anew: bool = False
    lease: Lease = field(default_factory=Lease)
