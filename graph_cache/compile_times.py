"""How long compiles took on this machine, for the estimate of the next one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeGuard

from .files import read_regular, replace_text

_MOST_BYTES = 1 << 20


class CompileTimes:
    """The latest compile of each category, in a file that may be missing, damaged or not writable.

    Args:
        file: JSON, `{category: {stage: seconds}}`.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def of(self, category: str) -> dict[str, float]:
        """Read the seconds of such a compile's stages; empty where none was remembered."""
        return self._read().get(category, {})

    def remember(self, category: str, stages: Mapping[str, float]) -> None:
        """Write what a compile took. A file that cannot be written is no error: the next estimate is poorer."""
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            replace_text(self._file, json.dumps({**self._read(), category: dict(stages)}, indent=1))

    def _read(self) -> dict[str, dict[str, float]]:
        try:
            data = json.loads(read_regular(self._file, _MOST_BYTES))
        except (OSError, ValueError):
            return {}
        if not isinstance(data, dict):
            return {}
        categories = {name: stages for name, stages in data.items() if isinstance(stages, dict)}
        return {name: {s: t for s, t in stages.items() if _is_time(t)} for name, stages in categories.items()}


def _is_time(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e5
