"""Calls in one thread of a device: as the caller would make them, and over when the caller goes on."""

from __future__ import annotations

import threading
import time
import weakref
from concurrent.futures import Future, wait

import pytest
import torch

from onegraph.runtime.graphs import call_thread
from onegraph.runtime.graphs.call_thread import in_thread

CPU = torch.device("cpu")


def test_every_thread_calls_in_the_same_one() -> None:
    seen = [in_thread(CPU, threading.get_ident)]
    other = threading.Thread(target=lambda: seen.append(in_thread(CPU, threading.get_ident)))
    other.start()
    other.join()
    assert len(set(seen)) == 1 and seen[0] not in (threading.get_ident(), other.ident)


@pytest.mark.parametrize("mode", ["inference", "no grad", "usual"])
def test_a_call_is_made_in_the_callers_mode(mode: str) -> None:
    def modes() -> tuple[bool, bool, bool]:
        return torch.is_inference_mode_enabled(), torch.is_grad_enabled(), torch.ones(1).is_inference()

    def both() -> None:
        assert in_thread(CPU, modes) == modes()

    if mode == "inference":
        with torch.inference_mode():
            both()
    elif mode == "no grad":
        with torch.no_grad():
            both()
    else:
        both()


def test_an_error_reaches_the_caller_and_keeps_nothing() -> None:
    given = torch.ones(3)
    kept = weakref.ref(given)

    def fails(tensor: torch.Tensor) -> None:
        raise torch.OutOfMemoryError(f"no room for {tensor.numel()}")

    def caller(tensor: torch.Tensor) -> str:
        try:
            in_thread(CPU, lambda: fails(tensor))
        except torch.OutOfMemoryError as error:
            return str(error)
        return ""

    assert caller(given) == "no room for 3"
    in_thread(CPU, lambda: None)
    del given
    assert kept() is None
    assert in_thread(CPU, lambda: 5) == 5


def test_whoever_is_interrupted_waits_for_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next call would be made, or its weights moved, while this one computes."""
    over = threading.Event()
    begun = threading.Event()

    def slow() -> None:
        begun.set()
        time.sleep(0.2)
        over.set()

    def interrupted(future: Future[None]) -> None:
        assert begun.wait(60)
        raise KeyboardInterrupt

    waits = 0

    def interrupted_again(futures: list[Future[None]]) -> None:
        nonlocal waits
        waits += 1
        if waits < 3:
            raise KeyboardInterrupt
        wait(futures)

    monkeypatch.setattr(call_thread.Future, "result", interrupted)
    monkeypatch.setattr(call_thread, "wait", interrupted_again)
    with pytest.raises(KeyboardInterrupt):
        in_thread(CPU, slow)
    assert over.is_set() and waits == 3
