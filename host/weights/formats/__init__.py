"""The formats of quantised weights that graphs compute with, one in each module."""

from __future__ import annotations

from ..format import WeightFormat
from .convrot_w4a4 import ConvrotW4A4
from .fp8_e5m2 import Float8E5M2
from .fp8_scaled import Float8E4M3
from .int8 import Int8
from .mxfp8 import MXFP8
from .nvfp4 import NVFP4

_ALL: tuple[WeightFormat, ...] = (Float8E4M3(), Float8E5M2(), Int8(), ConvrotW4A4(), MXFP8(), NVFP4())
FORMATS = {one.name: one for one in _ALL}
