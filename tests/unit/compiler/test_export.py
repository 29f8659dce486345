from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.models import toy

from onegraph.backends.inductor import InductorBackend
from onegraph.common.errors import CaptureError
from onegraph.common.torch_private import contiguous_where_asked
from onegraph.compiler import export
from onegraph.runtime.guards import ambient_modes


def captured(module: torch.nn.Module, spec: toy.ShapeRange) -> torch.export.ExportedProgram:
    with InductorBackend().capture_settings():
        return export.capture(toy.Call(module), spec, {"batch": 1, "height": 8, "width": 8, "context": 1}, toy.CPU)


@pytest.mark.parametrize("multiple", [1, 4])
def test_named_dimensions_keep_their_whole_range(multiple: int) -> None:
    exported = captured(toy.Toy(), toy.shapes(multiple=multiple))
    module, eager = exported.module(), toy.Toy()
    module.load_state_dict({PREFIX + k: v for k, v in eager.state_dict().items()})
    for call in ((1, 4, 4, 1), (4, 32, 32, 64), (1, 8, 32, 7), (3, 12, 4, 1)):
        inputs = toy.inputs(*call)
        torch.testing.assert_close(module(*inputs), eager(*inputs))


PREFIX = "toy."


def test_a_branch_on_a_size_is_refused_and_not_frozen() -> None:
    with pytest.raises(CaptureError, match="could not be captured"):
        captured(toy.Fixed(), toy.shapes())


def test_an_exact_range_may_branch_on_sizes() -> None:
    spec = toy.ShapeRange(
        tuple(toy.Dim(n, s, s) for n, s in {"batch": 2, "height": 8, "width": 8, "context": 5}.items()),
        toy.shapes().inputs,
    )
    exported = captured(toy.Fixed(), spec)
    assert not exported.range_constraints


def test_a_constant_made_by_the_code_is_refused() -> None:
    class Table(toy.Toy):
        def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
            return super().forward(x, context) + torch.tensor([1.0, 2.0, 3.0, 4.0])[None, :, None, None]

    with pytest.raises(CaptureError, match="no weight"):
        captured(Table(), toy.shapes())


READ: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "item": lambda strength, x: x * (1 + strength.item()),
    "float": lambda strength, x: x * (1 + float(strength)),
    "index": lambda strength, x: x * [1.0, 2.0][strength.to(torch.int64)],
    "math": lambda strength, x: x * math.exp(strength),
    "allclose": lambda strength, x: x if torch.allclose(strength, strength) else 2 * x,
    "size": lambda strength, x: x * torch.ones(strength.to(torch.int64)).sum(),
    "slice": lambda strength, x: x[:, :, strength.to(torch.int64) :],
    "argument": lambda strength, x: torch.add(x, x, alpha=strength),
    "keyword": lambda strength, x: torch.nn.functional.leaky_relu(x, negative_slope=strength),
}


class Holding(toy.Toy):
    """With a tensor that is no weight, or is one; a graph of it would have the compiling process's zero in it."""

    def __init__(self, read: Callable[[torch.Tensor, torch.Tensor], Any], weight: bool = False) -> None:
        super().__init__()
        self.read = read
        if weight:
            self.register_buffer("strength", torch.zeros(()))
        else:
            self.strength = torch.zeros(())

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        return super().forward(self.read(self.strength, x), context)


@pytest.mark.parametrize("name", READ)
def test_numbers_of_a_tensor_that_is_no_weight_are_refused(name: str) -> None:
    with pytest.raises(CaptureError, match="no weight"):
        captured(Holding(READ[name]), toy.shapes())


@pytest.mark.parametrize(
    "read",
    [
        lambda strength, x: x.to(strength),
        lambda strength, x: x.to(strength.dtype) * (1 + strength.dim()),
        lambda strength, x: x * (1 + len(strength.shape) + strength.numel()) if strength is not None else x,
    ],
)
def test_its_form_may_be_read(read: Any) -> None:
    assert export.outputs(captured(Holding(read), toy.shapes())) == 1


def test_what_reads_a_weight_is_captured() -> None:
    assert export.outputs(captured(Holding(READ["item"], weight=True), toy.shapes())) == 1


def test_a_capture_leaves_nothing_behind_whether_it_fails_or_not() -> None:
    for read, fails in ((lambda strength, x: x, False), (READ["item"], True), (lambda strength, x: 1 / 0, True)):
        module = toy.Call(Holding(read))
        with pytest.raises(CaptureError) if fails else contextlib.nullcontext(), contiguous_where_asked():
            spec = toy.shapes()
            export.capture(module, spec, {"batch": 1, "height": 8, "width": 8, "context": 1}, toy.CPU)
        assert not any(one._forward_hooks or one._forward_pre_hooks for one in module.modules())
        assert ambient_modes.refusal(torch.nn.Linear(2, 2), [torch.ones(2)]) is None


def test_inputs_may_be_one_parameter() -> None:
    class Listed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.toy = toy.Toy()

        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.toy(*inputs)
            return result

    with InductorBackend().capture_settings():
        exported = export.capture(Listed(), toy.shapes(), {"batch": 2, "height": 8}, toy.CPU)
    assert exported.module()(*toy.inputs(4, 32, 12, 1)).shape[2:] == (32, 12)


def test_several_results_are_counted() -> None:
    class Two(toy.Toy):
        def forward(self, x: torch.Tensor, context: torch.Tensor):  # type: ignore[override]
            return x, [super().forward(x, context), context]

    assert export.outputs(captured(Two(), toy.shapes())) == 3


class Steered(torch.nn.Module):
    """x [B, 4, H, W] halved twice, with a residual of each size added, and a hint of eight times the size."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.down = torch.nn.ModuleList(torch.nn.Conv2d(4, 4, 3, stride=2, padding=1) for _ in range(2))
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor, hint: torch.Tensor, *residuals: torch.Tensor) -> torch.Tensor:
        h = x + torch.nn.functional.avg_pool2d(hint, 8)
        for down, residual in zip(self.down, residuals, strict=True):
            h = down(h)
            h += residual
        return h


def steered_shapes(multiple: int) -> toy.ShapeRange:
    dims = (toy.Dim("batch", 1, 4), *(toy.Dim(name, 8, 32, multiple) for name in ("height", "width")))
    sizes = {"x": ("height", "width"), "hint": ("height*8", "width*8")}
    sizes |= {f"residual {over}": (f"height/{over}", f"width/{over}") for over in (2, 4)}
    return toy.ShapeRange(dims, tuple(toy.TensorSpec(n, ("batch", 4, *size), "float32") for n, size in sizes.items()))


@pytest.mark.parametrize("multiple", [1, 2, 4])
def test_sizes_follow_from_named_dimensions(multiple: int) -> None:
    spec, module = steered_shapes(multiple), Steered()
    with InductorBackend().capture_settings():
        exported = export.capture(module, spec, {"batch": 2, "height": 16, "width": 8}, toy.CPU)
    sizes = ((1, 8, 32), (4, 32, 12), (2, 16, 16), *(((3, 9, 27),) if multiple == 1 else ()))
    for batch, height, width in sizes:
        given = dict(zip(("batch", "height", "width"), (batch, height, width), strict=True))
        inputs = [torch.randn(shape) for shape in spec.shapes(given)]
        torch.testing.assert_close(exported.module()(*inputs), module(*inputs))
