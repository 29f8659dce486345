"""A family of the gallery: a small model, its template's nodes, and the sizes at which it is sampled."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..models.dits import Dit
from ..scenes.judge import FURTHEST, Promise
from ..scenes.sampling import ROOT, Addition, Sampling, Texts

Sizes = tuple[int, ...]  # of a latent, without its batch
# What a text's conditioning has besides: from the sizes of the latent with its batch, and the length of the text.
Conds = Callable[[torch.Generator, Sequence[int], int], dict[str, Any]]


def no_conds(generator: torch.Generator, sizes: Sequence[int], length: int) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Family:
    """What a template samples.

    Attributes:
        dit: the model; its own `latent` and `audio` do not matter.
        sizes: two of the latent [channels, ...].
        audio: of a second latent, for each size.
        nodes: of the template, in their order, behind the node that loads the model.
        tokens: of the positive and the negative text, for each size.
        features: makes a text of the model, from its number, where none is drawn.
        cfg: whether the template's nodes take a CFG other than 1.
        graphs: families of one name share graphs; empty: the family's own name.
        promised: which calls run compiled, once the first sampling is over.
        codes: of the reasons for the others.
        furthest: relative L2 of compiled latents from uncompiled ones. More than the usual where uncompiled latents are
            that far apart by two libraries for matrix products.
        needs: a class below `comfy_extras` that only hosts with this family have; empty: the model's own tells it.
    """

    dit: Dit
    sizes: tuple[Sizes, Sizes]
    nodes: tuple[Addition, ...] = ()
    conds: Conds = no_conds
    audio: tuple[Sizes, Sizes] = ((), ())
    tokens: tuple[tuple[int, int], tuple[int, int]] = ((9, 13), (12, 5))
    features: Callable[[Any, int], torch.Tensor] | None = None
    cfg: bool = True
    graphs: str = ""
    promised: Promise = "all"
    codes: tuple[str, ...] = ()
    furthest: float = FURTHEST
    needs: str = ""

    def missing(self) -> bool:
        """Whether the host is too old for it."""
        from comfy import supported_models

        if not hasattr(supported_models, self.dit.config):
            return True
        module, _, name = self.needs.rpartition(".")
        return bool(name) and not hasattr(importlib.import_module(ROOT + module), name)


@dataclass
class FamilySampling(Sampling):
    """A sampling of a family.

    Attributes:
        family: whose model and sizes these are.
        number: of the size.
    """

    family: Family | None = None
    number: int = 0

    @property
    def dit(self) -> Dit:
        assert self.family is not None
        return self.family.dit

    @property
    def audio(self) -> Sizes:
        assert self.family is not None
        return self.family.audio[self.number]

    @property
    def sizes(self) -> Sizes:
        """Of the latent [batch, channels, ...]."""
        assert self.family is not None
        return (self.batch, *self.family.sizes[self.number])

    def latent(self) -> torch.Tensor:
        if not self.latent_filled:
            return torch.zeros(self.sizes)
        return torch.randn(self.sizes, generator=torch.Generator().manual_seed(6)) * 0.8

    def text(self, number: int, length: int) -> Texts:
        assert self.family is not None
        [[features, conds]] = super().text(number, length)
        if self.family.features is not None:
            features = self.family.features(self.model, number)
        generator = torch.Generator().manual_seed(50)  # the same for both texts, as pictures are
        return [[features, {**conds, **self.family.conds(generator, self.sizes, length)}]]
