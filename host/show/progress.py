"""Saying things to the user through ComfyUI: text on a node, progress in the queue, and hearing an interrupt."""

from __future__ import annotations

import logging
import time
from typing import Any

from ...common import remedies
from ...common.log import logger
from ...compiler.process.progress import Progress
from ...runtime.calls.run_report import RunReport
from . import badges, events, results, status

log = logger("host")

_TEXT_EVERY = 0.5
_LOG_EVERY = 10.0

# What each node shows, for the status route: a headless client has no node to look at.
texts: dict[str, str] = {}


def show_intro(node_id: str | None, **intros: str) -> dict[str, Any] | None:
    """Show what a node has to say before its first run: `model=` and `VAE=`, or `text=` where it has one thing only.

    Returns:
        The node's `ui`, from which ComfyUI's history has what the runs to come will be.
    """
    if node_id is not None:
        show(node_id, status.intro(node_id, {"" if k == "text" else k: v for k, v in intros.items()}))
        badges.send(node_id)
        results.note(node_id, texts[node_id])
    return results.ui(node_id)


def report_run(node_id: str | None, part: str, report: RunReport) -> None:
    """Show a run that is over, below the others of the same prompt. `part` is empty for a model's."""
    _log_run(node_id, part, report)
    if node_id is not None:
        show(node_id, status.added(node_id, part, report))
        badges.send(node_id)
        results.note(node_id, texts[node_id])


def _log_run(node_id: str | None, part: str, report: RunReport) -> None:
    """Log a run: for users where something changed, and as a warning only where something has to be mended."""
    before = None
    if node_id is not None:
        name = f"{node_id}:{part}" if part else node_id
        before = status.last_runs.get(name)
        status.last_runs[name] = report
    level, faults = logging.DEBUG, _faults(report)
    if before is None or report.outcome != before.outcome or faults != _faults(before) or report.has_compiled:
        level = logging.WARNING if faults else logging.INFO
    log.log(level, "%s", ": ".join(filter(None, (node_id and f"node {node_id}", part, report.text()))))


def _faults(report: RunReport) -> set[str]:
    """What has to be mended: two compiles fail for one code, and each says why."""
    return {reason.text for reason in report.reasons if remedies.is_fault(reason)}


def show(node_id: str, text: str) -> None:
    """Show `text` on a node in place of what is there. Without a server (in-process use) it is only remembered."""
    texts[node_id] = text
    events.send("onegraph.text", {"node": node_id, **vars(status.origin_of(node_id)), "text": text})


def raise_if_interrupted() -> None:
    """Raise ComfyUI's InterruptProcessingException (a BaseException) when the user asked to stop."""
    import comfy.model_management

    comfy.model_management.throw_exception_if_processing_interrupted()


class CompileProgress:
    """Follows one compile: the queue's progress bar, a line on the node, and the user's interrupt."""

    def __init__(self, node_id: str | None, label: str) -> None:
        import comfy.utils

        self._node_id = node_id
        self._label = label
        self._bar: Any = comfy.utils.ProgressBar(1000)
        self._shown, self._logged = 0.0, time.perf_counter()

    def __call__(self, progress: Progress) -> None:
        raise_if_interrupted()
        self._bar.update_absolute(int(1000 * progress.share))
        now = time.perf_counter()
        if now - self._shown < _TEXT_EVERY:
            return
        self._shown = now
        how = f"{progress.left} ({progress.stage}, {progress.seconds:.0f} s)"
        text = f"compiling {self._label}: {progress.share:.0%}, {how}"
        if self._node_id is not None:
            show(self._node_id, status.with_progress(self._node_id, text))
        if now - self._logged >= _LOG_EVERY:
            self._logged = now
            log.info("%s", text)
