"""Formats of weights that quantising libraries have in diffusers' models, one file each."""

from .format import LibraryFormat
from .gguf import Gguf
from .torchao import TorchAO

FORMATS: tuple[LibraryFormat, ...] = (TorchAO(), Gguf())
