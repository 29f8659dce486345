"""The pack's errors. Each message says what happened, why, and what to do, in at most two sentences."""

from __future__ import annotations


class OneGraphError(Exception):
    """Base of every error the pack raises on purpose."""


class CaptureError(OneGraphError):
    """A module could not be turned into an exported graph."""


class CompileError(OneGraphError):
    """A backend could not compile an exported graph.

    `lasting` tells whether trying again in this process can only fail again.
    """

    def __init__(self, message: str, *, lasting: bool = True) -> None:
        super().__init__(message)
        self.lasting = lasting


class LoadError(OneGraphError):
    """A graph's files are there but cannot be taken into use."""


class MemoryShortError(LoadError):
    """A graph is sound, but its memory is not free right now."""


class BindError(OneGraphError):
    """A live module's tensors do not fit the graph that was compiled for its architecture."""


class NoEncoderError(OneGraphError):
    """A VAE that can only decode was asked to encode."""
