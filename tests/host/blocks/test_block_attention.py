"""Blocks attend by the function that the user chose, called by their graphs: the latent is eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.models import dits
from support.scenes.nodes import assert_close, blocks, compiled

from onegraph.runtime.counters import Counters

OVERRIDE = "optimized_attention_override"
FAMILIES = [
    pytest.param(name, marks=() if name == "flux" else pytest.mark.full)
    for name in ("flux", "z-image", "qwen-image", "wan 2.1 t2v", "minimax h3", "ltx 2", "krea 2", "sd 3.5")
]
Override = Callable[..., Any]

_NOT_COMPILED = {"waits_for_change", "capture_failed", "block_small"}  # parts of models that are no blocks to speak of


def overridden(model: Any, override: Override) -> Any:
    changed = model.clone()
    changed.model_options["transformer_options"][OVERRIDE] = override
    return changed


def check(plain: Any, name: str, *args: int, **options: Any) -> dict[str, Any]:
    """A sampling of a model equals that of its compiled clone; what that one's run says of its blocks."""
    wanted = dits.sample(plain, name, *args, **options)
    found = dits.sample(compiled(plain), name, *args, **options)
    assert_close(found, wanted)
    return blocks()


class Halving:
    """Halves what attention returns, and counts its calls."""

    def __init__(self, factor: float = 0.5) -> None:
        self.factor, self.calls = factor, 0

    def __call__(self, function: Override, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return function(*args, **kwargs) * self.factor


def known(name: str, counters: Counters) -> tuple[Any, int]:
    """A model of a family whose graphs of called attention are there, and how many calls of blocks they serve."""
    model = dits.load(name)
    dits.sample(compiled(model), name, steps=1)
    plain = check(model, name)
    dits.sample(compiled(overridden(model, Halving())), name, steps=1)
    compiles = counters.compiles
    report = check(overridden(model, Halving()), name)
    assert counters.compiles == compiles
    assert report["calls"] == plain["calls"] > 0, report
    assert not {*report["eager_codes"]} - _NOT_COMPILED, report
    return model, report["calls"]


@pytest.mark.parametrize("name", FAMILIES)
def test_an_override_is_called_as_often_as_by_eager(name: str, counters: Counters) -> None:
    model, served = known(name, counters)
    compiles = counters.compiles
    halving = Halving(0.25)
    changed = overridden(model, halving)
    wanted = dits.sample(changed, name)
    calls, halving.calls = halving.calls, 0
    found = dits.sample(compiled(changed), name)
    assert_close(found, wanted)
    assert halving.calls == calls > 0  # by the comparisons of a first use not once
    assert (blocks()["calls"], counters.compiles) == (served, compiles)
    assert check(model, name)["calls"] == served  # and without it as ever
    assert counters.compiles == compiles


@pytest.mark.parametrize("name", FAMILIES)
def test_an_override_sees_what_eager_gives_it(name: str, counters: Counters) -> None:
    model, served = known(name, counters)
    seen: list[Any] = []

    def looks(function: Override, *args: Any, **kwargs: Any) -> Any:
        options = kwargs["transformer_options"]
        index = options.get("block_index", -1) if options is not None else -1
        if options is not None and "sigmas" in options:
            index += float(options["sigmas"][0])
        shapes = [(tuple(one.shape), one.stride()) if isinstance(one, torch.Tensor) else one for one in args]
        rest = {key: one for key, one in kwargs.items() if not isinstance(one, dict | torch.Tensor)}
        seen.append((function.__name__, shapes, rest, sorted(map(str, options)), index))
        return function(*args, **kwargs) * (1.0 + 0.1 * index)

    changed = overridden(model, looks)
    wanted = dits.sample(changed, name)
    by_eager, seen[:] = [*seen], []
    found = dits.sample(compiled(changed), name)
    assert_close(found, wanted)
    assert blocks()["calls"] == served
    assert seen == by_eager


def _in_place(function: Override, q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
    q.mul_(0.5)
    v.add_(0.25)
    found = function(q, k, v, *args, **kwargs)
    k.zero_()
    return found


def _same_memory(function: Override, q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
    found = function(q, k, v, *args, **kwargs)
    return q.copy_(found) if found.shape == q.shape else q.reshape(found.shape)


class Keeping:
    """Mixes what it was given at the call before into each call, as packages that share attention do."""

    def __init__(self) -> None:
        self.kept: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def __call__(self, function: Override, q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
        found = function(q, k, v, *args, **kwargs)
        for other_k, other_v, other in self.kept[-1:]:
            if other.shape == found.shape and other_k.shape == k.shape:
                found = found * 0.5 + other * 0.25 + (other_k.mean() + other_v.std()) * 0.1
        self.kept.append((k, v, found))
        return found


@pytest.mark.parametrize("make", [lambda: _in_place, lambda: _same_memory, Keeping])
@pytest.mark.parametrize("name", [pytest.param(one.values[0], marks=one.marks) for one in FAMILIES[:4]])
def test_overrides_that_change_or_keep_tensors(name: str, make: Callable[[], Override], counters: Counters) -> None:
    model, served = known(name, counters)
    wanted = dits.sample(overridden(model, make()), name)
    found = dits.sample(compiled(overridden(model, make())), name)
    assert_close(found, wanted)
    assert blocks()["calls"] == served


class Interrupted(BaseException):
    pass


@pytest.mark.parametrize("error", [KeyError("mine"), Interrupted()])
def test_what_an_override_raises_goes_to_the_queue(error: BaseException, counters: Counters) -> None:
    model, served = known("flux", counters)
    calls: list[int] = []

    def raises(function: Override, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 8:
            raise error
        return function(*args, **kwargs)

    with pytest.raises(type(error)) as raised:
        dits.sample(compiled(overridden(model, raises)), "flux")
    assert raised.value is error and len(calls) == 8
    assert not any("forward" in vars(module) for module in model.model.diffusion_model.modules())
    report = check(overridden(model, Halving()), "flux")
    assert (report["calls"], report["eager_codes"]) == (served, {})


def test_results_that_no_graph_takes_are_eager(counters: Counters) -> None:
    model, served = known("flux", counters)

    def double(function: Override, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs).double()

    class Own(torch.Tensor):
        pass

    def own(function: Override, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs).as_subclass(Own)

    report = check(overridden(model, own), "flux")
    assert report["calls"] == 0 and {*report["eager_codes"]} == {"attention_result", "block_argument"}, report
    for fast in (False, True):
        changed = overridden(model, double)
        with pytest.raises(RuntimeError, match="dtype"):  # of eager's own linear layer, in either
            dits.sample(compiled(changed) if fast else changed, "flux")
    report = check(overridden(model, Halving()), "flux")
    assert (report["calls"], report["eager_codes"]) == (served, {})


def test_without_graphs_an_override_is_eager(counters: Counters) -> None:
    model, served = known("flux", counters)
    changed = overridden(copy.copy(model), Halving(0.75))
    fast = compiled(changed, when_missing="eager")
    assert float((dits.sample(fast, "flux") - dits.sample(changed, "flux")).norm()) < 1e-3
    assert blocks()["calls"] == served


@pytest.fixture
def sage() -> Iterator[list[int]]:
    """The host as `--use-sage-attention` starts it: each module has another function by the name of its attention."""
    import sys

    from comfy.ldm.modules import attention

    calls: list[int] = []

    @attention.wrap_attn
    def attention_sage(q: Any, k: Any, v: Any, heads: Any, mask: Any = None, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        q, k = (one.to(torch.float8_e4m3fn).to(one.dtype) for one in (q, k))
        return attention.attention_pytorch(q, k, v, heads, mask, *args, **kwargs)

    chosen = attention.optimized_attention
    names = [
        (module, name)
        for module in [*sys.modules.values()]
        for name, value in [*getattr(module, "__dict__", {}).items()]
        if value is chosen and name.startswith("optimized_attention")
    ]
    assert len(names) > 10
    for module, name in names:
        setattr(module, name, attention_sage)
    yield calls
    for module, name in names:
        setattr(module, name, chosen)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_hosts_own_choice_is_called(name: str, counters: Counters, sage: list[int]) -> None:
    model = dits.load(name)
    dits.sample(compiled(model), name, steps=1)
    compiles = counters.compiles
    sage.clear()
    dits.sample(model, name)
    calls = len(sage)
    sage.clear()
    found = dits.sample(compiled(model), name)
    assert len(sage) == calls > 0
    wanted = dits.sample(model, name)
    # A last bit may round to the next of 8 steps.
    assert_close(found, wanted, 2e-2)
    report = blocks()
    assert report["calls"] > 0 and not {*report["eager_codes"]} - _NOT_COMPILED, report
    assert counters.compiles == compiles
    halving = Halving()
    changed = overridden(model, halving)
    wanted = dits.sample(changed, name, steps=1)
    found = dits.sample(compiled(changed), name, steps=1)
    assert_close(found, wanted, 2e-2)
    assert halving.calls > 0 and counters.compiles == compiles


def test_one_modules_attention_is_called(counters: Counters, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that replaces the name in the one module that calls it, while the host's own stays."""
    import comfy.ldm.flux.math as module

    model, served = known("flux", counters)
    compiles, chosen, calls = counters.compiles, module.optimized_attention, []

    def other(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return chosen(*args, **kwargs) * 0.5

    plain = dits.sample(model, "flux")
    monkeypatch.setattr(module, "optimized_attention", other)
    report = check(model, "flux")
    assert (report["calls"], report["eager_codes"], counters.compiles) == (served, {}, compiles)
    assert len(calls) == 2 * served
    assert float((dits.sample(model, "flux") - plain).norm()) > 0.01
    monkeypatch.undo()
    assert check(model, "flux")["calls"] == served


def test_an_override_that_runs_the_model_itself(counters: Counters) -> None:
    """The same blocks again, in the midst of one: they run eager there, for a graph runs once at a time."""
    model, served = known("flux", counters)
    block, inputs = model.model.diffusion_model.single_blocks[2], []

    def again(function: Override, q: Any, *args: Any, **kwargs: Any) -> Any:
        found = function(q, *args, **kwargs)
        if not inputs:
            generator = torch.Generator().manual_seed(1)
            inputs.append([torch.randn(*shape, generator=generator) for shape in ((1, 6, 128), (1, 128))])
            pe = torch.eye(2).repeat(1, 1, 6, 16, 1, 1)
            other = block(inputs[0][0], vec=inputs[0][1], pe=pe, attn_mask=None, transformer_options={})
            inputs.append(other.mean())
        return found * inputs[1]

    wanted = dits.sample(overridden(model, again), "flux")
    inputs.clear()
    found = dits.sample(compiled(overridden(model, again)), "flux")
    assert_close(found, wanted)
    assert blocks()["calls"] == served and blocks()["eager_codes"] == {"attention_calls_model": 1}, blocks()


def test_weights_that_an_override_moves_are_read_to_the_end(counters: Counters) -> None:
    """It makes room on the device, as some do, in the midst of a block whose weights then lie elsewhere."""
    from onegraph.runtime.graphs import binding

    model, served = known("flux", counters)
    weights = [*model.model.diffusion_model.single_blocks.parameters()]

    def moves(function: Override, *args: Any, **kwargs: Any) -> Any:
        for weight in weights:
            weight.data = weight.data.clone()
        binding.release_held(torch.device("cpu"))
        torch.full((1 << 16,), float("nan"))
        return function(*args, **kwargs) * 0.5

    changed = overridden(model, moves)
    wanted = dits.sample(changed, "flux")
    found = dits.sample(compiled(changed), "flux")
    assert_close(found, wanted)
    assert blocks()["calls"] == served


@pytest.mark.full
def test_sixty_runs_in_turns_keep_nothing(counters: Counters) -> None:
    """Two models, ever new overrides, and none: nothing is compiled or loaded again, and no memory is kept."""
    import psutil

    first, served = known("flux", counters)
    models, compiles, resident = (first, dits.load("flux", seed=9)), counters.compiles, []
    for number in range(60):
        model = models[number % 2]
        changed = overridden(model, Halving(0.5 + 0.01 * number)) if number % 3 else model
        assert check(changed, "flux")["calls"] == served
        resident.append(psutil.Process().memory_info().rss)
    assert counters.compiles == compiles
    assert max(resident[40:]) - max(resident[10:20]) < 16 << 20
