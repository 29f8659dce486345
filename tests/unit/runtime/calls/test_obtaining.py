"""Several compiles at once, as users see them."""

from __future__ import annotations

from onegraph.compiler.process.progress import Progress
from onegraph.runtime.calls.obtaining import _together


def test_those_that_wait_for_a_worker_count() -> None:
    """Eight kinds of blocks on two cores: the first two were told as all of it."""
    running = [Progress("capturing", 6.0, 0.5, 4.0), Progress("compiling", 7.0, 0.7, 3.0)]
    told = _together(running, done=1, of=8, workers=2, seconds=20.0)
    assert (told.stage, told.seconds, told.late) == ("capturing", 20.0, False)
    assert told.share == (1 + 0.5 + 0.7) / 8
    assert told.remaining == 4.0 + 3 * (6.0 + 4.0)  # five wait, two at a time


def test_the_last_ones() -> None:
    told = _together([Progress("checking", 9.0, 0.9, 1.0, late=True)], done=7, of=8, workers=2, seconds=40.0)
    assert (told.remaining, told.late) == (1.0, True)
