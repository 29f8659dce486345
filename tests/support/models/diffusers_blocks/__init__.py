"""Small models of diffusers' classes with repeated blocks, with random weights, and what they are called with."""

from __future__ import annotations

from . import images, sound, tokens, videos
from .case import FIRST, OTHERS, WIDTH, Case, Sizes, result_of
from .judge import Judged, judged, moved

CASES: dict[str, Case] = {one.name: one for one in (*tokens.CASES, *images.CASES, *videos.CASES, *sound.CASES)}

__all__ = ["CASES", "FIRST", "OTHERS", "WIDTH", "Case", "Judged", "Sizes", "judged", "moved", "result_of"]
