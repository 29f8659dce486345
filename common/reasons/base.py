"""The base of all reasons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Reason:
    """Base of all reasons. `code` names the kind for programs and never changes once released."""

    code: ClassVar[str]
