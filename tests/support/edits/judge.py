"""Whether a compiled model gives what eager gives with the same edit, and whether its reports say what it did."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any
from unittest.mock import patch

import torch

from .edit import Dropped, Edit
from .places import Place
from .subjects import Run, Subject, nothing

SAME = 1e-4  # relative L2 of the outputs
OTHER = 3e-4  # an edit that changes less shows nothing


def close(result: torch.Tensor, reference: torch.Tensor) -> bool:
    """Whether two outputs are the same but for rounding."""
    return _distance(result, reference) < SAME


def _distance(result: torch.Tensor, reference: torch.Tensor) -> float:
    from onegraph.runtime.graphs.faithfulness import relative_l2

    return relative_l2(result, reference)


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
    assert all(bool(one.compiled_calls) != one.text().startswith("eager: ") for one in reports), texts


def assert_same(subject: Subject, result: torch.Tensor, reference: torch.Tensor, what: str) -> None:
    """The outputs are the same, else it is said how far apart they are."""
    distance = _distance(result, reference)
    assert distance < SAME, f"{what}: relative L2 {distance:.3g} ({subject.report().text()})"


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
        subject = self._subject
        with self._prepared():
            plain = subject.eager(None, nothing)
            with self._edited():
                with counted(subject, subject.calls):
                    result = subject.compiled()(None, nothing)
                self._judge(result, subject.eager(None, nothing), plain)
            assert_same(subject, compiled_fully(subject, subject.compiled(), "undone"), plain, "undone")

    def between_runs(self) -> None:
        """A run before the edit, one with it, one when it is undone."""
        subject = self._subject
        with self._prepared():
            fast = subject.compiled()
            plain = compiled_fully(subject, fast, "before the edit")
            with self._edited():
                with counted(subject, subject.calls):
                    result = fast(None, nothing)
                self._judge(result, subject.eager(None, nothing), plain)
            assert_same(subject, compiled_fully(subject, fast, "undone"), plain, "undone")

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
            assert_same(subject, compiled_fully(subject, fast, "undone"), plain, "undone")

    def _judge(self, result: torch.Tensor, reference: torch.Tensor, plain: torch.Tensor) -> None:
        effect = _distance(reference, plain)
        assert effect > OTHER, f"the edit changes too little to show anything: {effect:.3g}"
        assert_same(self._subject, result, reference, "edited")
