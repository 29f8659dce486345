"""Formats of weights that quantising libraries have in diffusers' models, one file each."""

from .format import LibraryFormat
from .gguf import Gguf
from .torchao import TorchAO

FORMATS: list[LibraryFormat] = [TorchAO(), Gguf()]


def register(weight_format: LibraryFormat) -> None:
    """Have a further library's weights compiled. The module that defines it is imported in compiling processes, too."""
    FORMATS.append(weight_format)
