"""Small diffusion transformers with the layers of ComfyUI-GGUF, sampled with their blocks compiled."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from support.models import dits, ggml_models
from support.models.gguf_files import KINDS
from support.scenes.judge import distance
from support.scenes.nodes import blocks, compiled
from support.scenes.process import new_process

from onegraph.common import reasons
from onegraph.host.weights import eligibility, ggml, plain
from onegraph.host.weights.quantised import exact_block
from onegraph.runtime.counters import Counters
from onegraph.runtime.guards.module_guard import ModuleGuard
from onegraph.runtime.obtain.registry import Registry

pytestmark = pytest.mark.usefixtures("inference")
TYPES = ["BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "Q6_K", "Q5_K", "Q4_K", "Q3_K", "Q2_K", "IQ4_NL", "IQ4_XS"]
EXACT = 1e-4  # relative to eager, over a sampling in float32


def _packs() -> list[Any]:
    return [
        pytest.param(name, marks=pytest.mark.skipif(not path.is_dir(), reason="COMFYUI_GGUF_PATH names no such pack"))
        for name, path in ggml_models.PACKS.items()
    ]


@pytest.fixture(params=_packs())
def pack(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def linear(seed: int = 0) -> torch.nn.Linear:
    torch.manual_seed(seed)
    return torch.nn.Linear(256, 64)


def check(model: Any, name: str, *sizes: int, within: float = EXACT, **options: int) -> dict[str, Any]:
    """Sample with and without graphs; the report."""
    wanted = dits.sample(model, name, *sizes, **options)
    result = dits.sample(compiled(model), name, *sizes, **options)
    assert distance(result, wanted) < within, blocks()
    return blocks()


@pytest.mark.parametrize("kind", TYPES)
def test_a_layer_computes_what_the_packs_does(pack: str, kind: str) -> None:
    if kind not in [one.name for one in ggml_models.pack(pack).dequant.dequantize_functions]:
        pytest.skip(f"this pack has no {kind}")
    theirs = ggml_models.layer(pack, linear(), KINDS[kind])
    ours = ggml.DequantisingLinear(theirs)
    assert {*dict(ours.named_buffers())} == {"weight._memory", "bias._memory"}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x = torch.randn(2, 5, 256, dtype=dtype)
        wanted = theirs(x)
        assert torch.equal(ours(x), wanted)
        captured = torch.export.export(ours, (x,), strict=False).module()
        assert torch.equal(captured(x), wanted)
    exact = exact_block(torch.nn.Sequential(theirs))(torch.randn(3, 256).double().float())
    assert exact.dtype == torch.float32 and type(exact) is torch.Tensor


def test_the_exact_layer_has_the_values_that_bytes_stand_for_and_loras(pack: str) -> None:
    theirs, x = ggml_models.layer(pack, linear(), KINDS.Q8_0), torch.randn(3, 256)
    weight = theirs.get_weight(theirs.weight, torch.float32)
    exact = exact_block(torch.nn.Sequential(theirs))(x)
    assert distance(exact, torch.nn.functional.linear(x, weight, ggml.without_class(theirs.bias))) < 1e-3
    change = torch.randn(64, 256)
    theirs.weight.patches = [([(1.0, ("diff", (change,)), 1.0, None, None)], "weight")]
    assert distance(exact_block(torch.nn.Sequential(theirs))(x) - exact, x @ change.t()) < 1e-5


def test_what_no_graph_reads_is_refused(pack: str) -> None:
    modules = ggml_models.pack(pack)
    theirs = ggml_models.layer(pack, linear(), KINDS.Q8_0)
    assert plain.refusal(torch.nn.Sequential(theirs)) is None
    theirs.weight.patches = [([], "weight")]
    assert isinstance(plain.refusal(torch.nn.Sequential(theirs)), reasons.WeightComputed)
    assert plain.refusal(torch.nn.Sequential(theirs), brought=True) is None
    theirs.weight.patches, theirs.weight.tensor_type = [], KINDS.IQ2_XXS  # dequantised by numpy
    assert plain.refusal(torch.nn.Sequential(theirs)) == reasons.WeightFormat("GGUF IQ2_XXS", "0 (Linear)")
    theirs.weight.tensor_type = KINDS.Q8_0
    cls, block = type(theirs), torch.nn.Sequential(theirs)
    around = plain.surroundings([cls])
    for option in ("dequant_dtype", "patch_dtype"):
        with pytest.MonkeyPatch.context() as patch:  # as the pack's advanced loader does: a compile would not know
            patch.setattr(cls, option, torch.float32)
            assert isinstance(plain.refusal(block), reasons.WeightFormat) and plain.surroundings([cls]) != around
            patch.setattr(cls, option, None)
            assert plain.refusal(block) is None and plain.surroundings([cls]) == around

    class Other(modules.ops.GGMLOps.Linear):  # type: ignore[misc, name-defined]
        pass

    theirs.__class__ = Other
    assert plain.refusal(torch.nn.Sequential(theirs)) == reasons.QuantisedLayer("0 (Other)")


def test_types_shapes_and_loras_are_part_of_the_architecture(pack: str) -> None:
    block = torch.nn.Sequential(ggml_models.layer(pack, linear(), KINDS.Q8_0))
    guard = ModuleGuard(block, eligibility.rules())
    first = guard.version, guard.architecture(block)
    block[0].weight = ggml_models.layer(pack, linear(1), KINDS.Q8_0).weight
    guard.refresh(block)
    assert (guard.version, guard.architecture(block)) == first, "other values of the same type"
    block[0].largest_layer = True  # as the pack marks one layer of a file
    guard.refresh(block)
    assert (guard.version, guard.architecture(block)) == first
    for change in ({"patches": [([], "weight")]}, {"tensor_type": KINDS.Q5_1}, {"tensor_shape": torch.Size((32, 512))}):
        before = {name: getattr(block[0].weight, name) for name in change}
        vars(block[0].weight).update(change)
        guard.refresh(block)
        assert guard.version != first[0] and guard.architecture(block) != first[1], change
        vars(block[0].weight).update(before)
        guard.refresh(block)
        assert (guard.version, guard.architecture(block)) == first


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("qwen-image", "Q8_0"),
        *(
            pytest.param(*one, marks=pytest.mark.full)
            for one in (("flux", "Q4_0"), ("wan 2.1 t2v", "Q5_1"), ("z-image", "Q4_K"))
        ),
    ],
)
def test_lifecycle(pack: str, name: str, kind: str, counters: Counters, fresh_process: Registry) -> None:
    """Sizes, CFG; another model; LoRA on, changed, off; a new process: one compile for each of two states."""
    model = ggml_models.load(pack, name, KINDS[kind])
    dits.sample(compiled(model), name, steps=1)
    report = check(model, name)
    assert report["calls"] and not report["eager_codes"], report
    compiles = counters.compiles
    for sizes, options in [((24, 16), {"batch": 2}), ((32, 32), {"tokens": 21}), ((16, 24), {"cfg": 3.0})]:
        report = check(model, name, *sizes, **options)
        assert not report["eager_codes"] and counters.compiles == compiles, report
    assert check(ggml_models.load(pack, name, KINDS[kind], seed=4), name)["calls"] and counters.compiles == compiles
    for strength in (0.8, -0.4):
        adapted = with_lora(model, strength)
        assert distance(dits.sample(adapted, name), dits.sample(model, name)) > 100 * EXACT
        if strength == 0.8:
            dits.sample(compiled(adapted), name, steps=1)
        report = check(adapted, name)
        assert report["calls"] and not report["eager_codes"], report
        if strength == 0.8:
            adapted_compiles = counters.compiles
    assert counters.compiles == adapted_compiles > compiles
    assert not check(model, name)["eager_codes"] and counters.compiles == adapted_compiles
    with new_process(fresh_process.store.home) as process:
        for one in (model, with_lora(model, 0.5)):
            report = check(one, name)
            assert report["calls"] and not report["eager_codes"], report
        assert not process.counters.compiles


@pytest.mark.full
def test_sixty_runs_with_changes_behind_the_patcher(pack: str) -> None:
    """LoRAs in turns; then weights' patches taken away, and options of the pack set, by nobody's leave."""
    name, counts = "qwen-image", []
    model = ggml_models.load(pack, name, KINDS.Q8_0)
    for number in range(60):
        adapted = with_lora(model, 0.5 + number % 3) if number % 2 else model
        dits.sample(compiled(adapted), name, steps=1)
        del adapted
        if number % 20 == 19:
            gc.collect()
            counts.append(sum(isinstance(one, torch.Tensor) for one in gc.get_objects()))
    assert counts[2] - counts[1] < 10 and counts[1] - counts[0] < 10, counts
    assert not check(model, name)["eager_codes"]
    ops, one = ggml_models.pack(pack).ops, model.model.diffusion_model.transformer_blocks[1].attn.to_q
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ops.GGMLOps.Linear, "patch_dtype", torch.float32)
        assert "weight_format" in check(model, name)["eager_codes"]
    assert not check(model, name)["eager_codes"]
    change = torch.randn(tuple(one.weight.tensor_shape)) * 0.05
    one.weight.patches = [([(1.0, ("diff", (change,)), 1.0, None, None)], "weight")]
    changed = dits.sample(compiled(model), name)
    assert distance(changed, dits.sample(model, name)) < EXACT
    one.weight.patches = []
    assert distance(changed, dits.sample(model, name)) > EXACT
    assert not check(model, name)["eager_codes"]


def with_lora(model: Any, strength: float) -> Any:
    adapted = model.clone()
    torch.manual_seed(5)
    layers = {
        f"diffusion_model.{path}.weight": one
        for path, one in model.model.diffusion_model.named_modules()
        if ggml.is_served(one)
    }
    patches = {key: ("diff", (0.05 * torch.randn(tuple(one.weight.tensor_shape)),)) for key, one in layers.items()}
    assert len(adapted.add_patches(patches, strength)) == len(patches)
    return adapted
