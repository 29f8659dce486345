"""Why something was refused: values that programs compare by `code`, and that `messages.text` turns into sentences.

A reason is immutable and hashable, so that reports count by it. Facts are plain values (numbers, names, other reasons);
no reason holds a sentence of its own, except those that carry the text of a foreign error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Reason:
    """Base of all reasons. `code` names the kind for programs and never changes once released."""

    code: ClassVar[str]


# A call's inputs against a graph's shape range -----------------------------------------------------------------

# The store -----------------------------------------------------------------------------------------------------

# Backends and compiling ----------------------------------------------------------------------------------------

# Weights, functions and first use ------------------------------------------------------------------------------

# The workflow --------------------------------------------------------------------------------------------------
