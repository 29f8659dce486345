"""Whether a compiled model gives what eager gives with the same edit, and whether its reports say what it did."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest.mock import patch

import torch

from ..scenes.judge import OTHER, SAME, distance
from ..scenes.places import Place
from .edit import Dropped, Edit
from .subjects import Run, Subject, nothing


def close(result: torch.Tensor, reference: torch.Tensor) -> bool:
    """Whether two outputs are the same but for rounding."""
    return distance(result, reference) < SAME


def compiled_fully(subject: Subject, run: Run, what: str) -> torch.Tensor:
    """The output of a run that graphs serve from first to last."""
    with counted(subject, subject.calls):
        result = run(None, nothing)
    assert subject.report().compiled_calls == subject.calls, f"{what}: {subject.report().text()}"
    assert not subject.report().blocks.eager, f"{what}: {subject.report().text()}"
    return result


class _Reports(dict[str, Any]):
    """The last report of each node, and all that came since."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        super().__init__(known)
        self.new: list[Any] = []

    def __setitem__(self, name: str, report: Any) -> None:
        super().__setitem__(name, report)
        self.new.append(report)


@contextlib.contextmanager
def counted(subject: Subject, calls: int) -> Iterator[None]:
    """The calls in here are all counted, in the reports of their runs as in the process's counters."""
    from onegraph.host.show import status
    from onegraph.runtime.obtain.registry import registry

    counters, known = registry().counters, _Reports(status.last_runs)
    before = counters.compiled_calls, counters.eager_calls
    with patch.object(status, "last_runs", known):
        yield
    reports = known.new
    status.last_runs.update(known)
    assert reports
    now = counters.compiled_calls - before[0], counters.eager_calls - before[1]
    texts = [report.text() for report in reports]
    if reports[0].blocks.of:  # counted block by block
        assert now[0] == sum(one.blocks.calls for one in reports), texts
        assert now[1] >= sum(sum(one.blocks.eager.values()) for one in reports), texts
    else:
        eager = sum(sum(one.eager.values()) for one in reports)
        assert now == (sum(one.compiled_calls for one in reports), eager), texts
    assert sum(report.calls for report in reports) == calls, texts
    assert all(bool(one.compiled_calls) != one.text().startswith("uncompiled: ") for one in reports), texts


def assert_same(subject: Subject, result: torch.Tensor, reference: torch.Tensor, what: str) -> None:
    """The outputs are the same, else it is said how far apart they are."""
    far = distance(result, reference)
    assert far < SAME, f"{what}: relative L2 {far:.3g} ({subject.report().text()})"


class Case:
    """One edit of one subject, kept apart from others: what it changed is put back at its end.

    Args:
        keeps: what the edit replaces is kept alive.
        prepared: an edit that is there from the beginning to the end, and changes nothing.
    """

    def __init__(self, subject: Subject, edit: Edit, keeps: bool, prepared: Edit | None = None) -> None:
        from onegraph.runtime.obtain.registry import registry

        for graph in registry().graphs():
            graph.start_run(torch.nn.Module(), None)  # bound anew, also where a case before this one failed
        self._subject = subject
        self._edit = edit
        self._prepare = prepared
        self._old: Any = [] if keeps else Dropped()

    def _edited(self, edit: Edit | None = None) -> contextlib.AbstractContextManager[None]:
        return (edit or self._edit)(self._subject.module, self._subject.roles, self._old)

    def _prepared(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._prepare is None else self._edited(self._prepare)

    def before_a_run(self) -> None:
        """The edit is there before the node is executed."""
        with self._prepared():
            plain = self._subject.eager(None, nothing)
            self._run_edited(self._subject.compiled, plain)
            self._undone(self._subject.compiled(), plain)

    def between_runs(self) -> None:
        """A run before the edit, one with it, one when it is undone."""
        with self._prepared():
            fast = self._subject.compiled()
            plain = compiled_fully(self._subject, fast, "before the edit")
            self._run_edited(lambda: fast, plain)
            self._undone(fast, plain)

    def between_calls(self, place: Place) -> None:
        """A run before the edit, one in which it is made after the first call, one when it is undone."""
        subject = self._subject
        with self._prepared():
            fast = subject.compiled()
            plain = compiled_fully(subject, fast, "before the edit")
            with contextlib.ExitStack() as edited, counted(subject, subject.calls):
                result = fast(place, lambda: edited.enter_context(self._edited()))
            with contextlib.ExitStack() as edited:
                reference = subject.eager(place, lambda: edited.enter_context(self._edited()))
            self._judge(result, reference, plain)
            self._undone(fast, plain)

    def _run_edited(self, made: Callable[[], Run], plain: torch.Tensor) -> None:
        """A run with the edit, of what is made when the edit is there."""
        subject = self._subject
        with self._edited():
            with counted(subject, subject.calls):
                result = made()(None, nothing)
            self._judge(result, subject.eager(None, nothing), plain)

    def _undone(self, fast: Run, plain: torch.Tensor) -> None:
        assert_same(self._subject, compiled_fully(self._subject, fast, "undone"), plain, "undone")

    def _judge(self, result: torch.Tensor, reference: torch.Tensor, plain: torch.Tensor) -> None:
        effect = distance(reference, plain)
        assert effect > OTHER, f"the edit changes too little to show anything: {effect:.3g}"
        assert_same(self._subject, result, reference, "edited")
