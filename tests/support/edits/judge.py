"""Whether a compiled model gives what eager gives with the same edit, and whether its reports say what it did."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from .edit import Dropped, Edit
from .places import Place
from .subjects import Run, Subject, nothing

SAME = 1e-4  # relative L2 of the outputs
OTHER = 1e-3  # an edit that changes less shows nothing


def _distance(result: torch.Tensor, reference: torch.Tensor) -> float:
    from onegraph.runtime.faithfulness import relative_l2

    return relative_l2(result, reference)


def compiled_fully(subject: Subject, run: Run, what: str) -> torch.Tensor:
    """The output of a run that graphs serve from first to last."""
    with counted(subject, subject.calls):
        result = run(None, nothing)
    assert subject.report().compiled_calls == subject.calls, f"{what}: {subject.report().text()}"
    return result


@contextlib.contextmanager
def counted(subject: Subject, calls: int) -> Iterator[None]:
    """The calls in here are all counted, in the report as in the process's counters."""
    from onegraph.runtime.registry import registry

    counters = registry().counters
    before = counters.compiled_calls, counters.eager_calls
    yield
    report = subject.report()
    now = counters.compiled_calls - before[0], counters.eager_calls - before[1]
    assert now == (report.compiled_calls, sum(report.eager.values())), report.text()
    assert report.calls == calls, report.text()
    assert bool(report.compiled_calls) != report.text().startswith("eager: ")


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
        from onegraph.runtime.registry import registry

        for graph in registry().graphs():
            graph.start_run(None)  # bound anew, also where a case before this one failed
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
        assert _distance(reference, plain) > OTHER, "the edit changes nothing, so it shows nothing"
        assert_same(self._subject, result, reference, "edited")
