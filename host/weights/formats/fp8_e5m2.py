"""float8_e5m2 with one scale for the whole weight: as float8_e4m3fn, with more range and fewer digits."""

from __future__ import annotations

from typing import Any

from ..format import PlainLinear, WeightFormat
from .fp8_scaled import Float8Linear


class Float8E5M2(WeightFormat):
    name = "float8_e5m2"
    layouts = frozenset({"TensorCoreFP8E5M2Layout"})

    def plain(self, layer: Any) -> PlainLinear:
        return Float8Linear(layer)
