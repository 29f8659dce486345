"""A model's blocks run through graphs inside its own forward, or eager with the reason; the result is eager's."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import toy_blocks
from support.models.toy_runs import Reported
from support.scenes.process import new_process

from onegraph.common.reasons import NoGraph
from onegraph.common.refused import Refused
from onegraph.compiler.blocks.outer_call import ModelCall
from onegraph.compiler.blocks.repeated import repeated_blocks
from onegraph.graph_cache.first_use_results import FIRST_USE_FILE
from onegraph.runtime.calls import block_kinds
from onegraph.runtime.calls.routing import Route
from onegraph.runtime.calls.run import Run
from onegraph.runtime.calls.session import BlockRun
from onegraph.runtime.guards.guard_cache import GuardCache
from onegraph.runtime.obtain import registry as registries
from onegraph.runtime.obtain.registry import Registry
from onegraph.runtime.policy import ANY_SPEED

FIRST = (2, 6, 10, 7)  # batch, height, width, tokens
OTHERS = [(1, 5, 7, 1), (4, 3, 8, 30), (1, 1, 2, 1), (2, 16, 16, 77)]


class Runs(Reported):
    """Runs of one model."""

    def __init__(self, model: toy_blocks.Model, client: toy_blocks.Client | None = None) -> None:
        self.model = model
        self.client = client or toy_blocks.Client()
        self._guards = GuardCache()
        self.start()

    def start(self) -> None:
        """Begin another run."""
        self.run = Run()
        self.blocks = BlockRun(self.client, self.run, self.model, self._guards)

    def __call__(self, *sizes: int, options: Any = None, **ways: bool) -> torch.Tensor:
        with self.blocks.call():
            found: torch.Tensor = self.model(*toy_blocks.call(*sizes), {} if options is None else options, **ways)
        return found

    def check(self, *sizes: int, options: Any = None, **ways: bool) -> None:
        """A call equals eager's."""
        found = self(*sizes, options=options, **ways)
        assert not self.routed
        wanted = self.model(*toy_blocks.call(*sizes), {} if options is None else options, **ways)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)

    @property
    def routed(self) -> bool:
        """Whether calls of a block are anybody's but its class's."""
        return any(type(vars(module).get("forward")) is Route for module in self.model.modules())


@pytest.fixture(scope="module")
def compiled_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with the graphs of the toy's two kinds; copy it to change it."""
    home = tmp_path_factory.mktemp("blocks")
    with new_process(home), torch.no_grad():
        runs = Runs(toy_blocks.model())
        runs.check(*FIRST)
        assert runs.eager == {"block_recorded": 5}
        runs.check(*FIRST)
        assert (runs.compiled, registries.registry().counters.compiles) == (5, 2)
        assert runs.run.report.text().startswith("block graphs: 5 of 5 blocks compiled, 2 kinds, compiled in ")
    return home


@pytest.fixture
def engine(compiled_home: Path, tmp_path: Path) -> Iterator[Registry]:
    with new_process(Path(shutil.copytree(compiled_home, tmp_path / "home"))) as made:
        yield made


def test_all_sizes_are_served_by_restored_graphs(engine: Registry) -> None:
    runs = Runs(toy_blocks.model())
    for sizes in [FIRST, *OTHERS]:
        runs.check(*sizes)
    assert (runs.compiled, runs.eager) == (25, {})
    assert (engine.counters.restores, engine.counters.compiles) == (2, 0)
    assert runs.run.report.blocks.kinds == 2
    runs.start()
    runs.check(*FIRST)
    assert engine.counters.binds == 5  # once for each block


def test_models_take_turns_on_the_same_graphs(engine: Registry) -> None:
    first, second = Runs(toy_blocks.model(1)), Runs(toy_blocks.model(2))
    for runs in (first, second, first, second):
        runs.check(*FIRST)
    assert (engine.counters.binds, first.eager, second.eager) == (10, {}, {})


def _scaled(block: Any) -> None:
    block.first.weight = torch.nn.Parameter(block.first.weight * 2, requires_grad=False)


def _in_place(block: Any) -> None:
    block.first.weight.mul_(3)


def _by_data(block: Any) -> None:
    block.first.weight.data = block.first.weight.data * -2


def _exchanged(block: Any) -> None:
    block.second = copy.deepcopy(block.second)
    block.second.weight.mul_(0.5)


@pytest.mark.parametrize("another_run", [True, False])
@pytest.mark.parametrize("change", [_scaled, _in_place, _by_data, _exchanged])
def test_weights_that_change_are_the_ones_computed_with(
    engine: Registry, change: Callable[[Any], None], another_run: bool
) -> None:
    runs = Runs(toy_blocks.model())
    runs.check(*FIRST)
    change(runs.model.singles[1])
    if another_run:
        runs.start()
    runs.check(*FIRST)
    assert runs.eager == {}


def _hooked(block: Any) -> None:
    block.first.register_forward_hook(lambda module, args, output: output + 1)


def _method(block: Any) -> None:
    own = block.second.forward
    block.second.forward = lambda x: own(x) * 2


def _wider(block: Any) -> None:
    block.first.weight = torch.nn.Parameter(block.first.weight.t().contiguous().t(), requires_grad=False)


@pytest.mark.parametrize(
    ("change", "another_run"),
    [
        (_hooked, True), (_method, True), (_wider, True), (_method, False),
        pytest.param(_hooked, False, marks=pytest.mark.full), pytest.param(_wider, False, marks=pytest.mark.full),
    ],
)  # fmt: skip
def test_a_block_that_is_changed_runs_eager_alone(
    engine: Registry, change: Callable[[Any], None], another_run: bool
) -> None:
    runs = Runs(toy_blocks.model())
    runs.check(*FIRST)
    before = runs.compiled
    change(runs.model.singles[1])
    if another_run:
        runs.start()
        before = 0
    runs.check(*FIRST)
    assert sum(runs.eager.values()) == 1 and runs.compiled == before + 4


def test_a_forward_of_somebody_else_is_left_alone(engine: Registry) -> None:
    runs = Runs(toy_blocks.model())
    block: Any = runs.model.doubles[0]
    own, calls = block.forward, []
    block.forward = lambda *args, **kwargs: calls.append(1) or own(*args, **kwargs)
    with runs.blocks.call(True):
        found = runs.model(*toy_blocks.call(*FIRST), {})
    assert calls == [1] and runs.compiled == 4 and "forward" in vars(block)
    assert runs.eager == {"block_replaced": 1}
    torch.testing.assert_close(found, runs.model(*toy_blocks.call(*FIRST), {}), rtol=1e-4, atol=1e-5)


def test_blocks_that_are_called_by_another_method_are_told_of(engine: Registry) -> None:
    class Single(toy_blocks.Single):
        computed = toy_blocks.Single.forward

    class Model(toy_blocks.Model):
        def forward(self, x: Any, *rest: Any) -> Any:
            tokens = self.enter(x.flatten(2).transpose(1, 2))
            modulation = toy_blocks.Modulation(tokens.mean(1), tokens.mean(1))
            for block in self.singles:
                tokens = block.computed(tokens, modulation, transformer_options={})
            return tokens

    model = Model()
    model.singles = torch.nn.ModuleList([Single(16) for _ in range(3)])
    runs = Runs(model.eval().requires_grad_(False))
    assert runs.run.report.text() == "stopped before the first step was done"
    for _ in range(2):
        runs(*FIRST)
    assert "by other methods than forward" in runs.run.report.text()
    runs.run.report.restart()
    assert runs.run.report.text() == "stopped before the first step was done"


def test_options_that_blocks_read_decide(engine: Registry) -> None:
    runs = Runs(toy_blocks.model())

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v) * 0.5

    runs.check(*FIRST, options={"heads": 3})  # only the single ones ask for it
    assert (runs.compiled, runs.eager) == (2, {"block_option": 3})
    runs.check(*FIRST, options={"optimized_attention_override": attention})
    assert (runs.compiled, runs.eager) == (5, {"block_option": 5})  # never another attention; the single ones have none
    runs.check(*FIRST, options={"unknown": object(), "patches": {"post_input": [1]}})
    assert (runs.compiled, runs.eager) == (10, {"block_option": 5})


def test_another_form_of_call_is_a_kind_of_its_own(engine: Registry) -> None:
    runs = Runs(toy_blocks.model(), toy_blocks.Client("eager"))
    runs.check(*FIRST, indexed=True)
    assert (runs.compiled, runs.eager) == (2, {"no_graph": 3})


def test_tensors_that_are_broadcast_otherwise_are_of_another_kind(engine: Registry) -> None:
    """One modulation for all of a batch; a batch of one is of the kind that there was first."""
    runs = Runs(toy_blocks.model())
    runs.check(*FIRST, shared=True)
    assert (runs.eager, engine.counters.restores, engine.counters.compiles) == ({"block_recorded": 5}, 2, 2)
    for sizes in [FIRST, *OTHERS]:
        runs.check(*sizes, shared=True)
        runs.check(*sizes)
    assert (runs.compiled, runs.eager, runs.run.report.blocks.kinds) == (50, {"block_recorded": 5}, 4)
    assert len(next(iter(runs.blocks._blocks.values())).kinds) == 2
    again = Registry(engine.store, policy=ANY_SPEED)
    with registries.using(again):
        runs = Runs(toy_blocks.model())
        runs.check(*FIRST, shared=True)
        runs.check(*OTHERS[0])
        assert (runs.compiled, runs.eager) == (10, {})
        assert (again.counters.restores, again.counters.compiles) == (4, 0)


def test_an_exception_in_the_middle_leaves_nothing(engine: Registry) -> None:
    runs = Runs(toy_blocks.model())
    runs.check(*FIRST)

    def fails(*args: Any) -> Any:
        raise KeyboardInterrupt

    runs.model.leave.register_forward_hook(fails)
    with pytest.raises(KeyboardInterrupt):
        runs(*FIRST)
    assert not runs.routed
    runs.model.leave._forward_hooks.clear()
    runs.check(*FIRST)


def test_two_threads_on_one_model(engine: Registry) -> None:
    """One with a session, one without: each result is right, and only the first one's blocks are counted."""
    runs = Runs(toy_blocks.model())
    runs.check(*FIRST)
    wanted = runs.model(*toy_blocks.call(*FIRST), {})
    found: list[torch.Tensor] = []
    stop = threading.Event()

    def eager() -> None:
        with torch.no_grad():
            while not stop.is_set():
                found.append(runs.model(*toy_blocks.call(*FIRST), {}))

    thread = threading.Thread(target=eager)
    thread.start()
    with contextlib.suppress(AssertionError):
        for _ in range(30):
            torch.testing.assert_close(runs(*FIRST), wanted, rtol=1e-4, atol=1e-5)
    stop.set()
    thread.join()
    assert runs.compiled == 5 + 30 * 5
    assert found and all(torch.allclose(one, wanted, rtol=1e-4, atol=1e-5) for one in found)


def test_a_tensor_given_twice_that_is_changed(engine: Registry) -> None:
    runs = Runs(toy_blocks.model())
    block: Any = runs.model.doubles[0]

    def shared() -> Any:
        torch.manual_seed(0)
        both = torch.randn(2, 9, 16)
        vec = toy_blocks.Modulation(both[:, 0].clone(), both[:, 1].clone())
        return block(both, both, vec, torch.zeros(1, 18, 4), None, {})

    runs.check(*FIRST)
    with runs.blocks.call(True):
        found = shared()
    torch.testing.assert_close(found, shared(), rtol=0, atol=0)
    assert runs.eager == {"block_shared": 1}


@pytest.mark.parametrize("check", ["first use", "spot check"])
def test_a_graph_that_loses_what_its_block_writes_is_found(
    engine: Registry, check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled elsewhere, by code that did not see it."""
    if check == "first use":
        for file in engine.store.home.rglob(FIRST_USE_FILE):
            file.unlink()
    policy = dataclasses.replace(ANY_SPEED, checks_share=1.0)
    with registries.using(Registry(engine.store, policy=policy)) as registry:
        runs = Runs(toy_blocks.model())
        if check == "spot check":
            runs.check(*FIRST)
        monkeypatch.setattr(toy_blocks, "writing", True)
        for _ in range(1000):  # at the first use, or soon
            (runs if check == "spot check" else runs.check)(*FIRST)
            if "first_use_failed" in runs.eager:
                break
        texts = {reason.text for reason in runs.run.report.blocks.eager}
        assert any("writes into a list, a dictionary or an object that it is given (Single)" in text for text in texts)
        before = runs.eager["first_use_failed"]
        runs.check(*FIRST)
        assert runs.eager["first_use_failed"] == before + 3 and registry.counters.compiles == 0


def test_a_block_that_writes_into_what_it_is_given_is_not_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toy_blocks, "writing", True)
    monkeypatch.setattr(block_kinds, "obtain_all", lambda requests, *args: [Refused(NoGraph()) for _ in requests])
    with new_process(tmp_path):
        runs = Runs(toy_blocks.model())
        for _ in range(2):
            runs.check(*FIRST)
        assert runs.eager == {"block_recorded": 3, "block_writes": 5, "no_graph": 2}


def test_sixty_runs_hold_no_more(engine: Registry) -> None:
    runs = Runs(toy_blocks.model())
    runs.check(*FIRST)
    graphs = engine.graphs()
    for number in range(60):
        runs.model.singles[number % 3].first.weight = torch.nn.Parameter(torch.randn(32, 16) / 8, requires_grad=False)
        runs.start()
        runs.check(*OTHERS[number % 4])
    assert engine.graphs() == graphs and engine.counters.restores == 2
    held = [one for graph in graphs for one in graph._runners]
    assert len(held) == len(repeated_blocks(runs.model))
    model = runs.model
    del runs, model
    assert sum(1 for graph in graphs for one in graph._runners if one.binding and one.binding.module()) == 0


def test_calls_that_differ_each_time_do_not_compile_without_end(engine: Registry, monkeypatch: Any) -> None:
    asked: set[str] = set()

    def obtain_all(requests: Any, *args: Any) -> Any:
        asked.update(request.key.digest for request in requests)
        return [Refused(NoGraph()) for _ in requests]

    monkeypatch.setattr(block_kinds, "obtain_all", obtain_all)
    for _ in range(3):  # runs of one process
        runs = Runs(toy_blocks.model())
        runs.check(*FIRST)
        single: Any = runs.model.singles[0]
        for number in range(12):
            x, vec = torch.randn(1, 3, 16), toy_blocks.Modulation(torch.randn(1, 16), torch.randn(1, 16))
            with runs.blocks.call(ModelCall((*toy_blocks.call(*FIRST), {}), {})):
                single(x, vec, start=-1 - number, transformer_options={})
        assert runs.eager["too_many_kinds"] >= 5
    assert 0 < len(asked) <= block_kinds.MOST_KINDS


def test_options_of_another_kind_are_nobodys(engine: Registry) -> None:
    class Options(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            return 3 if key == "heads" else super().get(key, default)

    runs = Runs(toy_blocks.model())
    runs.check(*FIRST, options=Options())
    assert (runs.compiled, runs.eager) == (0, {"block_argument": 5})


def test_gradients_of_one_block_are_eagers(engine: Registry) -> None:
    runs = Runs(toy_blocks.model())
    runs.check(*FIRST)
    runs.model.singles[1].first.weight.requires_grad_(True)
    with torch.enable_grad():
        found = runs(*FIRST)
    assert found.requires_grad and runs.eager["gradients"] >= 2


def test_weights_that_cannot_be_had_raise_nothing(engine: Registry) -> None:
    runs = Runs(toy_blocks.model())

    def fails(module: torch.nn.Module) -> Any:
        raise OSError("no pages")

    runs.run.weights = fails  # type: ignore[method-assign]
    runs.check(*FIRST)
    assert (runs.compiled, runs.run.report.eager_codes) == (0, {"not_inspected": 1})
    runs.check(*FIRST)
    assert runs.run.report.eager_codes == {"not_inspected": 2}


def test_the_report_tells_programs_the_same(engine: Registry) -> None:
    runs = Runs(toy_blocks.model())
    runs.check(*FIRST)
    found = runs.run.report.to_json()
    blocks = found["blocks"]
    speedup = blocks.pop("speedup")
    assert found["speedup"] is None and (speedup is None or speedup > 0)  # no call of the whole model was timed
    assert blocks == {
        "of": 5, "compiled": 5, "kinds": 2, "calls": 5, "resident": 5, "streamed": 0, "streamed_bytes": 0,
        "modulation": {"kept": 0, "computed": 0},
        "inexact_codes": [],
        "eager_calls": {}, "eager_codes": {},
    }  # fmt: skip
    assert found["restore_s"] > 0 and found["compile_s"] is None and found["compiled_calls"] == 1
