"""A bar while a graph compiles, as the pipeline's own bars look."""

from __future__ import annotations

from typing import Any

from ..common.log import logger
from ..compiler.process.progress import Progress

log = logger("pipelines")


class CompileBar:
    """Follows one compile; diffusers' `disable_progress_bar` and the pipeline's own settings turn it off.

    Args:
        config: of the pipeline's progress bars, as `set_progress_bar_config` takes it.
    """

    def __init__(self, label: str, config: dict[str, Any]) -> None:
        self._label = label
        self._config = config
        self._bar: Any = None
        self._shown = 0  # percent; a bar that diffusers has turned off counts nothing

    def __call__(self, progress: Progress) -> None:
        if self._bar is None:
            self._bar = self._start()
        self._bar.set_postfix_str(f"{progress.stage}, {progress.left}", refresh=False)
        share = round(100 * progress.share)
        self._bar.update(share - self._shown)
        self._shown = share

    def _start(self) -> Any:
        from diffusers.utils import logging as diffusers_logging

        log.info("compiling %s", self._label)
        options = {"total": 100, "unit": "%", "leave": False, "desc": f"compiling {self._label}", **self._config}
        return diffusers_logging.tqdm(**options)

    def __del__(self) -> None:
        if self._bar is not None:
            self._bar.close()
