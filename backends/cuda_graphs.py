"""CUDA graphs of a graph's calls: a call that comes often is captured once and then replayed as one launch.

A step launches thousands of kernels; replayed, they follow each other without the CPU. The price is memory that stays
taken: a CUDA graph keeps the activations of its call. The CUDA graphs of one function share it, and give it back where
it is much of what is left.

Capturing is a risk: under cudaMallocAsync, ComfyUI's default, a function that waits for the device while it is captured
takes the process down. So it is tried where that costs nothing, in the compiling process, and the manifest says whether
it went well.
"""

from __future__ import annotations

import contextlib
import ctypes
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import torch

from ..common.errors import in_brief
from ..common.log import logger
from ..common.outputs import Output, mapped, tensors_of
from ..common.torch_private import copy_into
from .capture_stream import capture_stream

log = logger("compiler")

_TRIALS = 3  # calls that are timed, each from an idle device
TOLERANCE = 1e-3  # relative L2 between a call and its replay: same kernels, but some sum in no fixed order

T = TypeVar("T")
Shapes = tuple[torch.Size, ...]
Release = Literal["freed", "needed"]


@dataclass(frozen=True)
class CapturePolicy:
    """When calls are captured.

    Attributes:
        after: calls of one shape before it is captured; 0: never. The first one warms up libraries and the allocator.
        most: CUDA graphs of one function.
        largest_share: of the free memory, that a call may need to be captured at all.
        trim_share: of the memory that is left after a run, above which CUDA graphs are released.
        launching: share of a call's time for which the processor launches it, above which replaying pays: in a sampling
            the processor has other work as well. Calls in a row, where the next one is launched ahead, tell nothing.
        most_needed: times that the host may need the memory of captured calls before no more are captured.
    """

    after: int = 1
    most: int = 8
    largest_share: float = 0.25
    trim_share: float = 0.25
    launching: float = 0.5
    most_needed: int = 2


policy = CapturePolicy()  # of this process; what measures replaces it


@dataclass
class Counters:
    """What this process did so far.

    Attributes:
        trials: calls of which it was measured whether replaying them pays.
    """

    captures: int = 0
    replayed_calls: int = 0
    trials: int = 0


counters = Counters()


class Trials(Protocol):
    """Which calls pay to be replayed on this machine, by the shapes of their inputs: decided once for all processes."""

    def pays(self, shapes: str) -> bool | None:
        """Tell whether replaying such calls pays; None: nobody has measured it."""

    def remember(self, shapes: str, pays: bool) -> None:
        """Record what was measured."""


@dataclass(frozen=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    stream: torch.cuda.Stream  # on which it was made to run
    inputs: tuple[torch.Tensor, ...]
    output: Output

    def replay(self, inputs: tuple[torch.Tensor, ...]) -> Output:
        with torch.no_grad():
            copy_into(self.inputs, inputs)
            self.graph.replay()
            return mapped(torch.clone, self.output)


class CudaGraphs:
    """A function of CUDA tensors whose calls are captured, and then replayed, once they come often.

    The function must read no tensors but its inputs and what stays at its address until `clear`, and must not wait for
    the device. Not thread-safe.
    """

    def __init__(self, function: Callable[..., Output]) -> None:
        self._function = function
        self._allowed = True
        self._captured: dict[Shapes, _Captured] = {}
        self._calls: Counter[Shapes] = Counter()
        self._refused: set[Shapes] = set()
        self._pool: Any = None
        self._device: torch.device | None = None  # of what was captured
        self._paused = False
        self._needed = 0  # how often the host needed the memory
        self.held_bytes = 0
        self.trials: Trials | None = None

    def __call__(self, *inputs: torch.Tensor) -> Output:
        if not self._allowed or not policy.after or inputs[0].device.type != "cuda":
            return self._function(*inputs)
        replayed = self.replayed(inputs)
        if replayed is not None:
            return replayed
        shapes = tuple(t.shape for t in inputs)
        if self.due(inputs):
            return self._first_capture(shapes, inputs)
        self._calls[shapes] += 1
        return self._function(*inputs)

    def replayed(self, inputs: tuple[torch.Tensor, ...]) -> Output | None:
        """Replay a call that was captured, in whatever thread; None: there is no such one."""
        kept = self._captured if policy.after else {}
        captured = kept.get(tuple(t.shape for t in inputs)) if kept else None
        if captured is None or torch.cuda.current_stream(inputs[0].device) != captured.stream:
            return None
        counters.replayed_calls += 1
        return captured.replay(inputs)

    def due(self, inputs: tuple[torch.Tensor, ...]) -> bool:
        """Tell whether this call would be captured, if it is on a GPU."""
        if not self._allowed or self._paused or policy.after <= 0:
            return False
        shapes = tuple(t.shape for t in inputs)
        decided = shapes in self._captured or shapes in self._refused
        return policy.after <= self._calls[shapes] and not decided

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Capture nothing while this lasts; calls count as usual."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def release(self, why: Release) -> int:
        """Give the memory of captured calls back. They are captured again when they come again.

        Args:
            why: "freed" when nothing uses them any more, "needed" when the host has no memory for something else:
                where that goes on, no more calls are captured, for each capture costs as much as several calls.

        Returns:
            Bytes.
        """
        held = self.held_bytes
        if held:
            if self._device is not None and self._device.type == "cuda":
                torch.cuda.synchronize(self._device)  # a replay may be under way
            self._needed += why == "needed"
            if self._needed > policy.most_needed:
                self._allowed = False
            self.clear()
        return held

    def forbid(self) -> None:
        """Capture no more, as where the graph's manifest does not allow it."""
        self.clear()
        self._allowed = False

    def allow(self) -> None:
        """Capture calls again, after `forbid`."""
        self._allowed = True

    def try_out(self, *inputs: torch.Tensor) -> bool:
        """Tell whether such a call can be captured and its replay is right. May take the process down."""
        if inputs[0].device.type != "cuda":
            return False
        try:
            expected = self._function(*inputs)
            return distance(self._capture(inputs).replay(inputs), expected) <= TOLERANCE
        except Exception:
            log.exception("a call could not be captured as a CUDA graph")
            return False

    def clear(self) -> None:
        """Drop all CUDA graphs and give their memory back."""
        if self._captured or self._pool is not None or self.held_bytes:
            self._captured = {}
            self._pool = None
            self.held_bytes = 0
            _give_back(self._device)
        self._calls.clear()

    def trim(self, available: int) -> None:
        """Clear if the CUDA graphs hold much in comparison with the bytes that are available without them."""
        if self.held_bytes > policy.trim_share * available:
            log.debug("CUDA graphs of %d MiB are given back", self.held_bytes >> 20)
            self._refused |= set(self._captured)
            self.clear()

    def _first_capture(self, shapes: Shapes, inputs: tuple[torch.Tensor, ...]) -> Output:
        """Capture a call, keep the CUDA graph if it is right and pays, and answer the call."""
        device = inputs[0].device
        self._refused.add(shapes)  # until it has shown what it is worth
        paid_before = None if self.trials is None else self.trials.pays(_in_words(shapes))
        if paid_before is False:
            return self._function(*inputs)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        shares: list[float] = []
        expected: Output | None = None
        for _ in range(1 if paid_before else _TRIALS):
            expected = None
            torch.cuda.synchronize(device)
            started = time.perf_counter()
            expected = self._function(*inputs)
            launched = time.perf_counter() - started
            torch.cuda.synchronize(device)
            shares.append(launched / (time.perf_counter() - started))
        assert expected is not None
        needed = torch.cuda.max_memory_allocated(device) - before
        pays = paid_before or statistics.median(shares) > policy.launching
        if paid_before is None:
            counters.trials += 1
            if self.trials is not None and policy == CapturePolicy():  # a measurement's own policy says nothing
                self.trials.remember(_in_words(shapes), pays)
        if not pays or needed > policy.largest_share * torch.cuda.mem_get_info(device)[0]:
            return expected
        try:
            self._keep_if_right(shapes, inputs, expected)
        except Exception as error:  # a call must not fail because it could not be made faster
            log.info("a call could not be captured as a CUDA graph (%s)", in_brief(error))
            torch.cuda.synchronize(device)
        if not self._captured:
            self.clear()
        return expected

    def _keep_if_right(self, shapes: Shapes, inputs: tuple[torch.Tensor, ...], expected: Output) -> None:
        """Capture a call whose replay pays. Each capture is compared with the call."""
        device = inputs[0].device
        free = torch.cuda.mem_get_info(device)[0]
        captured = self._capture(inputs)
        apart = distance(captured.replay(inputs), expected)
        self.held_bytes += max(0, free - torch.cuda.mem_get_info(device)[0])
        kept = apart <= TOLERANCE
        if kept:
            if len(self._captured) >= policy.most:
                oldest = next(iter(self._captured))
                del self._captured[oldest]
                self._calls[oldest] = 0
            self._captured[shapes] = captured
            self._refused.discard(shapes)
            counters.captures += 1
        log.info(
            "%s calls of %s: relative L2 %.1e, %d MiB",
            "replaying" if kept else "not replaying",
            tuple(shapes[0]),
            apart,
            self.held_bytes >> 20,
        )

    def _capture(self, inputs: tuple[torch.Tensor, ...]) -> _Captured:
        device = inputs[0].device
        with torch.inference_mode(False), torch.no_grad():
            static_inputs = tuple(torch.empty_like(t).copy_(t) for t in inputs)
            graph, output = captured(lambda: self._function(*static_inputs), device, self._pool)
        self._pool, self._device = graph.pool(), device
        return _Captured(graph, torch.cuda.current_stream(device), static_inputs, output)


def captured(function: Callable[[], T], device: torch.device, pool: Any = None) -> tuple[torch.cuda.CUDAGraph, T]:
    """Capture what a function launches: the CUDA graph, whose replay computes what the function has returned.

    Args:
        pool: the memory of another CUDA graph, to share.
    """
    current, side = torch.cuda.current_stream(device), capture_stream(device)
    # Not torch.cuda.graph: that collects garbage and empties the allocator's cache, and stops other threads' work.
    graph = torch.cuda.CUDAGraph()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        graph.capture_begin(pool, "thread_local")
        try:
            output = function()
        finally:
            graph.capture_end()
    current.wait_stream(side)
    return graph, output


def _in_words(shapes: Shapes) -> str:
    return " ".join("x".join(map(str, shape)) for shape in shapes)


def distance(result: Output, expected: Output) -> float:
    """Relative L2, the largest of all tensors."""
    pairs = zip(tensors_of(result), tensors_of(expected), strict=True)
    distances = [(a.float() - b.float()).norm() / b.float().norm().clamp(min=1e-30) for a, b in pairs]
    return float(torch.stack(distances).max())  # Python's own max would lose a NaN


def _give_back(device: torch.device | None) -> None:
    """Let go of memory that no CUDA graph needs any more; of cudaMallocAsync's, torch knows no way."""
    if device is None or device.type != "cuda":
        return
    torch.cuda.empty_cache()
    with contextlib.suppress(OSError, AttributeError), torch.cuda.device(device):
        runtime = ctypes.CDLL(f"libcudart.so.{str(torch.version.cuda).partition('.')[0]}")
        runtime.cudaDeviceGraphMemTrim(torch.cuda.current_device())
