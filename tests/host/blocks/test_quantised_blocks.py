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
from support.comfyui import pages
from support.models import dits, quantised, quantised_report
from support.scenes.judge import distance
from support.scenes.nodes import blocks, compiled, told
from support.scenes.process import new_process

from onegraph.common import reasons
from onegraph.compiler.blocks.repeated import repeated_blocks
from onegraph.host.weights import eligibility, plain
from onegraph.host.weights.formats import FORMATS
from onegraph.host.weights.quantised import exact_block
from onegraph.runtime.counters import Counters
from onegraph.runtime.guards.module_guard import ModuleGuard
from onegraph.runtime.obtain.registry import Registry
from onegraph.signature import call_tree

SERVED = [*quantised.FORMATS]
LAYERS = 128, 256
SIZES = [(3, 10, 128), (5, 128), (2, 3, 4, 128)]


# The formats that each family is published in, by how much they are run; Qwen-Image has all there are.
PUBLISHED = {
    "minimax h3": ("int8 convrot", "fp8 scaled"),
    "ltx 2": ("fp8 scaled", "int8 convrot", "nvfp4, emulated"),
    "qwen-image": SERVED,
    "qwen-image-edit 2511": ("int8 convrot", "fp8 scaled"),
    "wan 2.1 t2v": ("fp8 scaled", "fp8 scaled, emulated", "int8 convrot"),
    "wan 2.1 i2v": ("fp8 scaled",),
    "wan 2.2 5B": ("fp8 scaled",),
    "z-image": ("fp8 scaled", "int8 convrot", "nvfp4, emulated"),
    "krea 2": ("fp8 scaled", "int8 convrot"),
    "flux 2": ("fp8 scaled", "int8 convrot", "nvfp4, emulated"),
    "flux": ("fp8 scaled", "fp8 scaled, emulated", "int8", "int8 convrot", "nvfp4, emulated"),
    "chroma": ("fp8 scaled", "int8 convrot"),
    "hunyuan video 1.5": ("fp8 scaled", "int8 convrot"),
    "anima": ("fp8 scaled",),
    "sd 3.5": ("fp8 scaled",),
}
PARTLY = (("chroma", "int8 convrot"),)  # some of its blocks are too small to gain
STORED = ("qwen-image", "flux", "wan 2.1 t2v", "hunyuan video 1.5", "sd 3.5")  # in float8, and cast


def kind(name: str, which: str) -> Any:
    usual = (name, which) == ("qwen-image", "int8 convrot")
    return pytest.param(name, which, marks=() if usual else pytest.mark.full)


KINDS = [kind(name, which) for name, formats in PUBLISHED.items() for which in formats]


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    """As ComfyUI loads and runs models."""
    with torch.inference_mode(), quantised.products_of_blocks():
        yield


def same_product(result: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Equal but for the order of a product's sums, by which one value in a thousand may be rounded to its neighbour.

    Which order there is depends on the processor and on where tensors lie.
    """
    apart = result != wanted
    step = torch.finfo(wanted.dtype).eps * wanted.abs()
    rounded = bool(((result - wanted).abs() <= step)[apart].all()) and float(apart.float().mean()) <= 1e-3
    return distance(result, wanted) < 2e-5 or rounded


def own_error(model: Any, name: str) -> float:
    """How far eager is from the same sampling with each block computed in float32, of weights that were dequantised."""

    def converted(value: Any, dtype: torch.dtype, options: Any) -> Any:
        form, leaves = call_tree.flatten(value, ("comfy",))
        floats = [one.is_floating_point() if isinstance(one, torch.Tensor) else False for one in leaves]
        return call_tree.rebuild(
            form, [one.to(dtype) if real else one for one, real in zip(leaves, floats, strict=True)], options
        )

    def exactly(block: torch.nn.Module) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            right = exact_block(block)  # now: a sampling begins with loading LoRAs
            options = kwargs.get(call_tree.OPTIONS)
            given, named = converted((list(args), kwargs), torch.float32, options)
            return converted(type(block).forward(right, *given, **named), torch.bfloat16, options)

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


def check(model: Any, name: str, error: float, *args: int, **options: int) -> tuple[dict[str, Any], float]:
    """A sampling of a compiled model is as near to eager's as two results are that are both off by an error; what its
    run says of blocks, and how near it is."""
    found, wanted = dits.sample(compiled(model), name, *args, **options), dits.sample(model, name, *args, **options)
    assert torch.isfinite(found).all()
    report, far = blocks(), distance(found, wanted)
    assert far <= 2 * error, (far, error, told())
    return report, far


def layer(
    which: str, dtype: torch.dtype, bias: bool = True, sizes: tuple[int, int] = LAYERS, full_precision: bool = False,
    **more: torch.Tensor,
) -> Any:  # fmt: skip
    """A layer of the host's with seeded weights. `more`: further weights, which its forward asks for."""
    from comfy.ops import mixed_precision_ops

    wanted = quantised.FORMATS[which]
    if full_precision:
        wanted = replace(wanted, file={**wanted.file, "full_precision_matrix_mult": True})
    torch.manual_seed(1)
    ops = mixed_precision_ops({}, dtype, disabled={wanted.format} if wanted.emulated else set())
    made = quantised.quantised(torch.nn.Linear(*sizes, bias=bias, dtype=dtype), wanted, ops)
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
                assert same_product(found, wanted), (more, shape)


@pytest.mark.parametrize("which", [one for one in SERVED if one.startswith(("mxfp8", "nvfp4"))])
@pytest.mark.parametrize("bias", [True, False])
def test_a_weight_in_memory_that_is_padded_to_whole_blocks(which: str, bias: bool) -> None:
    hosts = layer(which, torch.bfloat16, bias, sizes=(72, 40))
    assert hosts.weight.is_padded
    ours = FORMATS[hosts.quant_format].plain(hosts)
    for shape in [(3, 10, 72), (5, 72), (2, 1, 3, 72), (72,)]:
        x = torch.randn(shape, dtype=torch.bfloat16)
        found, wanted = ours(x), hosts(x)
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert distance(found, wanted) < 2e-5, shape
        assert torch.isfinite(ours(torch.zeros_like(x))).all()  # as a graph is tried out


@pytest.mark.parametrize("which", SERVED)
def test_a_product_of_the_dequantised_weight_where_the_file_wants_it(which: str) -> None:
    hosts = layer(which, torch.bfloat16, full_precision=True)
    assert hosts._full_precision_mm
    ours, x = FORMATS[hosts.quant_format].plain(hosts), torch.randn(3, 10, 128, dtype=torch.bfloat16)
    assert distance(ours(x), hosts(x)) < 2e-5


def test_a_product_of_float8_weights_without_scales() -> None:
    """With --fast fp8_matrix_mult. In a graph it is a product of float8, too, and not of weights that were cast."""
    import comfy.ops

    from onegraph.host.capture import rewrites

    made, usual = comfy.ops.fp8_ops.Linear(128, 256, device="cpu", dtype=torch.bfloat16), comfy.ops.fp8_linear
    torch.manual_seed(1)
    weight = torch.randn(256, 128).to(torch.float8_e4m3fn)
    made.weight = torch.nn.Parameter(weight, requires_grad=False)
    made.bias = torch.nn.Parameter(torch.randn(256, dtype=torch.bfloat16), requires_grad=False)
    for shape in [(5, 128), (3, 10, 128), (2, 3, 4, 128)]:
        for stretched in (1, 1000):  # beyond what float8 has, which the host cuts off in the input itself
            x = stretched * torch.randn(shape, dtype=torch.bfloat16)
            given, ours = x.clone(), x.clone()
            wanted = made(given)
            with rewrites.settings().rewrites():
                assert comfy.ops.fp8_linear is not usual
                assert (comfy.ops.fp8_linear(made, x.clone()) is None) == (len(shape) == 4)
                found = made(ours)
            assert torch.equal(ours, given) and distance(found, wanted) < 2e-5
            cast = torch.nn.functional.linear(x, weight.to(x.dtype), made.bias)
            assert (distance(wanted, cast) > 1e-2) == (len(shape) < 4)


@pytest.mark.parametrize("which", ["int8", "int8 convrot", "fp8 scaled"])
@pytest.mark.parametrize("activation", ["swiglu", "gelu_tanh"])
def test_an_activation_that_the_product_computes_on_the_way(which: str, activation: str) -> None:
    """As in MiniMax H3. The block in float32 computes it, too."""
    import comfy.ops

    from onegraph.host.capture import rewrites

    hosts = layer(which, torch.bfloat16)
    ours, usual = FORMATS[hosts.quant_format].plain(hosts), comfy.ops.linear_input_act
    width = 256 if activation == "swiglu" else 128
    for dtype in (torch.bfloat16, torch.float32):
        x = torch.randn(2, 5, width, dtype=dtype)
        wanted = usual(hosts, x.clone(), activation)
        with rewrites.settings().rewrites():
            assert comfy.ops.linear_input_act is not usual
            found = comfy.ops.linear_input_act(ours, x.clone(), activation)
        assert comfy.ops.linear_input_act is usual
        assert found.dtype == wanted.dtype and same_product(found, wanted)
        right = usual(exact_block(hosts), x.float(), activation)
        assert right.dtype == torch.float32 and distance(wanted, right) < 0.1


def test_experts_and_tables_are_refused_with_what_to_do() -> None:
    from comfy.ops import mixed_precision_ops
    from comfy.quant_ops import QuantizedTensor

    ops = mixed_precision_ops({}, torch.bfloat16)
    whole = QuantizedTensor.from_float(torch.randn(3 * 64, 32, dtype=torch.bfloat16), "TensorWiseINT8Layout")
    for made in (ops.MoEExperts(3, 32, 64, bias=False), ops.Embedding(192, 32)):
        made.weight, made.quant_format = torch.nn.Parameter(whole, requires_grad=False), "int8_tensorwise"
        found = plain.refusal(torch.nn.Sequential(made))
        assert found == reasons.QuantisedLayer(f"0 ({type(made).__name__})")
        assert "16 bits" in found.text


class Bytes(torch.Tensor):
    """As ComfyUI-GGUF has weights: bytes that know the shape of what they stand for."""

    meaning: tuple[int, ...]

    @property
    def shape(self) -> Any:
        return torch.Size(self.meaning)

    def to(self, *args: Any, **kwargs: Any) -> Any:
        moved = super().to(*args, **kwargs)
        moved.meaning = self.meaning
        return moved

    def detach(self) -> Any:
        return self


def of_bytes(layer: torch.nn.Linear) -> Any:
    """A layer of another pack's, of the kind that ComfyUI-GGUF has: int8 values, of which it makes a weight at each
    use."""
    from comfy.ops import manual_cast

    class Unpacking(manual_cast.Linear):
        def forward_comfy_cast_weights(self, x: torch.Tensor) -> torch.Tensor:
            weight: Any = self.weight
            values = weight.as_subclass(torch.Tensor).view(torch.int8).to(x.dtype) * 0.01
            return torch.nn.functional.linear(x, values, None if self.bias is None else self.bias.to(x.dtype))

    sizes = layer.in_features, layer.out_features, layer.bias is not None
    made = Unpacking(*sizes, device="cpu", dtype=layer.weight.dtype)
    made.load_state_dict(layer.state_dict())
    values = (layer.weight.data.float() / 0.01).round().clamp(-127, 127).to(torch.int8)
    packed = values.view(torch.uint8).as_subclass(Bytes)
    packed.meaning = tuple(values.size())
    made.weight = torch.nn.Parameter(packed, requires_grad=False)
    return made.eval()


def test_weights_of_another_pack_are_the_reason(counters: Counters) -> None:
    model = dits.load("qwen-image")
    module = model.model.diffusion_model
    for path, one in [*module.named_modules()]:
        if isinstance(one, torch.nn.Linear):
            parent, _, last = path.rpartition(".")
            setattr(module.get_submodule(parent), last, of_bytes(one))
    block = module.transformer_blocks[1]
    assert type(block.attn.to_q.weight) is Bytes
    for _ in range(2):
        found, wanted = dits.sample(compiled(model), "qwen-image"), dits.sample(model, "qwen-image")
        assert torch.equal(found, wanted)
        assert {*blocks()["eager_codes"]} == {"library_weight"} and not counters.compiles
    reason = plain.refusal(block)
    assert isinstance(reason, reasons.LibraryWeight) and reason.where.endswith("(Unpacking)")
    assert reason.type == "Bytes" and "16 bits" in reason.text and "Bytes" in told()


def test_a_format_that_no_graph_computes_with_is_refused() -> None:
    block = torch.nn.Sequential(layer("int8", torch.bfloat16))
    block[0].quant_format = "int3"
    assert plain.refusal(block) == reasons.WeightFormat("int3", "0 (Linear)")


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
    guard.refresh(block)
    assert (guard.version, guard.architecture(block)) == first, "other values of the same format"
    params = hosts.weight._params
    hosts.weight._params = replace(params, convrot_groupsize=16)
    guard.refresh(block)
    assert guard.version != first[0] and guard.architecture(block) != first[1]
    hosts.weight._params = replace(params, scale=params.scale.double())
    guard.refresh(block)
    assert guard.version != first[0]
    hosts.weight._params = params
    guard.refresh(block)
    assert (guard.version, guard.architecture(block)) == first


@pytest.mark.parametrize("which", SERVED)
def test_the_exact_layer_quantises_nothing(which: str) -> None:
    hosts = layer(which, torch.bfloat16, pre_quant_scale=torch.rand(128) + 0.5)
    x = torch.randn(7, 128)
    found = exact_block(torch.nn.Sequential(hosts))(x)
    weight = hosts.weight.to(dtype=torch.float32).dequantize()
    wanted = (x * hosts.pre_quant_scale) @ weight.t() + hosts.bias.float()
    assert found.dtype == torch.float32 and distance(found, wanted) < 1e-6


# Models -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "which"), KINDS)
def test_lifecycle(
    name: str, which: str, counters: Counters, fresh_process: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes; LoRA on, changed, off; another model; a part swapped behind its back; room for half of the weights; a new
    process: one compile."""
    model = quantised.load(name, which)
    error = own_error(model, name)
    assert 1e-4 < error < 0.2
    dits.sample(compiled(model), name, steps=1)
    compiles, apart = counters.compiles, []

    def checked(one: Any, *args: int, within: float = error, **options: int) -> dict[str, Any]:
        report, far = check(one, name, within, *args, **options)
        apart.append(far)
        codes = {*report["eager_codes"]}
        assert codes <= {"no_graph", "block_small", "waits_for_change"}, report
        assert bool(codes) == ((name, which) in PARTLY), report
        return report

    first = checked(model)
    served = first["calls"]
    assert served
    for batch, height, width, tokens in [(2, 12, 20, 30), (1, 24, 8, 77)]:
        batch = 1 if name == "minimax h3" else batch  # it takes no more
        assert checked(model, height, width, batch=batch, tokens=tokens)["calls"] == served
    plain_result = dits.sample(model, name)
    for strength in (0.3, 1.0):  # the host dequantises, adds and quantises anew: other values, other scales
        adapted = with_lora(model, strength)
        assert checked(adapted, within=max(error, own_error(adapted, name)))["calls"] == served
        assert distance(dits.sample(adapted, name), plain_result) > 2 * error
    assert checked(model)["calls"] == served
    assert checked(quantised.load(name, which, seed=9))["calls"] == served
    resident = dits.sample(compiled(model), name)
    swap_behind(model)
    swapped = own_error(model, name)
    assert checked(model, within=swapped)["calls"] == served
    assert distance(dits.sample(model, name), plain_result) > 2 * error
    with pages.simulated(monkeypatch):
        for room in (0.5, 0.1):
            other = quantised.load(name, which)
            vbar = pages.page(other, room)
            assert distance(dits.sample(compiled(other), name), resident) <= 2 * error
            streamed = blocks()
            assert streamed["calls"] == served and not any(vbar.pins), streamed
            if streamed["streamed"]:
                break
        assert streamed["streamed"]
    assert counters.compiles == compiles
    with new_process(fresh_process.store.home) as process:
        assert checked(model, within=swapped)["calls"] == served
        assert (process.counters.compiles, process.counters.eager_calls > 0) == (0, (name, which) in PARTLY)
    quantised_report.write(
        quantised_report.Row(
            name, which, first["of"], first["compiled"], streamed["compiled"], streamed["streamed"], max(apart), error
        )
    )


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "operations"), [*((name, "manual_cast") for name in STORED), ("qwen-image", "fp8_ops")]
)
def test_weights_that_are_stored_in_float8(
    name: str, operations: str, counters: Counters, fresh_process: Registry
) -> None:
    """Cast at each use, or multiplied as they are."""
    model = quantised.stored(name, operations=operations)
    error = own_error(model, name)
    dits.sample(compiled(model), name, steps=1)
    report, _ = check(model, name, error)
    assert report["calls"] and not report["eager_codes"], report
    compiles = counters.compiles
    other = quantised.stored(name, seed=9, operations=operations)
    assert check(other, name, error)[0]["calls"] == report["calls"] and counters.compiles == compiles
    with new_process(fresh_process.store.home) as process:
        assert check(model, name, error)[0]["calls"] == report["calls"]
        assert (process.counters.compiles, process.counters.eager_calls) == (0, 0)


def quantised_layers(model: Any) -> dict[str, Any]:
    """The quantised layers of blocks that repeat, by their keys in the model."""
    blocks = repeated_blocks(model.model.diffusion_model)
    return {
        f"diffusion_model.{block}.{key}": one
        for block, module in blocks.items()
        for key, one in module.named_modules()
        if getattr(one, "quant_format", None)
    }


def with_lora(model: Any, strength: float) -> Any:
    adapted = model.clone()
    torch.manual_seed(5)
    layers = quantised_layers(model)
    chosen = [*layers.items()][:: max(1, len(layers) // 24)]
    patches = {f"{key}.weight": ("diff", (0.05 * torch.randn(one.weight.shape),)) for key, one in chosen}
    assert len(adapted.add_patches(patches, strength)) == len(patches)
    return adapted


def swap_behind(model: Any) -> None:
    """Give half of the weights other values and the others another scale, in place of the tensors that were there."""
    for number, one in enumerate(quantised_layers(model).values()):
        scale = one.weight._params.scale
        if number % 2:
            one.weight._qdata = one.weight._qdata.flip(0).contiguous()
        else:
            other = scale * 1.5 if scale.dtype == torch.float32 else (scale.view(torch.uint8) + 1).view(scale.dtype)
            one.weight._params = replace(one.weight._params, scale=other)
