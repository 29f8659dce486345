"""Equal blocks are traced twice at most, and the graph is the one that tracing all of them gives."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from support.models import toy
from torch.fx.node import map_arg

from onegraph.backends.inductor import repeats
from onegraph.common.torch_private import require

CALLS = Counter[str]()


class Inner(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(width, width), torch.nn.Linear(width, width)
        self.c = torch.nn.Sequential(*(torch.nn.Identity() for _ in range(4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.c(self.b(torch.relu(self.a(x))))
        return result


class Block(torch.nn.Module):
    """What blocks do: attend to another tensor, read options, return a tensor or a few."""

    def __init__(self, width: int, kind: str) -> None:
        super().__init__()
        self.inner, self.norm, self.kind = Inner(width), torch.nn.LayerNorm(width), kind
        self.scale = 2.0
        self.register_buffer("shift", torch.ones(width))

    def forward(self, x: torch.Tensor, context: torch.Tensor, options: dict[str, Any]) -> Any:
        CALLS[self.kind] += 1
        if self.kind == "counts":  # the third of them computes something else
            x = x * options["index"] if options["index"] != 1 else x * 1
        if self.kind == "counts from the third on" and options["index"] > 1:
            x = x * 3
        if self.kind == "remembers":
            options["seen"] = options.get("seen", 0) + 1
        y = self.norm(x + self.inner(x)) * self.scale + self.shift + context.mean(1, keepdim=True)
        if self.kind == "a tuple":
            return y, context
        if self.kind == "a view":
            return y.transpose(1, 2).transpose(1, 2)
        return y


class Model(torch.nn.Module):
    def __init__(self, kind: str = "plain", count: int = 6, width: int = 8) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(width, kind) for _ in range(count))

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        options: dict[str, Any] = {"patches": {}, "flag": None}
        for index, block in enumerate(self.blocks):
            options["index"] = index
            result = block(x, context, options)
            x, context = result if isinstance(result, tuple) else (result, context)
        return x * options.get("seen", 1)


def exported(model: torch.nn.Module) -> torch.export.ExportedProgram:
    batch, length = torch.export.Dim("batch", min=1, max=8), torch.export.Dim("length", min=1, max=99)
    inputs = (torch.randn(2, 5, 8), torch.randn(2, 7, 8))
    with torch.no_grad():
        return torch.export.export(model, inputs, strict=False, dynamic_shapes=({0: batch, 1: length}, {0: batch}))


def form(program: torch.export.ExportedProgram) -> list[str]:
    """The graph without the names of its operations, with all that regions and backends read off it."""
    names: dict[Any, str] = {}
    lines = []
    for number, node in enumerate(program.graph.nodes):
        operands = map_arg((node.args, node.kwargs), names.__getitem__)
        names[node] = node.name if node.op == "placeholder" else f"%{number}"
        modules = node.meta.get("nn_module_stack")
        lines.append(f"{node.op} {node.target} {operands} {repeats._layout(node.meta.get('val'))} {modules}")
    return lines


def in_full(*values: Any) -> list[Any]:
    """Values of a parameter that only the full run has."""
    return [pytest.param(value, marks=pytest.mark.full) for value in values]


def both(model: torch.nn.Module) -> tuple[torch.export.ExportedProgram, int]:
    """The program with repeats written down, compared with the other; and how many blocks were traced for it."""
    whole = exported(model)
    CALLS.clear()
    with repeats.traced_once():
        program = exported(model)
    traced = CALLS.total() if hasattr(CALLS, "total") else sum(CALLS.values())
    assert form(program)[:-1] == form(whole)[:-1]
    return program, traced


@pytest.mark.parametrize("kind", [*in_full("plain", "a tuple"), "a view"])
def test_the_graph_is_the_same_with_few_blocks_traced(kind: str) -> None:
    model = Model(kind)
    program, traced = both(model)
    assert traced <= 3  # the first one's input is not laid out as an output is
    x, context = torch.randn(3, 9, 8), torch.randn(3, 7, 8)
    with torch.no_grad():
        torch.testing.assert_close(program.module()(x, context), model(x, context))


def change_attribute(model: Model) -> None:
    model.blocks[4].scale = (3.0, 4.0)[0]


def change_inner(model: Model) -> None:
    model.blocks[3].inner.c[1] = torch.nn.Tanh()


def change_weight(model: Model) -> None:
    model.blocks[5].inner.b = torch.nn.Linear(8, 8, bias=False)


def share_weight(model: Model) -> None:
    model.blocks[5].inner.b.weight = model.blocks[5].inner.a.weight


def change_forward(model: Model) -> None:
    model.blocks[2].norm.forward = lambda x: x  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "change", [*in_full(change_attribute, change_inner, share_weight), change_weight, change_forward]
)
def test_a_block_that_differs_is_traced_by_itself(change: Any) -> None:
    model = Model().eval()
    change(model)
    program, traced = both(model)
    assert traced >= 4
    x, context = torch.randn(3, 9, 8), torch.randn(3, 7, 8)
    with torch.no_grad():
        torch.testing.assert_close(program.module()(x, context), model(x, context))


def test_blocks_using_their_number_are_all_traced() -> None:
    _, traced = both(Model("counts"))
    assert traced == 6


def test_blocks_with_side_effects_are_all_traced() -> None:
    _, traced = both(Model("remembers"))
    assert traced == 6


class Unregistered(torch.nn.Module):
    """Its blocks have no place in it, as those of a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [torch.nn.Sequential(*(torch.nn.Tanh() for _ in range(9))) for _ in range(4)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def test_unregistered_blocks_are_traced() -> None:
    model, x = Unregistered(), torch.randn(2, 3)
    whole = torch.export.export(model, (x,), strict=False)
    with repeats.traced_once():
        program = torch.export.export(model, (x,), strict=False)
    assert form(program)[:-1] == form(whole)[:-1]


@pytest.mark.full
def test_the_toys_of_other_tests_are_captured_as_ever() -> None:
    for module in (toy.Toy(), toy.Deep(wide=4, narrow=3)):
        model = toy.Call(module)
        with torch.no_grad():
            whole = torch.export.export(model, toy.inputs(2, 8, 8, 5), strict=False)
            with repeats.traced_once():
                program = torch.export.export(model, toy.inputs(2, 8, 8, 5), strict=False)
        assert form(program)[:-1] == form(whole)[:-1]


def test_torch_traces_as_ever_afterwards() -> None:
    tracer = require("torch.fx.experimental.proxy_tensor._ModuleStackTracer")
    before = tracer.call_module
    with repeats.traced_once():
        assert tracer.call_module is not before
    assert tracer.call_module is before


def test_an_incomplete_torch_has_every_block_traced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr("torch.fx.experimental.proxy_tensor.track_tensor_tree")
    tracer = require("torch.fx.experimental.proxy_tensor._ModuleStackTracer")
    before = tracer.call_module
    with repeats.traced_once():
        assert tracer.call_module is before
    assert "every block is traced" in caplog.text
