"""The formats of quantised weights that graphs compute with, by the names that the host knows them by."""

from __future__ import annotations

from ..format import QuantisedFormat
from .block_scaled import MXFP8Linear, NVFP4Linear
from .convrot_w4a4 import ConvrotLinear
from .fp8_scaled import Float8Linear
from .int8 import Int8Linear

FORMATS = {
    "float8_e4m3fn": QuantisedFormat(frozenset({"TensorCoreFP8E4M3Layout", "TensorCoreFP8Layout"}), Float8Linear),
    "float8_e5m2": QuantisedFormat(frozenset({"TensorCoreFP8E5M2Layout"}), Float8Linear),
    "int8_tensorwise": QuantisedFormat(frozenset({"TensorWiseINT8Layout"}), Int8Linear),
    "convrot_w4a4": QuantisedFormat(frozenset({"TensorCoreConvRotW4A4Layout"}), ConvrotLinear),
    "mxfp8": QuantisedFormat(frozenset({"TensorCoreMXFP8Layout"}), MXFP8Linear),
    "nvfp4": QuantisedFormat(frozenset({"TensorCoreNVFP4Layout"}), NVFP4Linear),
}
