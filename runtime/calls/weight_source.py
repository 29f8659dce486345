"""Where blocks get their weights from, when those do not all stay on the device."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch

from ...common.refused import Refused


class Brought(NamedTuple):
    """A block whose weights are on the device just now.

    Attributes:
        module: the block, or a copy of it that has them.
        streamed: bytes that were brought for this call alone; 0: all of them stay for the next one.
        eager: what a graph is compared with; None: `module`.
    """

    module: torch.nn.Module
    streamed: int
    eager: torch.nn.Module | None = None


@dataclass(frozen=True)
class Most:
    """A copy of a model that has most weights in place.

    Attributes:
        lacking: names of the blocks that do without some.
    """

    module: torch.nn.Module
    lacking: frozenset[str]


class WeightSource(Protocol):
    """Brings the weights of one block after the other.

    Copies are enqueued on streams of their own, so the caller, who runs ahead of the device, has the next block's
    weights brought while this one computes.
    """

    def weights(self, name: str, without: Collection[str] = ()) -> AbstractContextManager[Brought | Refused]:
        """The block of a name with its weights on the device, while this lasts; or why they cannot be brought.

        Args:
            without: paths of modules of the block whose weights nobody reads.

        When it ends, their memory is for the next block, once the device has done what was enqueued so far. It ends
        so whatever happens in between. Raises what the host raises, but for a lack of memory, which it refuses.
        """

    def most(self) -> AbstractContextManager[Most | None]:
        """All weights but those that the last call did `without`, while this lasts; None: these have no room either."""

    def facts(self, name: str, module: str) -> Any:
        """What tells by `==` whether the weights of a module of a block are what they were; None: to do without them
        spares nothing. Or why no weights are brought."""

    def results(self, name: str, module: str, arguments: Sequence[torch.Tensor]) -> list[Any] | Refused:
        """What a module of a block returns for each argument, uncompiled, its weights brought for these alone; or why
        these cannot be brought."""
