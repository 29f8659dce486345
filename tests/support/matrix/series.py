"""Prompts in a row in one process."""

from __future__ import annotations

from ..scenes.workflow import Case as Flow
from .case import FREE, Case, flow, part

_SERIES = "Prompts in a row"
_SIZES = ((64, 64), (96, 64), (64, 136), (128, 128), (200, 72), (104, 104), (160, 96), (72, 192))
_LORA = part("lora", number=0, strength=1.0)
_HALF = part("controlnet", strength=1.0, start_percent=0.0, end_percent=0.5)


def _of(family: str, noise: int) -> Flow:
    return flow(family=family, noise=noise)


CASES: tuple[Case, ...] = (
    Case("everything unloaded between", _SERIES, (flow(), FREE, flow(noise=2), FREE, flow(noise=3))),
    Case("two architectures in turns", _SERIES, (_of("sdxl", 2), _of("sd15", 2), _of("sdxl", 3), _of("sd15", 3))),
    Case("eight sizes, UNet and VAE", _SERIES, tuple(flow(width=w, height=h, vae_node="decoder") for w, h in _SIZES),
        changes=False, reports=("onediff #849", "onediff #848", "onediff #818", "onediff #779", "KJNodes #292")),
    Case("long and short prompts in turns", _SERIES, tuple(flow(positive_words=n) for n in (3, 100, 3, 200, 100)),
        reports=("ComfyUI #6415", "ComfyUI #9289")),
    Case("a LoRA changed, a ControlNet in the first steps", _SERIES, (flow(_HALF), flow(_HALF, _LORA), flow(_HALF,
        part("lora", number=0, strength=-0.7)), flow(_HALF))),
    Case("with and without the node in turns", _SERIES, (flow(noise=2), flow(noise=3, model_node=-1), flow(noise=4))),
    Case("a hundred", _SERIES, tuple(flow(*((_LORA,) if n % 4 > 1 else ()), node=n % 2,
        noise=100 + n) for n in range(100)), full=True),
)  # fmt: skip
