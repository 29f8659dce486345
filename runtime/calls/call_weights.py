"""Where the calls of a model have their weights: all in place, or brought for one block after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Collection

import torch

from ...common import reasons
from ...common.reasons import Reason
from ...common.refused import Refused
from .run import Run
from .weight_source import Brought, Most, WeightSource


class CallWeights:
    """The weights of a model in its calls, one call after the other.

    Attributes:
        refusal: why this call has no weights, or None.
        by_block: whether this call has its weights block by block.
    """

    def __init__(self) -> None:
        self.refusal: Reason | None = None
        self.by_block = False
        self._all: torch.nn.Module | None = None  # what has all weights, where that is not the model
        self._most: Most | None = None  # all but those of the blocks' modulation, where they are in place
        self._most_crowded = False  # a call ran out of memory with these in place
        self._source: WeightSource | None = None  # of weights that have no room together
        self._crowded = False  # a call ran out of memory with all weights in place

    def begin(self, run: Run, model: torch.nn.Module, lasting: contextlib.ExitStack) -> None:
        """Have the weights of a call in place, as long as `lasting` does, where they have room together."""
        self.refusal, self.by_block = None, self._crowded
        if self._crowded:
            return
        held = lasting.enter_context(run.weights(model))
        if isinstance(held, Refused):
            self._source = self._source or run.weight_source(model, held.reason)
            self.by_block = self._source is not None
            if self._source is None:
                self.refusal = held.reason
            elif not self._most_crowded:
                self._most = lasting.enter_context(self._source.most())
        elif held is not model:
            self._all = held

    def end(self) -> None:
        """Keep no weights after the call."""
        self._all = self._most = None

    def placed(self, name: str, block: torch.nn.Module, without: Collection[str]) -> Brought | None:
        """Return a block whose weights are in place in this call; None: they are `brought`.

        Args:
            without: paths of modules of the block whose weights nobody reads.
        """
        most = self._most
        if most is not None and (without or name not in most.lacking):
            return Brought(most.module.get_submodule(name), 0)
        if self.by_block:
            return None
        return Brought(block if self._all is None else self._all.get_submodule(name), 0)

    def brought(self, name: str, without: Collection[str]) -> contextlib.AbstractContextManager[Brought | Refused]:
        """Bring the weights of a block in a call that has them block by block; see `WeightSource.weights`."""
        assert self._source is not None  # such a call has one
        return self._source.weights(name, without)

    @property
    def source(self) -> WeightSource | None:
        """What brings the weights of blocks in this call; None: they are in place."""
        return self._source if self.by_block else None

    def ran_out(self, run: Run, model: torch.nn.Module | None) -> bool:
        """Note that memory ran out in a call; whether later calls have their weights block by block instead."""
        if self._most is not None:
            self.refusal, self._most, self._most_crowded = reasons.MemoryRanOut(), None, True
            return True
        if self._all is not None and model is not None:  # without all of its weights, there may be room
            self._source = self._source or run.weight_source(model, reasons.NoRoomForWeights())
            self._crowded = self._source is not None
        return self._crowded and not self.by_block
