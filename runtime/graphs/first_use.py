"""The first use of a graph on a machine: compare it with eager on real inputs, time both, remember the result."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch

from ...common import reasons
from ...common.errors import in_brief
from ...common.log import logger
from ...common.outputs import Output, mapped, tensors_of
from ...common.reasons import Reason
from ...common.torch_private import driver_version
from ...graph_cache.entry import Entry
from ...graph_cache.first_use_results import FirstUse
from ...graph_cache.store import Store
from ..policy import Policy
from . import faithfulness

T = TypeVar("T")
log = logger("runtime")

_PAIRS = 3  # at most, besides the one that is compared, of a first call; one of each later one
_IN_A_ROW_MS = 20.0  # of short calls on a GPU that are timed together: alone, launching kernels takes longest
_PARTS_OF_FREE = 16  # of a device's memory, of which a result that is to be compared may take one
_MOST_REPLAYS = 64  # shapes of which it is remembered whether replaying pays
_CALLS = 3  # that must give an unlikely speed before it is believed: a busy machine is one for seconds


@dataclass(frozen=True)
class ChangingEager:
    """A function without a graph that changes some of its inputs in place, and returns these.

    Attributes:
        changed: numbers of the inputs.
    """

    run: Callable[..., Output]
    changed: tuple[int, ...]

    def __call__(self, *inputs: torch.Tensor) -> Output:
        return self.run(*inputs)


@dataclass(frozen=True)
class QuantisingEager:
    """A function without a graph whose weights are quantised.

    Attributes:
        exact: the same function in float32, with weights that were dequantised and inputs that are not quantised.
        part: a smaller call of the graph that is cut from some inputs, at most a quarter, so that float32 takes less
            memory than the whole call does; None: they are small already, or cannot be cut.
    """

    run: Callable[..., Output]
    exact: Callable[..., Output]
    part: Callable[[tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...] | None]

    def __call__(self, *inputs: torch.Tensor) -> Output:
        return self.run(*inputs)


@dataclass(frozen=True)
class Comparison:
    """A call by the graph and by eager.

    Attributes:
        inputs: of both.
        sizes: named dimensions of the inputs.
        run: the graph.
        eager: the same function without a graph.
    """

    inputs: tuple[torch.Tensor, ...]
    sizes: Mapping[str, int]
    run: Callable[[tuple[torch.Tensor, ...]], Output]
    eager: Callable[..., Output]

    @contextlib.contextmanager
    def restoring(self) -> Iterator[None]:
        """While this lasts, eager changes inputs as it does without a graph; then they are what they were before."""
        eager = self.eager.run if isinstance(self.eager, QuantisingEager) else self.eager
        changed = [self.inputs[number] for number in eager.changed] if isinstance(eager, ChangingEager) else []
        before = tensors_of(parked(tuple(changed)))
        try:
            yield
        finally:
            for one, value in zip(changed, before, strict=True):
                one.copy_(value)

    def reference(self) -> Output:
        """Eager's result, a copy of its own."""
        with self.restoring():
            return mapped(torch.clone, self.eager(*self.inputs))

    def verdict(self, output: Output, reference: Output) -> faithfulness.Faithful | faithfulness.Unfaithful:
        """Judge the graph's output beside eager's, both for all of the inputs.

        Where weights are quantised, it is judged by the exact result of a part of the call: float32 for all of it takes
        twice what eager takes.
        """
        if not isinstance(self.eager, QuantisingEager):
            return faithfulness.compare(output, reference)
        try:
            part = self.eager.part(self.inputs)
            if part is None:
                return faithfulness.compare_quantised(output, reference, self.eager.exact(*self.inputs))
            result, exact = self.run(part), self.eager.exact(*part)
            judged = faithfulness.compare_quantised(result, self.eager(*part), exact)
        except Exception as error:  # there is no room for it, or the model's code takes no float32
            log.info("no exact result to judge a quantised graph by: %s", in_brief(error))
            judged = faithfulness.Faithful(0.0, inexact=reasons.NotComparedExactly(type(error).__name__))
        if isinstance(judged, faithfulness.Unfaithful):
            return judged
        return faithfulness.compare(output, reference, judged)

    @property
    def group(self) -> str:
        """Which dimensions have size 1: kernels may treat those in their own way, so each group is compared once."""
        return _group(self.sizes)


def _group(sizes: Mapping[str, int]) -> str:
    return ",".join(name for name, size in sorted(sizes.items()) if size == 1) or "n"


@dataclass
class _Timing:
    """The fastest calls of some sizes so far in ms; set-up at a first call and noise only ever add time.

    Attributes:
        calls: in how many of the user's calls they were measured.
    """

    compiled: float = math.inf
    eager: float = math.inf
    calls: int = 0

    def add(self, compiled: float, eager: float) -> None:
        self.compiled, self.eager = min(self.compiled, compiled), min(self.eager, eager)

    @property
    def speedup(self) -> float:
        return self.eager / max(self.compiled, 1e-6)


@dataclass(frozen=True)
class CheckFailed:
    """The graph is wrong; `reference` is eager's result."""

    reason: Reason
    reference: Output


class FirstUseCheck:
    """What first uses of one graph on this machine showed, and those that are still due.

    Attributes:
        inexact: why the last comparison was with eager alone, where it is with the exact result else; or None.
    """

    def __init__(self, store: Store, entry: Entry, policy: Policy, device: torch.device, environment: str) -> None:
        self._store = store
        self._entry = entry
        self._policy = policy
        self._device = device
        self._timings: dict[tuple[tuple[str, int], ...], _Timing] = {}
        self._compared: Mapping[str, int] | None = None  # sizes that nothing is due for
        self._slower: Reason | None = None
        self.inexact: Reason | None = None
        self.result = store.first_use(entry)
        if self.result.environment != environment:
            self.result = self.result.model_copy(update={"environment": environment, "checked": {}, "replays": {}})
        if self.slower() is not None and self.result.slow_processes < policy.slow_processes:
            # Measured on a busy machine, perhaps: a fast graph is trusted at once, a slow one after some processes.
            self.result = self.result.model_copy(update={"eager_ms": None, "compiled_ms": None})

    @property
    def result(self) -> FirstUse:
        """What is known."""
        return self._result

    @result.setter
    def result(self, first_use: FirstUse) -> None:
        self._result, self._compared, speedup = first_use, None, first_use.speedup
        slow = speedup is not None and speedup < self._policy.slower
        self._slower = reasons.SlowerThanEager(round(speedup, 3)) if slow and speedup is not None else None

    def slower(self) -> Reason | None:
        """Why eager is kept although the graph is right, or None."""
        return self._slower

    def due(self, sizes: Mapping[str, int]) -> bool:
        """Whether a call of these sizes was not compared or timed yet. A mapping that was asked for must not change."""
        if sizes is self._compared:
            return False
        if _group(sizes) not in self.result.checked or self.result.compiled_ms is None:
            return True
        self._compared = sizes
        return False

    def pays(self, shapes: str) -> bool | None:
        """See `cuda_graphs.Trials`."""
        return self.result.replays.get(shapes)

    def remember(self, shapes: str, pays: bool) -> None:
        """See `cuda_graphs.Trials`; the last ones of many are kept."""
        others = {other: one for other, one in self.result.replays.items() if other != shapes}
        kept = [*others.items(), (shapes, pays)][-_MOST_REPLAYS:]
        self.result = self.result.model_copy(update={"replays": dict(kept)})
        self._store.remember(self._entry, self.result)

    def note_captured(self, captured: bool) -> None:
        """Remember whether a child process could capture a call."""
        self.result = self.result.model_copy(update={"captured": captured})
        self._store.remember(self._entry, self.result)

    def is_usual(self, verdict: faithfulness.Faithful | faithfulness.Unfaithful) -> bool:
        """Whether a result is as near to eager's as those that were found to be as exact as eager.

        A quantised graph is judged by a third run, in float32, which takes its time: not for each check.
        """
        usual = max(self.result.checked.values(), default=0.0)
        return isinstance(verdict, faithfulness.Faithful) and verdict.rel_l2 <= usual

    def note_usual(self, group: str, verdict: faithfulness.Faithful) -> None:
        """Remember a distance that was judged by the exact result, which takes its time: as far is not judged again."""
        self.inexact = verdict.inexact
        checked = {**self.result.checked, group: max(verdict.rel_l2, self.result.checked.get(group, 0.0))}
        self.result = self.result.model_copy(update={"checked": checked})
        self._store.remember(self._entry, self.result)

    def check(self, comparison: Comparison) -> Output | CheckFailed:
        """Compare and time a call, and record what it shows beside the manifest.

        A speed that is lower than eager's, or too high to be true, is recorded after several calls.

        Returns:
            The graph's result, or why it is wrong.
        """
        started = time.perf_counter()
        compiled_ms, output = timed(lambda: comparison.run(comparison.inputs), self._device)
        output = parked(output)  # eager needs what it needs without a graph, and the graph needs no more beside it
        with comparison.restoring():
            eager_ms, reference = timed(lambda: comparison.eager(*comparison.inputs), self._device)
            reference = parked(reference)
        verdict = comparison.verdict(output, reference)
        if isinstance(verdict, faithfulness.Unfaithful):
            return CheckFailed(reasons.FirstUseFailed(verdict.reason), fetched(reference, self._device))
        del reference
        self.inexact = verdict.inexact
        if not verdict.telling:  # a broken latent says nothing of the graph: the next call is compared
            return fetched(output, self._device)
        checked = {**self.result.checked, comparison.group: verdict.rel_l2}
        result = self.result.model_copy(update={"checked": checked, "driver": driver_of(self._device)})
        if result.compiled_ms is None:
            timing = self._timings.setdefault(tuple(sorted(comparison.sizes.items())), _Timing())
            timing.add(compiled_ms, eager_ms)
            with comparison.restoring():
                self._measure(comparison, timing, in_a_row(eager_ms, self._device), started)
            timing.calls += 1
            if self._is_likely(timing) or timing.calls >= _CALLS:
                result = result.model_copy(update=self._decided(timing, comparison))
        self.result = result
        self._store.remember(self._entry, result)
        return fetched(output, self._device)

    def _measure(self, comparison: Comparison, timing: _Timing, times: int, started: float) -> None:
        """Time pairs of calls until their speed is one that graphs have."""
        for _ in range(1 if timing.calls else _PAIRS):
            if time.perf_counter() - started > self._policy.measuring_seconds[self._device.type]:
                break
            compiled_ms = timed(lambda: comparison.run(comparison.inputs), self._device, times)[0]
            timing.add(compiled_ms, timed(lambda: comparison.eager(*comparison.inputs), self._device, times)[0])
            if self._is_likely(timing):
                break

    def _is_likely(self, timing: _Timing) -> bool:
        """Whether a speed is one that graphs have. Any other is measured again, for the machine may be busy."""
        return max(1.0, self._policy.slower) <= timing.speedup <= self._policy.fastest or self._policy.slower == 0

    def _decided(self, timing: _Timing, comparison: Comparison) -> dict[str, object]:
        size = ", ".join(f"{name} {value}" for name, value in comparison.sizes.items())
        slow = self.result.slow_processes + 1 if timing.speedup < self._policy.slower else 0
        return {"eager_ms": timing.eager, "compiled_ms": timing.compiled, "size": size, "slow_processes": slow}


def parked(output: Output) -> Output:
    """A copy of an output, in system memory where what runs next may need its room on the device."""
    tensors = tensors_of(output)
    stays = bool(tensors) and _has_room(sum(one.nbytes for one in tensors), tensors[0].device)
    return mapped(torch.clone if stays else _in_system_memory, output)


def _has_room(size: int, device: torch.device) -> bool:
    """Whether so many bytes are a small part of what is free: a video's blocks return gigabytes, which take seconds to
    copy from the device and to compare there again."""
    if device.type != "cuda":
        return device.type == "cpu"
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return _PARTS_OF_FREE * size <= torch.cuda.mem_get_info(device)[0] + unused


def _in_system_memory(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, device="cpu").copy_(tensor)


def fetched(output: Output, device: torch.device) -> Output:
    """A parked output on its device."""
    return mapped(lambda tensor: tensor.to(device), output)


def driver_of(device: torch.device) -> str:
    """The version of a GPU's driver, which results of other machines must have, too; empty for a CPU."""
    return driver_version() if device.type == "cuda" else ""


def in_a_row(milliseconds: float, device: torch.device) -> int:
    """How many calls that take so long are timed together, as in a run: on a GPU they are launched ahead."""
    return max(1, min(8, int(_IN_A_ROW_MS / max(milliseconds, 1e-3)))) if device.type == "cuda" else 1


def timed(call: Callable[[], T], device: torch.device, times: int = 1) -> tuple[float, T]:
    """Call something so many times.

    Returns:
        Milliseconds of a call, until the device is done, and the last one's result.
    """

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    wait()
    started = time.perf_counter()
    for _ in range(times - 1):
        call()
    output = call()
    wait()
    return 1e3 * (time.perf_counter() - started) / times, output
