"""The pack's errors. Each message says what happened, why, and what to do, in at most two sentences."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from typing import Literal

# Why a compile failed, where that decides when it is tried again: memory of the system or of the device ran out, or
# a disk, or the time limit, or somebody ended it. Empty: something else.
Cause = Literal["", "memory", "device memory", "disk", "time", "stopped", "small"]

_FULL = tuple(getattr(errno, name) for name in ("ENOSPC", "EDQUOT") if hasattr(errno, name))
_BRIEF = 200
# In quotes a path may hold spaces. Outside them it ends at a space or at what commonly follows a path in a message.
_QUOTED = re.compile(r"""(['"`])(?:[A-Za-z]:[\\/]|\\\\|/|~/)[^'"`\n]*[\\/][^'"`\n]*\1""")
_BARE = re.compile(r"""(?<![\w.:/\\<~-])(?:file:///|[A-Za-z]:[\\/]|\\\\|~/|/(?=[^\s/]+/))[^\s'"`<>|:,;()\[\]]*""")


def without_paths(text: str) -> str:
    """Reduce each absolute path in a text to its last component: reasons are shown to users and travel in reports.

    Addresses of web pages stay. A path with spaces is recognised as a whole only inside quotes.

    >>> without_paths("cannot open /home/somebody/models/photo.safetensors (see https://example.org/help)")
    'cannot open photo.safetensors (see https://example.org/help)'
    """
    text = _QUOTED.sub(lambda match: f"{match[1]}{_last(match[0][1:-1])}{match[1]}", text)
    return _BARE.sub(lambda match: _last(match[0]), text)


def _last(path: str) -> str:
    return re.split(r"[\\/]", path.rstrip("\\/"))[-1]


def in_brief(error: BaseException, most: int = _BRIEF) -> str:
    """Return the first line of a foreign error's text for a reason, without absolute paths, or the error's type.

    >>> in_brief(ValueError("no such file: /tmp/a/graph.json\\nmore")), in_brief(EOFError())
    ('no such file: graph.json', 'EOFError')
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return without_paths(lines[0])[:most] if lines else type(error).__name__


def disk_is_full(error: BaseException) -> bool:
    """Tell whether a disk had no room, according to an error or those that it came from, a compiler's text included."""
    texts = [os.strerror(number).lower() for number in _FULL]
    return any(
        (isinstance(one, OSError) and one.errno in _FULL) or any(text in str(one).lower() for text in texts)
        for one in chain(error)
    )


def chain(error: BaseException) -> Iterator[BaseException]:
    """Iterate over an error and those that it came from, each once."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


class OneGraphError(Exception):
    """Base of every error the pack raises on purpose."""


class CaptureError(OneGraphError):
    """A module could not be turned into an exported graph."""


class TooSmallError(CaptureError):
    """A block has so few operations that choosing and calling a graph costs as much."""

    cause: Cause = "small"


class CompileError(OneGraphError):
    """A backend could not compile an exported graph.

    Args:
        lasting: whether trying again in this process can only fail again.
        cause: what ran out, if anything did; with memory, a later try may succeed when more of it is free. `small`: see
            `TooSmallError`.
    """

    def __init__(self, message: str, *, lasting: bool = True, cause: Cause = "") -> None:
        super().__init__(message)
        self.lasting = lasting
        self.cause: Cause = cause


class ChildDiedError(CompileError):
    """The compiling process ended without a last word."""


class BackendError(OneGraphError):
    """A backend of another package cannot be loaded."""


class LoadError(OneGraphError):
    """A graph's files are there but cannot be loaded."""


class MemoryShortError(LoadError):
    """A graph is sound, but its memory is not free right now."""


class BindError(OneGraphError):
    """A live module's tensors do not fit the graph that was compiled for its architecture."""


class NoEncoderError(OneGraphError):
    """A VAE that can only decode was asked to encode."""


class PipelineError(OneGraphError):
    """A diffusers pipeline cannot be compiled, saved or loaded as asked."""


class NoPipelineError(PipelineError, TypeError):
    """What was given is neither a pipeline nor a module."""
