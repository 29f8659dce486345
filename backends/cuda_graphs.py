"""CUDA graphs of a graph's calls: a call that comes often is recorded once and then replayed as one launch.

A step launches thousands of kernels; replayed, they follow each other without the CPU. The price is memory that stays
taken: a recording keeps the activations of its call. Recordings of one function share it, and give it back where
it is much of what is left.

Recording is a risk: under cudaMallocAsync, ComfyUI's default, a function that waits for the device while it is recorded
takes the process down. So it is tried where that costs nothing, in the compiling process, which leaves a file as proof.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ..common.errors import in_brief

log = logging.getLogger("onegraph.compiler")

AFTER = 1  # calls of one shape before it is captured; 0: never. The first one warms up libraries and the allocator
PROOF_FILE = "replays"  # beside a graph whose calls could be recorded
MOST = 8  # recordings of one function
LARGEST_SHARE = 0.25  # of the free memory, that a call may need to be recorded at all
TRIM_SHARE = 0.25  # of the memory that is left after a run, above which recordings are given back
WORTH_IT = 0.95  # replays must take less than this share of the calls' time, several after each other as in sampling
LAUNCHING = 0.5  # share of a call's time, below which it does not wait for its launches and is not even tried
MOST_NEEDED = 2  # times that the host may need the memory of captured calls before no more are captured
_IN_A_ROW = 2  # calls that are timed
_TOLERANCE = 1e-3  # relative L2 between a call and its replay: same kernels, but some sum in no fixed order

Shapes = tuple[torch.Size, ...]
Release = Literal["freed", "needed"]


@dataclass
class Counters:
    """What this process did so far."""

    recordings: int = 0
    replayed_calls: int = 0


counters = Counters()


@dataclass(frozen=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    stream: torch.cuda.Stream  # on which it was made to run
    inputs: tuple[torch.Tensor, ...]
    output: torch.Tensor

    def replay(self, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        with torch.no_grad():
            for own, given in zip(self.inputs, inputs, strict=True):
                own.copy_(given)
            self.graph.replay()
            return self.output.clone()


class Replayed:
    """A function of CUDA tensors that replays its calls once they come often.

    The function must read no tensors but its inputs and what stays at its address until `clear`, and must not wait for
    the device. Not thread-safe.
    """

    def __init__(self, function: Callable[..., torch.Tensor], allowed: bool) -> None:
        self._function = function
        self._allowed = allowed
        self._recordings: dict[Shapes, _Recording] = {}
        self._calls: Counter[Shapes] = Counter()
        self._refused: set[Shapes] = set()
        self._pool: Any = None
        self._device: torch.device | None = None  # of what was recorded
        self._paused = False
        self._needed = 0  # how often the host needed the memory
        self.held_bytes = 0

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        if not self._allowed or not AFTER or inputs[0].device.type != "cuda":
            return self._function(*inputs)
        shapes = tuple(t.shape for t in inputs)
        recording = self._recordings.get(shapes)
        if recording is not None and torch.cuda.current_stream(inputs[0].device) == recording.stream:
            counters.replayed_calls += 1
            return recording.replay(inputs)
        if self.due(inputs):
            return self._record(shapes, inputs)
        self._calls[shapes] += 1
        return self._function(*inputs)

    def due(self, inputs: tuple[torch.Tensor, ...]) -> bool:
        """Whether this call would be recorded, if it is on a GPU."""
        shapes = tuple(t.shape for t in inputs)
        known = shapes in self._recordings or shapes in self._refused
        return self._allowed and not self._paused and 0 < AFTER <= self._calls[shapes] and not known

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Capture nothing while this lasts; calls count as usual."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def release(self, why: Release) -> int:
        """Give the memory of captured calls back; the bytes. They are captured again when they come again.

        Args:
            why: "freed" when nothing uses them any more, "needed" when the host has no memory for something else:
                where that goes on, no more calls are captured, for each capture costs as much as several calls.
        """
        held = self.held_bytes
        if held:
            if self._device is not None and self._device.type == "cuda":
                torch.cuda.synchronize(self._device)  # a replay may be under way
            self._needed += why == "needed"
            if self._needed > MOST_NEEDED:
                self._allowed = False
            self.clear()
        return held

    def forbid(self) -> None:
        """Record no more."""
        self.clear()
        self._allowed = False

    def try_out(self, *inputs: torch.Tensor) -> bool:
        """Whether such a call can be recorded and its replay is right. May take the process down."""
        if inputs[0].device.type != "cuda":
            return False
        expected = self._function(*inputs)
        try:
            return _distance(self._captured(inputs).replay(inputs), expected) <= _TOLERANCE
        except Exception:
            log.exception("a call could not be recorded as a CUDA graph")
            return False

    def clear(self) -> None:
        """Forget all recordings and give their memory back."""
        if self._recordings or self._pool is not None or self.held_bytes:
            self._recordings = {}
            self._pool = None
            self.held_bytes = 0
            _give_back(self._device)
        self._calls.clear()

    def trim(self, available: int) -> None:
        """Clear if the recordings hold much in comparison with the bytes that are available without them."""
        if self.held_bytes > TRIM_SHARE * available:
            log.debug("recordings of %d MiB are given back", self.held_bytes >> 20)
            self._refused |= set(self._recordings)
            self.clear()

    def _record(self, shapes: Shapes, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Record a call, keep the recording if it is right and pays, and answer the call."""
        device = inputs[0].device
        self._refused.add(shapes)  # until it has shown what it is worth
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.synchronize(device)
        started = time.perf_counter()
        expected = self._function(*inputs)
        launched = time.perf_counter() - started
        torch.cuda.synchronize(device)
        needed = torch.cuda.max_memory_allocated(device) - before
        waits = launched > LAUNCHING * (time.perf_counter() - started)
        if not waits or needed > LARGEST_SHARE * torch.cuda.mem_get_info(device)[0]:
            return expected
        try:
            self._keep_if_it_pays(shapes, inputs, expected)
        except Exception as error:  # a call must not fail because it could not be made faster
            log.info("a call could not be recorded as a CUDA graph (%s)", in_brief(error))
            torch.cuda.synchronize(device)
        if not self._recordings:
            self.clear()
        return expected

    def _keep_if_it_pays(self, shapes: Shapes, inputs: tuple[torch.Tensor, ...], expected: torch.Tensor) -> None:
        device = inputs[0].device
        free = torch.cuda.mem_get_info(device)[0]
        recording = self._captured(inputs)
        distance = _distance(recording.replay(inputs), expected)
        self.held_bytes += max(0, free - torch.cuda.mem_get_info(device)[0])
        direct_s = _timed(lambda: self._function(*inputs), device)
        replay_s = _timed(lambda: recording.replay(inputs), device)
        kept = distance <= _TOLERANCE and replay_s < WORTH_IT * direct_s
        if kept:
            if len(self._recordings) >= MOST:
                oldest = next(iter(self._recordings))
                del self._recordings[oldest]
                self._calls[oldest] = 0
            self._recordings[shapes] = recording
            self._refused.discard(shapes)
            counters.recordings += 1
        log.info(
            "%s calls of %s: %.1f instead of %.1f ms, relative L2 %.1e, %d MiB",
            "replaying" if kept else "not replaying",
            tuple(shapes[0]),
            1e3 * replay_s,
            1e3 * direct_s,
            distance,
            self.held_bytes >> 20,
        )

    def _captured(self, inputs: tuple[torch.Tensor, ...]) -> _Recording:
        device = inputs[0].device
        current = torch.cuda.current_stream(device)
        # Not torch.cuda.graph: that collects garbage and empties the allocator's cache, and stops other threads' work.
        graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(False), torch.no_grad():
            own = tuple(torch.empty_like(t).copy_(t) for t in inputs)
            side = self._side_stream(device)
            side.wait_stream(current)
            with torch.cuda.stream(side):
                graph.capture_begin(self._pool, "thread_local")
                try:
                    output = self._function(*own)
                finally:
                    graph.capture_end()
            current.wait_stream(side)
        self._pool, self._device = graph.pool(), device
        return _Recording(graph, current, own, output)

    def _side_stream(self, device: torch.device) -> torch.cuda.Stream:
        """The stream on which this thread captures, always the same one.

        torch's cuBLAS keeps a workspace of 32 MiB for each stream that it was ever called on. The first call on it is
        a plain one, or the workspace would belong to the capture and never be given back.
        """
        known = getattr(_streams, "by_device", None)
        if known is None:
            known = _streams.by_device = {}
        if device not in known:
            side = torch.cuda.Stream(device)
            with torch.cuda.stream(side):
                self._warm_up(device)
            side.synchronize()
            known[device] = side
        side = known[device]
        assert isinstance(side, torch.cuda.Stream)
        return side

    @staticmethod
    def _warm_up(device: torch.device) -> None:
        """Have cuBLAS and cuBLASLt take their workspaces on the current stream."""
        for dtype in (torch.float16, torch.float32):
            one = torch.ones(64, 64, dtype=dtype, device=device)
            torch.mm(one, one)
            torch.addmm(one[0], one, one)
            torch.bmm(one[None], one[None])


_streams = threading.local()


def _distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative L2."""
    return float((found.float() - expected.float()).norm() / expected.float().norm().clamp(min=1e-30))


def _give_back(device: torch.device | None) -> None:
    """Let go of memory that no recording needs any more; of cudaMallocAsync's, torch knows no way."""
    if device is None or device.type != "cuda":
        return
    torch.cuda.empty_cache()
    with contextlib.suppress(OSError, AttributeError), torch.cuda.device(device):
        runtime = ctypes.CDLL(f"libcudart.so.{str(torch.version.cuda).partition('.')[0]}")
        runtime.cudaDeviceGraphMemTrim(torch.cuda.current_device())


def _timed(call: Callable[[], torch.Tensor], device: torch.device) -> float:
    """Seconds of one of a few calls in a row."""
    torch.cuda.synchronize(device)
    started = time.perf_counter()
    for _ in range(_IN_A_ROW):
        call()
    torch.cuda.synchronize(device)
    return (time.perf_counter() - started) / _IN_A_ROW
