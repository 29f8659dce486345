"""Small diffusion transformers with quantised layers of ComfyUI's own, sampled with their blocks compiled.

Eager quantises in the midst of a block: a last bit there is a step of the quantiser, so two right results differ. What
a graph may differ by is measured here as it is in use: by eager's own distance to the result in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.models import dits, quantised

from onegraph.common import reasons
from onegraph.compiler.blocks.repeated import repeated_blocks
from onegraph.graph_cache.store import Store
from onegraph.host import eligibility, model_hook, status
from onegraph.host.weights import exact, plain
from onegraph.host.weights.formats import FORMATS
from onegraph.runtime import registry
from onegraph.runtime.counters import Counters
from onegraph.runtime.module_guard import ModuleGuard
from onegraph.runtime.policy import ANY_SPEED
from onegraph.runtime.registry import Registry

NODE = "7"
SERVED = [*quantised.FORMATS]
LAYERS = 128, 256
SIZES = [(3, 10, 128), (5, 128), (2, 3, 4, 128)]


def kind(name: str, which: str) -> Any:
    usual = (name, which) == ("qwen-image", "int8 convrot")
    return pytest.param(name, which, marks=() if usual else pytest.mark.full)


KINDS = [
    *(kind("qwen-image", which) for which in SERVED),
    *(kind(name, which) for name in ("z-image", "flux") for which in ("fp8 scaled", "int8 convrot")),
]


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    """As ComfyUI loads and runs models."""
    with torch.inference_mode():
        yield


def distance(result: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((result.double() - wanted.double()).norm() / wanted.double().norm())


def compiled(model: Any, **options: Any) -> Any:
    return model_hook.compile_model(model, model_hook.Options(backend="inductor", **options), NODE)[0]


def blocks() -> dict[str, Any]:
    found: dict[str, Any] = status.last_runs[NODE].to_json()["blocks"]
    return found


def own_error(model: Any, name: str) -> float:
    """How far eager is from the same sampling with each block computed in float32, of weights that were dequantised."""

    def converted(value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, tuple):
            return tuple(converted(one, dtype) for one in value)
        return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    def exactly(block: torch.nn.Module) -> Callable[..., Any]:
        right = exact.exact_block(block)

        def forward(*args: Any, **kwargs: Any) -> Any:
            given = {key: converted(one, torch.float32) for key, one in kwargs.items()}
            found = type(block).forward(right, *converted(args, torch.float32), **given)
            return converted(found, torch.bfloat16)

        return forward

    blocks = [*repeated_blocks(model.model.diffusion_model).values()]
    eager = dits.sample(model, name)
    try:
        for block in blocks:
            vars(block)["forward"] = exactly(block)
        return distance(eager, dits.sample(model, name))
    finally:
        for block in blocks:
            vars(block).pop("forward", None)


def check(model: Any, name: str, error: float, *args: int, **options: int) -> dict[str, Any]:
    """A sampling of a compiled model is as near to eager's as two results are that are both off by an error."""
    found, wanted = dits.sample(compiled(model), name, *args, **options), dits.sample(model, name, *args, **options)
    assert torch.isfinite(found).all()
    report = blocks()
    assert distance(found, wanted) <= 2 * error, (distance(found, wanted), error, status.last_runs[NODE].text())
    return report


def layer(which: str, dtype: torch.dtype, bias: bool = True, **more: torch.Tensor) -> Any:
    """A layer of the host's with seeded weights. `more`: further weights, which its forward asks for."""
    from comfy.ops import mixed_precision_ops

    wanted = quantised.FORMATS[which]
    torch.manual_seed(1)
    ops = mixed_precision_ops({}, dtype, disabled={wanted.format} if wanted.emulated else set())
    made = quantised.quantised(torch.nn.Linear(*LAYERS, bias=bias, dtype=dtype), wanted, ops)
    for name, tensor in more.items():
        made.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))
    return made


# Layers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", SERVED)
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("given", [torch.bfloat16, torch.float32])
def test_a_plain_layer_computes_what_the_hosts_own_does(which: str, stored: torch.dtype, given: torch.dtype) -> None:
    for bias in (True, False):
        for more in ({}, {"input_scale": torch.tensor(0.02)}, {"pre_quant_scale": torch.rand(128) + 0.5}):
            hosts = layer(which, stored, bias, **more)
            ours = FORMATS[hosts.quant_format].plain(hosts)
            for shape in SIZES:
                x = 3 * torch.randn(shape, dtype=given)
                found, wanted = ours(x), hosts(x)
                assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
                assert distance(found, wanted) < 2e-5, (more, shape)  # 0, but for the order of a product's sums


def test_a_format_that_no_graph_computes_with_is_refused() -> None:
    block = torch.nn.Sequential(layer("int8", torch.bfloat16))
    block[0].quant_format = "int3"
    assert plain.refusal(block) == reasons.WeightFormat("int3", "0 (Linear)")
    for which in ("mxfp8", "nvfp4"):
        block = torch.nn.Sequential(layer(which, torch.bfloat16))
        assert plain.refusal(block) is None
        block[0]._full_precision_mm = False  # on a device that multiplies such values
        assert plain.refusal(block) == reasons.WeightFormat(which, "0 (Linear)")


def test_a_product_of_somebody_elses_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from comfy.quant_ops import TensorCoreFP8E4M3Layout, TensorWiseINT8Layout, register_layout_op
    from comfy_kitchen.tensor import base

    linear = torch.ops.aten.linear.default
    monkeypatch.setitem(base._LAYOUT_DISPATCH_TABLE, linear, {**base._LAYOUT_DISPATCH_TABLE[linear]})
    for which, layout in (("int8", TensorWiseINT8Layout), ("fp8 scaled", TensorCoreFP8E4M3Layout)):
        block = torch.nn.Sequential(layer(which, torch.bfloat16))
        assert plain.refusal(block) is None
        register_layout_op(linear, layout)(lambda weight, args, kwargs: None)
        assert isinstance(plain.refusal(block), reasons.ReplacedPart)


def test_a_layer_that_computes_otherwise_is_refused() -> None:
    block = torch.nn.Sequential(layer("int8", torch.bfloat16))
    assert plain.refusal(block) is None
    block[0].comfy_force_cast_weights = True
    assert plain.refusal(block) == reasons.WeightCast("0 (Linear)")
    block[0].comfy_force_cast_weights = False
    cls = type(block[0])
    usual = cls.forward
    cls.forward = lambda self, x: usual(self, x)
    assert plain.refusal(block) == reasons.ReplacedPart("class", "0 (Linear)")
    cls.forward = usual
    assert plain.refusal(block) is None

    class Other(cls):  # type: ignore[misc, valid-type]
        pass

    block[0].__class__ = Other
    assert isinstance(plain.refusal(block), reasons.QuantisedLayer)


def test_everything_but_values_is_part_of_the_architecture() -> None:
    block = torch.nn.Sequential(layer("int8 convrot", torch.bfloat16))
    guard = ModuleGuard(block, eligibility.rules())
    first = guard.version, guard.architecture(block)
    hosts = block[0]
    hosts.set_weight(hosts.convert_weight(hosts.weight.data).float() * 1.5, seed=1)
    guard.refresh_fully(block)
    assert (guard.version, guard.architecture(block)) == first, "other values of the same format"
    params = hosts.weight._params
    hosts.weight._params = replace(params, convrot_groupsize=16)
    guard.refresh_fully(block)
    assert guard.version != first[0] and guard.architecture(block) != first[1]
    hosts.weight._params = replace(params, scale=params.scale.double())
    guard.refresh_fully(block)
    assert guard.version != first[0]
    hosts.weight._params = params
    guard.refresh_fully(block)
    assert (guard.version, guard.architecture(block)) == first


@pytest.mark.parametrize("which", SERVED)
def test_the_exact_layer_quantises_nothing(which: str) -> None:
    hosts = layer(which, torch.bfloat16, pre_quant_scale=torch.rand(128) + 0.5)
    x = torch.randn(7, 128)
    found = exact.exact_block(torch.nn.Sequential(hosts))(x)
    weight = hosts.weight.to(dtype=torch.float32).dequantize()
    wanted = (x * hosts.pre_quant_scale) @ weight.t() + hosts.bias.float()
    assert found.dtype == torch.float32 and distance(found, wanted) < 1e-6


# Models -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "which"), KINDS)
def test_lifecycle(name: str, which: str, counters: Counters, fresh_process: Registry) -> None:
    """Sizes; LoRA on, changed, off; another model; a part swapped behind its back; a new process: one compile."""
    model = quantised.load(name, which)
    error = own_error(model, name)
    assert 1e-4 < error < 0.2
    dits.sample(compiled(model), name, steps=1)
    compiles = counters.compiles
    report = check(model, name, error)
    served = report["calls"]
    assert served and not report["eager_codes"], report
    for batch, height, width, tokens in [(2, 12, 20, 30), (1, 24, 8, 77)]:
        assert check(model, name, error, height, width, batch=batch, tokens=tokens)["calls"] == served
    plain_result = dits.sample(model, name)
    for strength in (0.3, 1.0):  # the host dequantises, adds and quantises anew: other values, other scales
        adapted = with_lora(model, strength)
        report = check(adapted, name, error)
        assert (report["calls"], report["eager_codes"]) == (served, {}), report
        assert distance(dits.sample(adapted, name), plain_result) > 2 * error
    assert check(model, name, error)["calls"] == served
    assert check(quantised.load(name, which, seed=9), name, error)["calls"] == served
    swap_behind(model)
    assert check(model, name, error)["calls"] == served
    assert distance(dits.sample(model, name), plain_result) > 2 * error
    assert counters.compiles == compiles
    with registry.using(Registry(Store(fresh_process.store.home), policy=ANY_SPEED)) as process:
        assert process is not None
        assert check(model, name, error)["calls"] == served
        assert (process.counters.compiles, process.counters.eager_calls) == (0, 0)


@pytest.mark.full
def test_weights_that_are_stored_in_float8_and_cast(counters: Counters) -> None:
    model = quantised.stored("qwen-image")
    error = own_error(model, "qwen-image")
    dits.sample(compiled(model), "qwen-image", steps=1)
    report = check(model, "qwen-image", error)
    assert report["calls"] and not report["eager_codes"], report
    compiles = counters.compiles
    other = quantised.stored("qwen-image", seed=9)
    assert check(other, "qwen-image", error)["calls"] == report["calls"] and counters.compiles == compiles


def with_lora(model: Any, strength: float) -> Any:
    adapted = model.clone()
    torch.manual_seed(5)
    layers = {key: one for key, one in model.model.named_modules() if getattr(one, "quant_format", None)}
    patches = {
        f"{key}.weight": ("diff", (0.05 * torch.randn(one.weight.shape),)) for key, one in [*layers.items()][:12]
    }
    assert len(adapted.add_patches(patches, strength)) == len(patches)
    return adapted


def swap_behind(model: Any) -> None:
    """Give one weight other values and another one another scale, in place of the tensors that were there."""
    first, second = [one for one in model.model.modules() if getattr(one, "quant_format", None)][:2]
    first.weight._qdata = first.weight._qdata.flip(0).contiguous()
    scale = second.weight._params.scale
    other = scale * 3 if scale.dtype == torch.float32 else (scale.view(torch.uint8) + 1).view(scale.dtype)
    second.weight._params = replace(second.weight._params, scale=other)
