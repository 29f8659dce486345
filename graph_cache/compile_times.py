"""What compiles took on this machine, kept beside its first-use results for the next one's estimate."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeGuard


class CompileTimes:
    """The latest compile of each kind, in a file that may be missing, damaged or not writable.

    Args:
        file: JSON, `{kind: {stage: seconds}}`.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def of(self, kind: str) -> dict[str, float]:
        """What is known of such a compile's stages; empty where none was remembered."""
        return self._read().get(kind, {})

    def remember(self, kind: str, stages: Mapping[str, float]) -> None:
        """Keep what a compile took. A file that can't be written is no error: the next estimate is poorer."""
        temporary = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps({**self._read(), kind: dict(stages)}, indent=1), encoding="utf-8")
            temporary.replace(self._file)

    def _read(self) -> dict[str, dict[str, float]]:
        try:
            data = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        if not isinstance(data, dict):
            return {}
        kinds = {kind: stages for kind, stages in data.items() if isinstance(stages, dict)}
        return {kind: {s: t for s, t in stages.items() if _is_time(t)} for kind, stages in kinds.items()}


def _is_time(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e5
