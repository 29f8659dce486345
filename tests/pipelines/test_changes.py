"""What changes a live model: each change to each component, at each time, with the old part kept alive or not.

Judged against a pipeline that was never compiled and to which the same is done. All cases share the session's graphs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from support.edits.cases import is_chosen
from support.models import pipes
from support.scenes.judge import distance
from support.scenes.process import new_process

from onegraph.pipelines import compile_module, compile_pipe
from onegraph.runtime.obtain.registry import Registry

Change = Callable[[Any, Any], Any]  # of a pipeline and one of its modules; returns what was there before


def _conv(module: Any) -> Any:
    """A convolution in the midst of the module: one of 32 parts that a call in a loop is checked for."""
    return module.mid_block.resnets[0].conv1


def _parameter(pipe: Any, module: Any) -> Any:
    old = _conv(module).weight
    _conv(module).weight = torch.nn.Parameter(old.detach() * -2)
    return old


def _storage(pipe: Any, module: Any) -> Any:
    old = _conv(module).weight.data
    _conv(module).weight.data = old * -2
    return old


def _table_of_parameters(pipe: Any, module: Any) -> Any:
    old = _conv(module).weight
    _conv(module)._parameters["weight"] = torch.nn.Parameter(old.detach() * -2)
    return old


def _assigned(pipe: Any, module: Any) -> Any:
    old = [*module.parameters()]
    module.load_state_dict({key: value * 0.5 for key, value in module.state_dict().items()}, assign=True)
    return old


def _twin(module: Any) -> Any:
    made = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(-2)
    return made


def _layer(pipe: Any, module: Any) -> Any:
    old = _conv(module)
    module.mid_block.resnets[0].conv1 = _twin(old)
    return old


def _block(pipe: Any, module: Any) -> Any:
    old = module.mid_block
    module.mid_block = _twin(old)
    return old


def _table_of_children(pipe: Any, module: Any) -> Any:
    old = _conv(module)
    module.mid_block.resnets[0]._modules["conv1"] = _twin(old)
    return old


def _without_bias(pipe: Any, module: Any) -> Any:
    old = module.conv_out.bias
    module.conv_out.bias = None
    return old


def _written(pipe: Any, module: Any) -> None:
    with torch.no_grad():
        _conv(module).weight.mul_(-2)


def _hook(pipe: Any, module: Any) -> None:
    _conv(module).register_forward_hook(lambda layer, given, result: result * -4)


def _forward(pipe: Any, module: Any) -> None:
    own = _conv(module).forward
    _conv(module).forward = lambda *args: own(*args) * -4


def _padding(pipe: Any, module: Any) -> None:
    for child in module.modules():
        if isinstance(child, torch.nn.Conv2d):
            child.padding_mode = "circular"
            child._reversed_padding_repeated_twice = [child.padding[1]] * 2 + [child.padding[0]] * 2  # type: ignore[list-item]


def _epsilon(pipe: Any, module: Any) -> None:
    module.conv_norm_out.eps = 1.0


def _activation(pipe: Any, module: Any) -> None:
    module.conv_act = torch.nn.Tanh()


def _processor(pipe: Any, module: Any) -> None:
    class Halving:
        def __call__(self, attn: Any, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
            return hidden_states * 0.5

    for child in module.modules():
        if hasattr(child, "set_processor"):
            child.set_processor(Halving())


def _freeu(pipe: Any, module: Any) -> None:
    pipe.enable_freeu(s1=0.2, s2=0.2, b1=4.0, b2=4.0)


class Kind(NamedTuple):
    """A change, whether it takes something away that may be kept alive, and whether a graph serves what it leaves."""

    change: Change
    replaces: bool
    compiled: bool
    of: tuple[str, ...] = ("unet", "vae.decoder")


CHANGES = {
    "a parameter": Kind(_parameter, True, True),
    "a parameter's storage": Kind(_storage, True, True),
    "the table of parameters": Kind(_table_of_parameters, True, True),
    "all parameters by assignment": Kind(_assigned, True, True),
    "a layer": Kind(_layer, True, True),
    "a block": Kind(_block, True, True),
    "the table of children": Kind(_table_of_children, True, True),
    "no bias": Kind(_without_bias, True, False),
    "values in place": Kind(_written, False, True),
    "a hook": Kind(_hook, False, False),
    "a forward": Kind(_forward, False, False),
    "padding": Kind(_padding, False, False),
    "an epsilon": Kind(_epsilon, False, False),
    "an activation": Kind(_activation, False, False),
    "attention processors": Kind(_processor, False, False),
    "FreeU": Kind(_freeu, False, False, ("unet",)),
}


class Pipe:
    """One of the two pipelines of a case.

    Attributes:
        through: whose calls are made: itself, or another one around the same modules.
    """

    def __init__(self, pipe: Any, component: str, change: Change, *, keep: bool) -> None:
        self.pipe = self.through = pipe
        self.component = component
        self.module = pipe.unet if component == "unet" else pipe.vae.decoder
        self._change, self._keep = change, keep
        self._kept: list[Any] = []

    def change(self) -> None:
        old = self._change(self.pipe, self.module)
        if self._keep:
            self._kept.append(old)
        del old
        # What was let go is overwritten where the allocator hands the same memory out again.
        self._junk = [torch.full((32 * 64 * 9,), 7.0) for _ in range(8)]

    def run(self, **given: Any) -> torch.Tensor:
        if self.component == "unet":
            found = pipes.image(self.through, **{"output_type": "latent", **given})
        else:
            torch.manual_seed(0)
            found = self.through.vae.decode(torch.randn(1, 4, 4, 4), return_dict=False)[0]
        assert isinstance(found, torch.Tensor)
        return found

    def call(self) -> torch.Tensor:
        """A call of the module by nobody's pipeline."""
        torch.manual_seed(0)
        if self.component == "unet":
            return self.module(torch.randn(2, 4, 8, 8), 5, torch.randn(2, 77, 32)).sample  # type: ignore[no-any-return]
        return self.module(torch.randn(1, 4, 4, 4))  # type: ignore[no-any-return]


When = Callable[[Pipe], Iterator[torch.Tensor]]


def before_a_run(one: Pipe) -> Iterator[torch.Tensor]:
    one.change()
    yield one.run()


def between_runs(one: Pipe) -> Iterator[torch.Tensor]:
    yield one.run()
    one.change()
    yield one.run()


def between_runs_of_another_pipeline(one: Pipe) -> Iterator[torch.Tensor]:
    from diffusers import StableDiffusionPipeline

    yield one.run()
    one.through = StableDiffusionPipeline.from_pipe(one.pipe, scheduler=pipes.scheduler())
    one.through.set_progress_bar_config(disable=True)
    yield one.run()
    one.change()
    yield one.run()


def between_two_calls(one: Pipe) -> Iterator[torch.Tensor]:
    yield one.call()
    one.change()
    yield one.call()


def in_a_callback(one: Pipe) -> Iterator[torch.Tensor]:
    def changed(pipe: Any, step: int, timestep: Any, given: dict[str, Any]) -> dict[str, Any]:
        if step == 0:
            one.change()
        return given

    yield one.run(steps=3)
    yield one.run(steps=3, callback_on_step_end=changed)


def in_a_step_of_the_scheduler(one: Pipe) -> Iterator[torch.Tensor]:
    yield one.run(steps=3)
    scheduler, seen = one.pipe.scheduler, []
    own = scheduler.step

    def step(*args: Any, **kwargs: Any) -> Any:
        seen.append(None)
        if len(seen) == 1:
            one.change()
        return own(*args, **kwargs)

    scheduler.step = step
    yield one.run(steps=3)


WHENS: dict[When, tuple[tuple[str, str], ...]] = {  # each with the components and what was compiled
    before_a_run: (("unet", "pipe"), ("vae.decoder", "pipe")),
    between_runs: (("unet", "pipe"), ("unet", "module"), ("vae.decoder", "module")),
    between_runs_of_another_pipeline: (("unet", "pipe"), ("vae.decoder", "pipe")),
    between_two_calls: (("unet", "module"), ("vae.decoder", "pipe")),
    in_a_callback: (("unet", "pipe"),),
    in_a_step_of_the_scheduler: (("unet", "pipe"),),
}


def cases() -> Iterator[Any]:
    for what, kind in CHANGES.items():
        for when, wheres in WHENS.items():
            for component, how in wheres:
                for kept in ("kept", "let go") if kind.replaces else ("in place",):
                    if component in kind.of:
                        name = f"{what}, {when.__name__}, {component} of a {how}, {kept}"
                        runs = [] if is_chosen(2, name) else [pytest.mark.full]
                        yield pytest.param(what, when, component, kept, how, id=name.replace("_", " "), marks=runs)


@pytest.fixture(scope="module")
def loaded(home: Path) -> Iterator[Registry]:
    with new_process(home) as registry:
        yield registry


@pytest.fixture(scope="module")
def template() -> Any:
    return pipes.sd()


def _copied(template: Any) -> Any:
    return pipes.sd(unet=copy.deepcopy(template.unet), vae=copy.deepcopy(template.vae))


@pytest.mark.parametrize(("what", "when", "component", "kept", "how"), [*cases()])
@torch.no_grad()
def test_a_change(loaded: Registry, template: Any, what: str, when: When, component: str, kept: str, how: str) -> None:
    kind = CHANGES[what]
    eager, pipe = _copied(template), _copied(template)
    if how == "pipe":
        compile_pipe(pipe, when_missing="eager")
    else:  # as OneDiff's users do
        pipe.unet = compile_module(pipe.unet, when_missing="eager")
        pipe.vae.decoder = compile_module(pipe.vae.decoder, when_missing="eager")
    pair = [Pipe(one, component, kind.change, keep=kept == "kept") for one in (eager, pipe)]
    handle = pipe.onegraph if how == "pipe" else pair[1].module.onegraph
    name = component if how == "pipe" else component.replace("vae.", "vae_")
    wanted, results, calls = [*when(pair[0])], [], [0]
    for found in when(pair[1]):
        results.append(found)
        report = handle.report()[name]
        calls.append(report.compiled_calls)
    assert len(wanted) == 1 or distance(wanted[0], wanted[-1]) > 0.003, "the change makes no difference"
    for found, right in zip(results, wanted, strict=True):
        assert distance(found, right) <= 1e-3, report.text
    assert calls[-1] > calls[-2] or not kind.compiled, report.text
    assert loaded.counters.compiles == 0
