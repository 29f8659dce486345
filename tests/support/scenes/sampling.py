"""One sampling of a small diffusion transformer, as nodes set it up; what people add changes it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ..models import dits

Texts = list[Any]
ROOT = "comfy_extras."  # of the host's nodes


@dataclass
class Sampling:
    """What a sampler's node is given.

    Attributes:
        name: of the family.
        model: a MODEL.
        frames: of the latent, where it has some; None: the family's own.
        second: the MODEL that takes the steps from the middle on, where there are two.
        guider: makes the guider, where it is not the usual one.
        mask: of what is sampled anew [B, ..., H, W], or None.
        texts: both, as a guider's node takes them.
        undo: called when the sampling is over.
    """

    name: str
    model: Any
    height: int = 16
    width: int = 24
    batch: int = 1
    frames: int | None = None
    steps: int = 2
    cfg: float = 3.0
    seed: int = 3
    sampler: Any = "euler"  # a name, or what a node gives
    scheduler: str = "simple"
    denoise: float = 1.0
    tokens: tuple[int, int] = (9, 9)
    second: Any = None
    guider: Callable[[Sampling], Any] | None = None
    mask: torch.Tensor | None = None
    latent_filled: bool = False
    texts: dict[str, Texts] = field(default_factory=dict)
    undo: list[Callable[[], Any]] = field(default_factory=list)
    adding: list[Callable[[Texts], Texts]] = field(default_factory=list)  # to the positive text

    @property
    def dit(self) -> dits.Dit:
        """The family."""
        return dits.DITS[self.name]

    @property
    def audio(self) -> tuple[int, ...]:
        """Channels and sides of a second latent, where there is one."""
        return self.dit.audio

    def text(self, number: int, length: int) -> Texts:
        """What encoding a prompt gives, with all that the family's conditioning has besides."""
        generator = torch.Generator().manual_seed(number + length)
        features = torch.randn(1, length, self.dit.width, generator=generator)
        control = {"control": dits.control, "control_apply_to_uncond": True} if dits.control is not None else {}
        return [[features, {**self.dit.conds(generator, (self.batch, self.height, self.width)), **control}]]

    def latent(self) -> torch.Tensor:
        """An empty latent, or one of a picture, without what a family has of audio."""
        channels, *frames = self.dit.latent
        if frames and self.frames is not None:
            frames = [self.frames]
        shape = (self.batch, channels, *frames, self.height, self.width)
        if not self.latent_filled:
            return torch.zeros(shape)
        return torch.randn(shape, generator=torch.Generator().manual_seed(6)) * 0.8

    def run(self) -> torch.Tensor:
        """All latents, one after the other, in one dimension."""
        import comfy.nested_tensor
        import comfy.sample

        latent: Any = self.latent()
        mask: Any = self.mask
        if self.audio:
            audio = torch.zeros(self.batch, *self.audio)
            latent = comfy.nested_tensor.NestedTensor([latent, audio])
            mask = None if mask is None else comfy.nested_tensor.NestedTensor([mask, torch.ones_like(audio)])
        positive, negative = self.text(1, self.tokens[0]), self.text(2, self.tokens[1])
        for add in self.adding:
            positive = add(positive)
        try:
            with torch.inference_mode():
                noise = comfy.sample.prepare_noise(latent, self.seed)
                found = self._sampled(noise, latent, positive, negative, mask)
        finally:
            for undo in reversed(self.undo):
                undo()
        parts = found.unbind() if self.audio else [found]
        return torch.cat([part.flatten() for part in parts])

    def _sampled(self, noise: Any, latent: Any, positive: Texts, negative: Texts, mask: Any) -> Any:
        import comfy.sample
        import comfy.samplers

        if self.guider is not None:
            self.texts = {"positive": positive, "negative": negative}
            guider = self.guider(self)
            sigmas = comfy.samplers.calculate_sigmas(
                self.model.get_model_object("model_sampling"), self.scheduler, self.steps
            )
            sampler = self.sampler
            if isinstance(sampler, str):
                sampler = comfy.samplers.sampler_object(sampler)
            return guider.sample(noise, latent, sampler, sigmas, denoise_mask=mask, disable_pbar=True, seed=self.seed)
        given = {"denoise": self.denoise, "noise_mask": mask, "disable_pbar": True, "seed": self.seed}
        rest = (self.steps, self.cfg, self.sampler, self.scheduler, positive, negative)
        if self.second is None:
            return comfy.sample.sample(self.model, noise, *rest, latent, **given)
        half = self.steps // 2
        first = comfy.sample.sample(self.model, noise, *rest, latent, start_step=0, last_step=half, **given)
        none = torch.zeros_like(noise)
        return comfy.sample.sample(
            self.second, none, *rest, first, disable_noise=True, start_step=half, force_full_denoise=True, **given
        )


Addition = Callable[[Sampling], None]


def settings(**values: Any) -> Addition:
    """Fields of the sampling have other values."""

    def add(sampling: Sampling) -> None:
        for name, value in values.items():
            setattr(sampling, name, value)

    return add


def several(*additions: Addition) -> Addition:
    """All of these, in their order."""

    def add(sampling: Sampling) -> None:
        for one in additions:
            one(sampling)

    return add


def result_of(module: str, name: str, **values: Any) -> Any:
    """The first output of one of the host's nodes. `module`: below comfy_extras, or `nodes`."""
    cls: Any = getattr(importlib.import_module(module if module == "nodes" else ROOT + module), name)
    if hasattr(cls, "execute"):
        return cls.execute(**values).result[0]
    return getattr(cls(), cls.FUNCTION)(**values)[0]


def node(module: str, name: str, **values: Any) -> Addition:
    """A node of the host that takes a MODEL and gives one."""

    def add(sampling: Sampling) -> None:
        sampling.model = result_of(module, name, model=sampling.model, **values)

    return add


def on_text(module: str, name: str, **values: Any) -> Addition:
    """A node of the host that takes the positive CONDITIONING and gives one."""

    def add(sampling: Sampling) -> None:
        sampling.adding.append(lambda text: result_of(module, name, conditioning=text, **values))

    return add


def patched(change: Callable[[Any], None]) -> Addition:
    """Something done to a clone of the MODEL."""

    def add(sampling: Sampling) -> None:
        sampling.model = sampling.model.clone()
        change(sampling.model)

    return add


def guided(name: str, given: Callable[[Sampling], dict[str, Any]], module: str = "nodes_custom_sampler") -> Addition:
    """A guider of the host, which is `given` more than the MODEL."""
    return settings(guider=lambda sampling: result_of(module, name, model=sampling.model, **given(sampling)))
