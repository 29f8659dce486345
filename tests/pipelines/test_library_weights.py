"""Blocks of diffusers with weights of quantising libraries: torchao's run compiled, others' eager, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import pipes
from support.models.block_pipes import BLOCKS, CASE, add_lora, latents, qwen
from support.scenes.judge import distance
from support.scenes.process import new_process

from onegraph.common import reasons
from onegraph.pipelines import adapters, compile_pipe, library_weights, module_facts
from onegraph.runtime.obtain.registry import Registry

STEPS = 3
EXACT = 5e-5  # of float32; an eighth of what quantising changes
SIZES: list[dict[str, int]] = [{}, {"side": 96, "tokens": 30}, {"side": 32, "tokens": 1}]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Registry]:
    with new_process(tmp_path) as registry:
        yield registry


def int8_of_weights() -> Any:
    from torchao.quantization import Int8WeightOnlyConfig

    return Int8WeightOnlyConfig()


def int8_of_both() -> Any:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig

    return Int8DynamicActivationInt8WeightConfig()


def float8_of_weights() -> Any:
    from torchao.quantization import Float8WeightOnlyConfig

    return Float8WeightOnlyConfig()


def quantised(config: Any, seed: int = 0) -> Any:
    """A small transformer, the Linears of its blocks quantised as diffusers has torchao do it."""
    from torchao.quantization import quantize_

    model = CASE.model(seed)
    quantize_(model.transformer_blocks, config)
    return model


def layer(config: Any) -> Any:
    from torchao.quantization import quantize_

    torch.manual_seed(1)
    made = torch.nn.Linear(128, 256).to(torch.bfloat16).requires_grad_(False)
    quantize_(made, config)
    return made


CONFIGS = [int8_of_weights, int8_of_both, float8_of_weights]


@pytest.mark.parametrize("config", CONFIGS)
def test_a_layer_of_plain_tensors_computes_what_torchaos_does(config: Callable[[], Any]) -> None:
    whole = torch.nn.Sequential(layer(config()))
    plain = library_weights.plain_block(whole)
    assert {type(one) for one in (*plain.parameters(), *plain.buffers())} <= {torch.Tensor, torch.nn.Parameter}
    for shape in [(3, 10, 128), (5, 128), (2, 1, 3, 128)]:
        x = torch.randn(shape, dtype=torch.bfloat16)
        assert torch.equal(plain(x), whole(x))
        right = library_weights.exact_block(whole)(x.float())
        assert right.dtype == torch.float32 and distance(whole(x).float(), right) < 0.05


@pytest.mark.parametrize("config", CONFIGS)
def test_what_a_weight_is_known_by(config: Callable[[], Any]) -> None:
    weight, other = layer(config()).weight, layer(config()).weight
    found = library_weights.parts(weight)
    assert found is not None and {type(one) for one in found.tensors.values()} == {torch.Tensor}
    assert library_weights.parts(other).metadata() == found.metadata()  # type: ignore[union-attr]
    others = {library_weights.parts(layer(one()).weight).metadata() for one in CONFIGS}  # type: ignore[union-attr]
    assert len(others) == len(CONFIGS)
    assert library_weights.parts(torch.randn(3)) is None


@pytest.mark.parametrize("config", [pytest.param(one, marks=pytest.mark.full) for one in CONFIGS])
def test_torchaos_weights_run_compiled(config: Callable[[], Any], engine: Registry) -> None:
    """Sizes; another model; one weight changed behind its back; a new process, which compiles nothing."""
    pipe = compile_pipe(qwen(transformer=quantised(config())))
    plain = qwen(transformer=quantised(config()))
    latents(pipe)
    compiles, within = 1, EXACT
    if config is int8_of_both:
        # Its product asks whether there is one row only: one image at a time has a graph of its own, and one word of
        # text for one image, too. And a last bit of an input is a step of the quantiser.
        before = engine.counters.eager_calls
        latents(pipe, side=32, tokens=1)
        assert engine.counters.eager_calls - before == BLOCKS, str(pipe.onegraph.report())
        compiles, within = 3, 3 * EXACT
    assert engine.counters.compiles == compiles, str(pipe.onegraph.report())

    def check(one: Any, other: Any, **size: int) -> None:
        before = engine.counters.eager_calls
        assert distance(latents(one, **size), latents(other, **size)) < within, size
        assert engine.counters.eager_calls == before, str(one.onegraph.report())

    for size in SIZES:
        check(pipe, plain, **size)
    check(compile_pipe(qwen(1, quantised(config(), 1))), qwen(1, quantised(config(), 1)))
    for one in (pipe, plain):
        changed = one.transformer.transformer_blocks[0].attn.to_q.weight
        changed.scale = changed.scale * 3
    wanted = latents(qwen(transformer=quantised(config())))
    check(pipe, plain)
    assert distance(latents(plain), wanted) > 10 * EXACT
    assert engine.counters.compiles == compiles
    with new_process(engine.store.home) as process:
        again = compile_pipe(qwen(transformer=quantised(config())))
        assert distance(latents(again), wanted) < within
        assert (process.counters.compiles, process.counters.eager_calls) == (0, 0)
        assert again.onegraph.report()["transformer"].blocks["calls"] == STEPS * BLOCKS


def flux_pipe(quantises: bool) -> Any:
    """With two blocks of each kind, so that they repeat."""
    from torchao.quantization import quantize_

    pipe = pipes.flux(num_layers=2, num_single_layers=2)
    if quantises:
        for blocks in (pipe.transformer.transformer_blocks, pipe.transformer.single_transformer_blocks):
            quantize_(blocks, int8_of_weights())
    return pipe


@pytest.mark.full
def test_a_quantised_flux_runs_compiled(engine: Registry) -> None:
    pipe, plain = compile_pipe(flux_pipe(True), ignores="vae"), flux_pipe(True)

    def images(one: Any, height: int = 64, width: int = 64) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1)
        given = {"prompt_embeds": torch.randn(1, 9, 32, generator=generator)}
        given["pooled_prompt_embeds"] = torch.randn(1, 32, generator=generator)
        found: torch.Tensor = one(
            **given, height=height, width=width, num_inference_steps=STEPS, output_type="latent", generator=generator
        ).images
        return found

    images(pipe)
    assert engine.counters.compiles == 2, str(pipe.onegraph.report())
    before = engine.counters.eager_calls
    for size in [(64, 64), (96, 64)]:
        assert distance(images(pipe, *size), images(plain, *size)) < EXACT
    assert (engine.counters.compiles, engine.counters.eager_calls) == (2, before), str(pipe.onegraph.report())


@pytest.mark.full
@pytest.mark.parametrize("config", [int8_of_weights, float8_of_weights])
def test_a_lora_on_torchaos_weights_runs_compiled(config: Callable[[], Any], engine: Registry) -> None:
    """One compile for it at any strength, one for the weights without it."""
    pipe = compile_pipe(qwen(transformer=quantised(config())))
    plain = qwen(transformer=quantised(config()))
    without = latents(plain)
    for one in (pipe, plain):
        add_lora(one)
    assert {type(one).__name__ for one in pipe.transformer.modules()} >= {"TorchaoLoraLinear"}
    latents(pipe)

    def check(compiles: int) -> None:
        before = engine.counters.eager_calls
        assert distance(latents(pipe), latents(plain)) < EXACT
        assert engine.counters.eager_calls == before, str(pipe.onegraph.report())
        assert engine.counters.compiles == compiles

    check(1)
    assert distance(latents(plain), without) > 1e-3
    for one in (pipe, plain):
        one.transformer.set_adapters(["style"], [0.5])
    check(1)
    for one in (pipe, plain):
        one.transformer.disable_lora()
    latents(pipe)
    check(2)
    assert distance(latents(pipe), without) < EXACT
    for one in (pipe, plain):
        one.transformer.enable_lora()
    check(2)


def test_what_a_lora_on_torchaos_weights_is() -> None:
    pipe, other = (qwen(transformer=quantised(int8_of_weights())) for _ in range(2))
    add_lora(other, use_dora=True)
    assert adapters.refusal(other.transformer.transformer_blocks[0]) == reasons.AdapterLayers("PEFT", "attn.to_q")
    add_lora(pipe)
    block = pipe.transformer.transformer_blocks[0]
    assert adapters.refusal(block) is None
    made, _ = adapters.as_compiled(block)
    x = torch.randn(2, 5, block.attn.to_q.in_features, generator=torch.Generator().manual_seed(2))
    found, wanted = made.attn.to_q(x), block.attn.to_q(x)
    torch.testing.assert_close(found, wanted)
    assert not torch.allclose(wanted, block.attn.to_q.base_layer(x))


class Packed(torch.nn.Parameter):
    """A weight as libraries have them whose layers unpack it: bytes in a class of their own."""


def packed(model: Any) -> Any:
    """A model with one weight of another class, whose memory is its values: eager calls compute with it."""
    old = model.transformer_blocks[1].attn.to_q
    old.weight = torch.Tensor._make_subclass(Packed, old.weight.data, False)
    return model


def test_a_weight_of_another_library_is_the_reason(engine: Registry) -> None:
    pipe, plain = compile_pipe(qwen(transformer=packed(CASE.model(0))), when_missing="eager"), qwen()
    assert torch.equal(latents(pipe), latents(plain))
    report = pipe.onegraph.report()["transformer"]
    assert report.blocks["eager_codes"]["library_weight"] == STEPS, report.text
    assert engine.counters.compiles == 0
    found = library_weights.refusal(pipe.transformer.transformer_blocks[1].attn.to_q, "attn.to_q")
    assert found == reasons.LibraryWeight("Packed", "tests", "attn.to_q (Linear)") and "16 bits" in found.text


def test_a_whole_model_reads_no_weights_of_torchaos() -> None:
    made = torch.nn.Sequential(layer(int8_of_weights()))
    found = module_facts.read(made)
    assert found.refusal == reasons.LibraryWeight("Int8Tensor", "torchao", "0 (Linear)")
    assert module_facts.read(made, weights=library_weights.refusal).refusal is None
    made[0].scale = torch.nn.Parameter(torch.ones(1))  # whatever it is for
    found = module_facts.read(made, weights=library_weights.refusal)
    assert found.refusal == reasons.QuantisedLayer("0 (Linear)")
