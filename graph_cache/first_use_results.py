"""First-use results: what the first use of an entry showed on each machine. A file beside the manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from ..common.log import logger
from .entry import Entry
from .files import IrregularFileError, OversizedFileError, read_regular, replace_text
from .layout import machine_id
from .manifest import Strict

log = logger("graph_cache")

FIRST_USE_FILE = "outcome.json"
_MOST_BYTES = 1 << 20


class FirstUse(Strict):
    """What the first use on one machine showed; later processes rely on it instead of measuring again.

    Attributes:
        checked: names of the dimensions of size 1 (`n`: none) -> relative L2 against eager on real inputs.
        eager_ms, compiled_ms: one call on the inputs of the first use, milliseconds; None while unmeasured.
        slow_processes: how many processes in a row found the graph slower than eager.
        environment: versions around the graph when `checked` was filled.
        driver: version of the GPU's driver then; empty for a CPU.
        size: the sizes they were measured at, e.g. `batch 2, height 64, width 64, context 77`.
        replays: shapes of inputs -> whether it pays to replay such a call as a CUDA graph.
        captured: whether a child process could capture a call; None: none tried, as where the compile did.
    """

    checked: dict[str, float] = {}
    eager_ms: float | None = None
    compiled_ms: float | None = None
    slow_processes: int = 0
    environment: str = ""
    driver: str = ""
    size: str = ""
    replays: dict[str, bool] = {}
    captured: bool | None = None

    @property
    def speedup(self) -> float | None:
        """Eager's time over the graph's; None while either is unmeasured."""
        return self.eager_ms / self.compiled_ms if self.eager_ms and self.compiled_ms else None


class _FirstUses(Strict):
    """First-use results by machine, as in the file."""

    version: Literal[1] = 1
    machines: dict[str, FirstUse] = {}


def _read(folder: Path) -> _FirstUses:
    """Raises OSError where results may be there that cannot be read; they are not to be overwritten."""
    try:
        return _FirstUses.model_validate_json(read_regular(folder / FIRST_USE_FILE, _MOST_BYTES))
    except (FileNotFoundError, IrregularFileError, OversizedFileError, ValidationError):
        return _FirstUses()


def read_here(folder: Path) -> FirstUse:
    """Read this machine's result for an entry of the home; an empty one where there is none."""
    try:
        machines = _read(folder).machines
    except (OSError, MemoryError):
        return FirstUse()
    return machines.get(machine_id(), FirstUse()) if machines else FirstUse()


def remember(entry: Entry, result: FirstUse) -> None:
    """Write this machine's result. Where that cannot be, the next process measures again."""
    try:
        machines = {**_read(entry.folder).machines, machine_id(): result}
        replace_text(entry.folder / FIRST_USE_FILE, _FirstUses(machines=machines).model_dump_json(indent=1))
    except (OSError, MemoryError) as error:
        log.debug("the first-use result of %s could not be recorded: %s", entry.folder, error)
