"""How a call is run: through the graph that serves it, or as the host makes it, with the reason counted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.models import toy
from support.store import entries

from onegraph.backends.inductor import InductorBackend
from onegraph.common import reasons
from onegraph.common.reasons import Reason
from onegraph.common.refused import Refused
from onegraph.graph_cache import integrity
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.publish import NewEntry
from onegraph.graph_cache.store import Store
from onegraph.runtime.calls.dispatch import Call, Dispatcher, Substituted
from onegraph.runtime.calls.run import Run
from onegraph.runtime.obtain import registry
from onegraph.runtime.obtain.registry import Registry
from onegraph.runtime.policy import ANY_SPEED
from onegraph.signature.declared import ShapeRange

UNIT = 8  # pixels
WHY = reasons.Ignored()  # any reason


def in_pixels(shapes: ShapeRange) -> ShapeRange:
    """Shapes whose sides are told in pixels."""
    sides = "height", "width"
    return dataclasses.replace(
        shapes, dims=tuple(dataclasses.replace(one, pixels=UNIT * (one.name in sides)) for one in shapes.dims)
    )


class Interrupt(BaseException):
    """A user's, as ComfyUI raises it."""


class Runner:
    """Computes the toy with the tensors it is bound to, as a graph does."""

    reads_in_place, cuda_graphs, held_bytes = True, None, 0

    def __init__(self) -> None:
        self._skeleton = toy.Toy()
        self._bound: dict[str, torch.Tensor] = {}
        self.raises: BaseException | None = None
        self.error = 0.0  # of the result
        self.given: list[tuple[torch.Tensor, ...]] = []

    def constant_names(self) -> list[str]:
        return [toy.PREFIX + name for name, _ in self._skeleton.named_parameters()]

    def bind(self, tensors: Any) -> None:
        self._bound = {name.removeprefix(toy.PREFIX): tensor for name, tensor in tensors.items()}

    def close(self) -> None:
        self._bound = {}

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        self.given.append(inputs)
        if self.raises is not None:
            raise self.raises
        result: torch.Tensor = torch.func.functional_call(self._skeleton, self._bound, inputs) + self.error
        return result


class Client(Dispatcher):
    """Whoever makes the calls: nothing is known of memory, and nobody follows a compile."""

    def follow(self, label: str) -> Callable[[object], None]:
        return lambda progress: None


class World:
    """A model, its graph in the store unless a test waits with it, and runs that call it."""

    def __init__(self, home: Path, source: ModelSource) -> None:
        self.module, self.runner = toy.Toy(3), Runner()
        self.request = toy.request(self.module, source, spec=in_pixels(toy.shapes()))
        self.source = source
        self.engine = Registry(Store(home), policy=ANY_SPEED)
        self.dispatcher = Client()
        self.inputs: tuple[torch.Tensor, ...] = toy.inputs()
        self.run = Run()
        self.originals = 0

    def publish(self) -> None:
        constants = toy.weight_table(self.module, toy.PREFIX)
        new = NewEntry("any size", ("graph.aoti",), constants, compile_seconds=1.0, made_by="0.1.0")
        entries.publish(self.engine.store, self.source, self.request.key, new=new)

    def prepared(self, **options: Any) -> Call:
        return Call(self.request, self.inputs, self.module, **{"when_missing": "eager", **options})

    def call(self, prepare: Callable[[], Call | Refused] | None = None, **options: Any) -> Any:
        """One call of the run, through the graph or as the host makes it."""

        def original() -> torch.Tensor:
            self.originals += 1
            return self.eager()

        return self.dispatcher.dispatch(self.run, self.module, prepare or (lambda: self.prepared(**options)), original)

    def eager(self) -> torch.Tensor:
        result: torch.Tensor = self.module(*self.inputs)
        return result

    def is_right(self, output: torch.Tensor) -> bool:
        return torch.allclose(output, self.eager(), atol=1e-6)

    def replace_weight(self) -> None:
        """As one who writes to a module's table: nobody is told."""
        table = self.module.inner._parameters
        table["weight"] = torch.nn.Parameter(torch.randn(8, 4, 3, 3), requires_grad=False)

    def counted(self) -> tuple[int, dict[Reason, int]]:
        """Compiled calls of the run, and the eager ones by reason; the process's counters say the same."""
        counters = self.engine.counters
        assert counters.eager_calls == sum(counters.reasons.values())
        return self.run.report.compiled_calls, dict(self.run.report.eager)

    def assert_eager(self, output: torch.Tensor, reason: Reason) -> None:
        """One call was made, as the host makes it, for this reason."""
        assert torch.equal(output, self.eager()) and self.originals == 1
        assert self.counted() == (0, {reason: 1})
        assert self.engine.counters.reasons == {reason: 1}
        assert not self.run.served


@pytest.fixture
def world(tmp_path: Path, source: ModelSource, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World(tmp_path, source)
    monkeypatch.setattr(InductorBackend, "load", lambda backend, folder, device: world.runner)
    with registry.using(world.engine):
        yield world


# What serves a call ------------------------------------------------------------------------------------------------


def test_a_graph_serves_a_call(world: World) -> None:
    world.publish()
    assert world.is_right(world.call())
    assert world.counted() == (1, {}) and world.originals == 0
    assert world.run.served and world.engine.counters.eager_calls == 0


def test_a_refusal_runs_the_original(world: World) -> None:
    world.publish()
    world.assert_eager(world.call(lambda: Refused(WHY)), WHY)
    assert world.runner.given == []


def test_a_size_outside_the_range_is_told_in_pixels(world: World) -> None:
    world.publish()
    world.inputs = toy.inputs(height=64)
    because = reasons.OutOfRange("height", 64, 4, 32, unit=UNIT)
    world.assert_eager(world.call(), reasons.NotAdmitted(because, world.request.label))
    assert "height 512 is outside 32..256 pixels" in world.run.report.text()


def test_what_surrounds_a_call_refuses_it(world: World) -> None:
    world.publish()
    with torch.autocast("cpu"):
        output = world.call()
        world.assert_eager(output, reasons.Autocast())
    assert world.is_right(world.call()) and world.run.report.compiled_calls == 1


def test_weights_that_are_not_there_run_the_original(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.publish()

    class Missing:
        def __enter__(self) -> Refused:
            return Refused(WHY)

        def __exit__(self, *error: object) -> None: ...

    monkeypatch.setattr(world.run, "weights", lambda module: Missing())
    world.assert_eager(world.call(), WHY)


def test_a_wrong_graph_gives_eagers_result(world: World) -> None:
    world.publish()
    world.runner.error = 1.0
    output = world.call()
    assert torch.equal(output, world.eager())
    ((reason, calls),) = world.run.report.eager.items()
    assert isinstance(reason, reasons.FirstUseFailed) and calls == 1
    assert world.counted()[0] == world.engine.counters.compiled_calls == 0


def test_a_graph_gets_contiguous_aligned_inputs(world: World) -> None:
    world.publish()
    x, context = toy.inputs()
    loose = torch.empty(x.numel() + 1)[1:].view(x.shape).copy_(x)
    world.inputs = loose, context.transpose(1, 2).contiguous().transpose(1, 2)
    assert world.is_right(world.call())
    assert all(t.is_contiguous() and t.data_ptr() % 16 == 0 for t in world.runner.given[0])


# What goes wrong ---------------------------------------------------------------------------------------------------


def test_an_error_while_preparing_gives_eager(world: World) -> None:
    def prepare() -> Call:
        raise KeyError("no such input")

    reason = reasons.CallFailed("KeyError", "'no such input'")
    world.assert_eager(world.call(prepare), reason)
    assert world.run.refusal == reason


def test_an_error_in_the_graph_gives_eager(world: World) -> None:
    world.publish()
    world.runner.raises = RuntimeError("kernel broke\nin a stack of lines")
    output = world.call()
    assert isinstance(world.run.refusal, reasons.CallFailed)
    assert world.run.refusal.type == "RuntimeError" and world.run.refusal.detail.startswith("kernel broke")
    world.assert_eager(output, world.run.refusal)


def test_an_error_in_a_judgement_gives_eager(world: World) -> None:
    def accept(inputs: Sequence[torch.Tensor], output: Any) -> Any:
        raise ValueError("cannot judge")

    world.publish()
    world.assert_eager(world.call(accept=accept), reasons.CallFailed("ValueError", "cannot judge"))


def test_an_error_of_the_original_is_the_hosts(world: World) -> None:
    def original() -> torch.Tensor:
        raise ValueError("of the model's own")

    with pytest.raises(ValueError, match="of the model's own"):
        world.dispatcher.dispatch(world.run, world.module, lambda: Refused(WHY), original)
    assert world.counted() == (0, {WHY: 1})


def test_an_interrupt_goes_through(world: World) -> None:
    def interrupted() -> Call:
        raise Interrupt

    world.publish()
    with pytest.raises(Interrupt):
        world.call(interrupted)
    world.runner.raises = Interrupt()
    with pytest.raises(Interrupt):
        world.call()
    assert world.originals == 0 and world.counted() == (0, {})
    world.runner.raises = None  # nothing stays locked
    assert world.is_right(world.call()) and world.counted() == (1, {})


# What a client makes of an output ----------------------------------------------------------------------------------


def test_an_output_instead_of_the_graphs_counts_as_eager(world: World) -> None:
    world.publish()
    output = world.call(accept=lambda inputs, output: Substituted(output * 0, WHY))
    assert not output.any() and world.originals == 0  # the client has computed it already
    assert world.counted() == (0, {WHY: 1}) and not world.run.served


def test_one_chunk_that_is_not_the_graphs_makes_the_call_eager(world: World) -> None:
    world.publish()

    def accept(inputs: Sequence[torch.Tensor], output: Any) -> Any:
        return Substituted(output * 0, WHY) if len(inputs[0]) == 1 else output

    world.inputs = toy.inputs(batch=3)
    output = world.call(accept=accept, chunk=2)
    assert torch.allclose(output[:2], world.eager()[:2], atol=1e-6) and not output[2:].any()
    assert world.counted() == (0, {WHY: 1}) and world.originals == 0


@pytest.mark.parametrize("chunk", [0, 1])
def test_a_judgement_that_refuses_runs_the_original(chunk: int, world: World) -> None:
    world.publish()
    world.assert_eager(world.call(accept=lambda inputs, output: Refused(WHY), chunk=chunk), WHY)
    assert len(world.runner.given[-1][0]) == (chunk or 2)


def test_no_further_chunk_runs_after_one_that_is_refused(world: World) -> None:
    world.publish()
    world.inputs = toy.inputs(batch=4)
    world.call(chunk=1)
    calls = len(world.runner.given)
    world.call(accept=lambda inputs, output: Refused(WHY), chunk=1)
    assert len(world.runner.given) == calls + 1 and world.originals == 1


# Refusals of a key -------------------------------------------------------------------------------------------------


def test_a_refused_key_stays_refused_in_that_run(world: World) -> None:
    world.call()
    world.publish()
    world.call()
    assert world.counted() == (0, {reasons.NoGraph(): 2}) and world.originals == 2
    world.run = Run()
    world.call()
    assert world.counted() == (1, {}) and world.originals == 2


def test_what_may_pass_is_asked_again_in_that_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*args: object) -> None:
        raise OSError(24, "Too many open files")

    world.publish()
    with monkeypatch.context() as patch:
        patch.setattr(integrity, "is_same", unreadable)
        world.call()
    assert world.run.refused == {} and world.originals == 1
    world.call()
    assert world.run.report.compiled_calls == 1 and world.run.report.eager.total() == 1


def test_a_graph_without_memory_is_refused_in_that_run_only(world: World) -> None:
    world.publish()
    world.runner.raises = torch.OutOfMemoryError("out of memory")
    world.call()
    world.runner.raises = None
    world.call()
    assert world.counted() == (0, {reasons.MemoryRanOut(): 2}) and world.run.refusal is None
    world.run = Run()
    assert world.is_right(world.call()) and world.counted() == (1, {})


# What a call is checked for ----------------------------------------------------------------------------------------


# Chunks ------------------------------------------------------------------------------------------------------------


def call(*inputs: torch.Tensor, chunk: int) -> Call:
    """A call of a batch and a table that belongs to no element of it."""
    specs = toy.TensorSpec("x", ("batch", 4), "float32"), toy.TensorSpec("table", ("rows", 4), "float32")
    shapes = toy.ShapeRange((toy.Dim("batch", 1, 4), toy.Dim("rows", 1, 8)), specs)
    request: Any = SimpleNamespace(shapes=shapes)
    return Call(request, inputs, lambda *given: given[0], "eager", chunk)


def test_a_batch_is_split_and_a_table_is_not() -> None:
    x, table = torch.randn(5, 4), torch.randn(5, 4)
    chunks = call(x, table, chunk=2).chunks()
    assert [[tuple(t.shape) for t in given] for given in chunks] == [
        [(2, 4), (5, 4)],
        [(2, 4), (5, 4)],
        [(1, 4), (5, 4)],
    ]
    assert torch.equal(torch.cat([x for x, _ in chunks]), x)


def test_what_fits_is_not_split() -> None:
    assert len(call(torch.randn(4, 4), torch.randn(8, 4), chunk=4).chunks()) == 1
    assert len(call(torch.randn(40, 4), torch.randn(8, 4), chunk=0).chunks()) == 1


def test_chunks_go_through_the_graph_and_come_back_as_one(world: World) -> None:
    world.publish()
    world.inputs = toy.inputs(batch=5)
    output = world.call(chunk=2)
    assert world.is_right(output) and world.counted() == (1, {})
    assert {len(x) for x, _ in world.runner.given} == {1, 2}


def test_an_input_has_its_values_in_memory(world: World) -> None:
    """Compiled code reads memory; a view of negated or conjugated numbers has others there than it says."""
    world.publish()
    usual = world.inputs
    world.inputs = tuple(torch._neg_view(x) if x.is_floating_point() else x for x in usual)
    assert any(x.is_neg() and x.is_contiguous() for x in world.inputs)
    assert world.is_right(world.call())
    for given, x in zip(world.runner.given[-1], usual, strict=True):
        assert not given.is_neg()
        assert torch.equal(given, -x if x.is_floating_point() else x)
