"""A step of a model whose blocks are small, such as one token of a text, as one CUDA graph of all its blocks' graphs.

Launching some ten kernels for each of 36 blocks takes a processor longer than a GPU needs for them. So where a step
came twice alike, what it launches is captured. The first block's call then replays it all, and the later ones find
their results there. Each call is checked as any other is, while the device computes; where it is given something else
than at the capture, it is launched as usual, and so are all after it in that step.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch

from ...backends import cuda_graphs
from ...common.errors import in_brief
from ...common.log import logger
from ...common.outputs import Output, output_of, tensors_of
from ...common.reasons import Reason
from ...common.torch_private import copy_into, writes_to
from .binding import Binding, Held
from .bound_runners import BoundRunner
from .captures import Captures

log = logger("runtime")

_LARGEST = 16 << 20  # bytes of all blocks' results, which a replay copies
_ALIGNED = 16  # bytes, as compiled code expects of each tensor
_ALIKE = 2  # steps before one is captured
_CAPTURES = 3  # of one run: where something changes again and again, none pays
_MISSED = 3  # steps in a row that were not as captured, after which it is forgotten

Inputs = tuple[torch.Tensor, ...]


class Graph(Protocol):
    """What is asked of a loaded graph."""

    @property
    def retired(self) -> Reason | None: ...

    @property
    def captures(self) -> Captures: ...

    def launched(self, bound: BoundRunner, inputs: Inputs) -> Output:
        """Launch a call of a runner, whatever it is bound to."""


class _Call(NamedTuple):
    """One call of a graph in a step."""

    graph: Graph
    bound: BoundRunner
    binding: Binding
    inputs: Inputs
    output: Output


class _Results(NamedTuple):
    """What a replay has computed: each call's results, in memory of this step alone, which counts writes to any."""

    memory: torch.Tensor
    version: int | None
    of: Sequence[Output]

    def are_unwritten(self) -> bool:
        return writes_to(self.memory) == self.version

    def expected(
        self, sources: Sequence[Sequence[int | tuple[int, int] | torch.Tensor]], given: Inputs
    ) -> list[Inputs]:
        """What each call of the step is to be given, where this is what was computed. `given`: to the first one."""
        of = [*map(tensors_of, self.of)]
        return [
            tuple(
                one if isinstance(one, torch.Tensor) else given[one] if isinstance(one, int) else of[one[0]][one[1]]
                for one in row
            )
            for row in sources
        ]


@dataclass(frozen=True)
class _Captured:
    """A captured step.

    Attributes:
        calls: those that were captured.
        sources: of each call's inputs: the number of one that the first call was given, of a result before, by the
            calls' number, or the tensor that it always is.
        given: copies of what the first call was given, which the CUDA graph reads; None: it reads the tensor itself.
        results: all calls' results one after the other, which the CUDA graph writes.
    """

    replay: Callable[[], None]
    stream: object
    calls: Sequence[_Call]
    sources: Sequence[Sequence[int | tuple[int, int] | torch.Tensor]]
    given: Sequence[torch.Tensor | None]
    results: torch.Tensor

    def launch(self, inputs: Inputs) -> _Results:
        """Compute a step from what its first call is given."""
        with torch.inference_mode(False), torch.no_grad():  # so that writes are counted, as of no inference tensor
            pairs = [(own, one) for own, one in zip(self.given, inputs, strict=True) if own is not None]
            if pairs:
                copy_into(*zip(*pairs, strict=True))
            self.replay()
            memory = self.results.clone()
            return _Results(memory, writes_to(memory), _apart(memory, [call.output for call in self.calls]))


class StepReplay:
    """The steps of one run of a model, in which nothing is launched but by graphs. Not thread-safe.

    Attributes:
        idle: whether a step is neither replayed nor noted, so that nobody needs to tell of its calls.
    """

    def __init__(self) -> None:
        self._captured: _Captured | None = None
        self._left = _CAPTURES
        self._alike = self._missed = 0
        self._before: list[_Call] = []
        self._calls: list[_Call] = []
        self._at = self._bytes = 0  # how many calls this step has had, and of how large results
        self._results: _Results | None = None  # of a replayed step
        self._allowed, self.idle = True, False
        self._expected: list[Inputs] = []  # by a replayed step's calls
        self._kept: list[object] = []  # the memory that a replay reads
        self.replays = 0

    def begin(self, *, allowed: bool = True) -> None:
        """Begin a step. `allowed`: whether it is known what happens between its calls."""
        self._at = self._bytes = 0
        self._calls, self._results, self._expected, self._kept, self._allowed = [], None, [], [], allowed
        self.idle = not allowed or (self._captured is None and not self._left)

    def end(self) -> None:
        """End it: capture it, where it was like the ones before. Never raises."""
        replayed = self._results is not None and self._at == len(self._results.of)
        calls, before = self._calls, self._before
        whole = 0 < self._at == len(calls)
        self.begin()
        self._missed = 0 if replayed or self._captured is None else self._missed + 1
        if self._missed >= _MISSED:
            self._captured, self._missed = None, 0
        if not whole or self._captured is not None or not self._left:
            return
        self._before = calls
        if _differ(calls, before):
            self._alike = 1
            return
        self._alike += 1
        if self._alike > _ALIKE:
            self._capture(calls, before)

    def call(
        self, graph: Graph, bound: BoundRunner, held: Held, inputs: Inputs, launch: Callable[[], Output]
    ) -> Output:
        """What a graph's call gives, which the caller checks afterwards.

        Args:
            held: the run's.
            launch: computes it by itself.
        """
        number, self._at = self._at, self._at + 1
        if not self._allowed:
            return launch()
        if number == 0 and self._captured is not None and self._replays(self._captured, inputs, held):
            self._results = self._captured.launch(inputs)
            self._expected = self._results.expected(self._captured.sources, inputs)
            self.replays += 1
        if self._results is not None:
            if self._is_expected(self._results, number, bound, inputs):
                return self._results.of[number]
            self._results = None
        output = launch()
        if self._left and bound.binding is not None:
            self._note(_Call(graph, bound, bound.binding, inputs, output))
        return output

    def _note(self, call: _Call) -> None:
        """Keep a call until the step after it, unless no step of such calls can be captured."""
        self._calls.append(call)
        self._bytes += sum(one.nbytes for one in tensors_of(call.output))
        if self._bytes > _LARGEST or not call.graph.captures.possible or not _is_plain(self._calls):
            self._left, self._calls, self._before = 0, [], []

    # Replays ------------------------------------------------------------------------------------------------

    def _replays(self, captured: _Captured, inputs: Inputs, held: Held) -> bool:
        """Whether a step may be replayed: all that the CUDA graph reads is where it was."""
        first = captured.calls[0]
        if len(inputs) != len(first.inputs) or captured.stream != _stream(first.inputs[0].device):
            return False
        for own, source, one, expected in zip(captured.given, captured.sources[0], inputs, first.inputs, strict=True):
            if (own is None and one is not source) or not _alike(one, expected):
                return False
        for call in captured.calls:
            if call.graph.retired is not None or call.bound.binding is not call.binding:
                self._captured = None  # it reads where nothing may be any more
                return False
            kept = held.hold(id(call.bound), call.binding)
            if kept is None or not call.binding.is_in(kept):
                self._captured = None
                return False
            self._kept.append(kept)
        return True

    def _is_expected(self, results: _Results, number: int, bound: BoundRunner, inputs: Inputs) -> bool:
        """Whether a call is given what the replay has computed with."""
        captured = self._captured
        if captured is None or number >= len(captured.calls) or bound is not captured.calls[number].bound:
            return False
        expected = self._expected[number]
        same = len(inputs) == len(expected) and all(map(operator.is_, inputs, expected))
        return same and results.are_unwritten()

    # Captures -----------------------------------------------------------------------------------------------

    def _capture(self, calls: list[_Call], before: list[_Call]) -> None:
        """Capture a step that was launched, if that can be done and its replay is right."""
        self._left -= 1
        self._before, self._alike = [], 0
        sources = _sources(calls, before)
        if sources is None:
            self._left = 0
            return
        try:
            with contextlib.ExitStack() as marked:
                for graph in {id(call.graph): call.graph for call in calls}.values():
                    marked.enter_context(graph.captures.marked())
                captured = _made(calls, sources)
                results = zip(captured.launch(calls[0].inputs).of, calls, strict=True)
                right = all(cuda_graphs.distance(one, call.output) <= cuda_graphs.TOLERANCE for one, call in results)
        except Exception as error:  # a call must not fail because it could not be made faster
            self._left = 0
            log.info("the blocks of a step could not be captured as a CUDA graph (%s)", in_brief(error))
            return
        log.debug("a step of %d blocks was captured%s", len(calls), "" if right else ", and is not used: it differs")
        if right:
            self._captured = captured
            cuda_graphs.counters.captures += 1
        else:
            self._left = 0


def _differ(calls: Sequence[_Call], before: Sequence[_Call]) -> bool:
    """Whether two steps are other calls, or of other graphs."""
    pairs = zip(calls, before, strict=False)
    return len(calls) != len(before) or any(a.bound is not b.bound or a.binding is not b.binding for a, b in pairs)


def _sources(
    calls: Sequence[_Call], before: Sequence[_Call]
) -> list[list[int | tuple[int, int] | torch.Tensor]] | None:
    """Where each input of a step's calls comes from, see `_Captured`; None: from elsewhere, so no replay knows it."""
    first = {id(one): number for number, one in enumerate(calls[0].inputs)}
    results: dict[int, tuple[int, int]] = {}
    found: list[list[int | tuple[int, int] | torch.Tensor]] = []
    for number, (call, earlier) in enumerate(zip(calls, before, strict=True)):
        row: list[int | tuple[int, int] | torch.Tensor] = []
        for one, same in zip(call.inputs, earlier.inputs, strict=True):
            if one is same:
                row.append(one)
            elif id(one) in first:
                row.append(first[id(one)])
            elif id(one) in results:
                row.append(results[id(one)])
            else:
                return None
        found.append(row)
        results |= {id(one): (number, place) for place, one in enumerate(tensors_of(call.output))}
    return found


def _is_plain(calls: Sequence[_Call]) -> bool:
    """Whether the results of the last of some calls are as parts of one tensor of all results would be."""
    dtype = tensors_of(calls[0].output)[0].dtype
    results = tensors_of(calls[-1].output)
    return all(one.is_contiguous() and one.dtype == dtype and not one.nbytes % _ALIGNED for one in results)


def _made(calls: Sequence[_Call], sources: Sequence[Sequence[Any]]) -> _Captured:
    """Capture a step's calls."""
    device = calls[0].inputs[0].device
    with torch.inference_mode(False), torch.no_grad():
        given = [
            None if isinstance(source, torch.Tensor) else torch.empty_like(one).copy_(one)
            for source, one in zip(sources[0], calls[0].inputs, strict=True)
        ]

        def step() -> torch.Tensor:
            outputs: list[Output] = []

            def of(source: Any) -> Any:
                if isinstance(source, torch.Tensor):
                    return source
                return given[source] if isinstance(source, int) else tensors_of(outputs[source[0]])[source[1]]

            for call, row in zip(calls, sources, strict=True):
                outputs.append(call.graph.launched(call.bound, tuple(map(of, row))))
            return torch.cat([one.reshape(-1) for output in outputs for one in tensors_of(output)])

        replay, results = cuda_graphs.captured(step, device)
    return _Captured(replay.replay, _stream(device), calls, sources, given, results)


def _apart(results: torch.Tensor, like: Sequence[Output]) -> list[Output]:
    """All results one after the other, as what each call returned."""
    shapes = [one.shape for output in like for one in tensors_of(output)]
    parts = iter(results.split([shape.numel() for shape in shapes]))
    return [output_of([next(parts).view(one.shape) for one in tensors_of(output)]) for output in like]


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.device == other.device


def _stream(device: torch.device) -> object:
    return torch.cuda.current_stream(device) if device.type == "cuda" else None
