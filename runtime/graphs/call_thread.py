"""One thread for each device in which whole graphs are called, whichever thread asks.

cuDNN's plans are kept for the thread that made them and the shapes of a call. Those that a preload makes in a thread of
its own would be made again at the first step: 0.6 of 0.66 s of SDXL's base on an H100. Here a preload and all later
calls use the same ones, but for replays, which need none. A call takes 70 us longer on a CPU machine with two cores.

Blocks are not called so: they are short, they have no convolutions as a rule, and they may call functions of others.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TypeVar

import torch

from ...backends import Runner
from ...backends.cuda_graphs import CudaGraphs
from ...common.outputs import Output

T = TypeVar("T")

_threads: dict[tuple[int, str], ThreadPoolExecutor] = {}  # by process, which a fork changes, and device
_lock = threading.Lock()


def in_thread(device: torch.device, call: Callable[[], T]) -> T:
    """Make a call in the device's thread as this one would make it, and wait for it, whatever interrupts the waiting.

    Raises what the call raises.
    """
    with _lock:
        name = f"onegraph-calls-{device}"
        key = os.getpid(), str(device)
        thread = _threads.get(key) or _threads.setdefault(key, ThreadPoolExecutor(1, name))
    future: Future[T] = thread.submit(functools.partial(_Circumstances.here(device).make, call))
    try:
        return future.result()
    except BaseException:
        _outlast(future)  # what the call reads and writes to is nobody else's before it is over
        raise
    finally:
        del future  # which has the error, whose traceback has this frame, and with it the call's tensors


def _outlast(future: Future[T]) -> None:
    """Wait until a call is over. Who is interrupted once more meanwhile is interrupted already."""
    while not future.done():
        with contextlib.suppress(BaseException):
            wait([future])


@dataclass(frozen=True)
class _Circumstances:
    """What torch knows of each thread that decides how a graph is called. Modes, e.g. autocast, run no graph at all."""

    inference: bool
    grad: bool
    stream: torch.cuda.Stream | None

    @classmethod
    def here(cls, device: torch.device) -> _Circumstances:
        stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        return cls(torch.is_inference_mode_enabled(), torch.is_grad_enabled(), stream)

    def make(self, call: Callable[[], T]) -> T:
        on_stream = contextlib.nullcontext() if self.stream is None else torch.cuda.stream(self.stream)
        with torch.inference_mode(self.inference), torch.set_grad_enabled(self.grad), on_stream:
            return call()


class InOneThread:
    """A runner whose calls are made in its device's thread."""

    def __init__(self, runner: Runner, device: torch.device) -> None:
        self.runner = runner
        self.reads_in_place = runner.reads_in_place
        self._device = device

    @property
    def cuda_graphs(self) -> CudaGraphs | None:
        return self.runner.cuda_graphs

    @property
    def held_bytes(self) -> int:
        return self.runner.held_bytes

    def constant_names(self) -> list[str]:
        return self.runner.constant_names()

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.runner.bind(tensors)

    def __call__(self, *inputs: torch.Tensor) -> Output:
        if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return self.runner(*inputs)  # somebody captures the caller's own work
        # A replay asks cuDNN for no plans, and handing it over takes 0.3 ms on a slow processor.
        replayed = None if self.cuda_graphs is None else self.cuda_graphs.replayed(inputs)
        if replayed is not None:
            return replayed
        return in_thread(self._device, functools.partial(self.runner, *inputs))

    def close(self) -> None:
        self.runner.close()
