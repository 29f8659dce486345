"""GGUF files in diffusers: their blocks run compiled and dequantise as diffusers' layers do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import diffusers.quantizers.gguf.utils as library
import pytest
import torch
from diffusers.hooks import apply_group_offloading
from support.models.block_pipes import BLOCKS, CASE, add_lora, latents, qwen
from support.models.gguf_files import KINDS, layer, loaded, packed
from support.scenes.judge import distance
from support.scenes.process import new_process

from onegraph.common import reasons
from onegraph.pipelines import compile_pipe, library_weights, module_facts
from onegraph.pipelines.families import family_of
from onegraph.runtime.obtain.registry import Registry

from .test_library_weights import STEPS, engine

__all__ = ["engine"]  # a fixture

EXACT = 1e-6  # of float32
TYPES = [*library.dequantize_functions]


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: str(kind.name))
def test_a_layer_of_plain_tensors_computes_what_diffusers_does(kind: Any) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        whole = torch.nn.Sequential(layer(kind, dtype))
        plain = library_weights.plain_block(whole)
        assert {type(one) for one in (*plain.parameters(), *plain.buffers())} <= {torch.Tensor, torch.nn.Parameter}
        x = torch.randn(3, 10, 256, dtype=dtype)
        assert torch.equal(plain(x), whole(x))
        right = library_weights.exact_block(whole)(x.float())
        assert right.dtype == torch.float32 and distance(whole(x).float(), right) < 0.01
        program = torch.export.export(plain, (x,), strict=False)
        assert not program.constants and "0.weight._memory" in program.state_dict  # no table that stands in the code


def test_what_a_weight_is_known_by() -> None:
    found = {library_weights.parts(layer(kind).weight).metadata() for kind in TYPES}  # type: ignore[union-attr]
    assert len(found) == len(TYPES)
    first, other = (library_weights.parts(layer(KINDS.Q8_0, seed=seed).weight) for seed in range(2))
    assert first is not None and other is not None and first.metadata() == other.metadata()
    unknown = layer(KINDS.Q8_0)
    unknown.weight.quant_type = KINDS.TQ1_0
    assert library_weights.refusal(unknown, "to_q") == reasons.LibraryWeight(
        "GGUFParameter", "diffusers", "to_q (GGUFLinear)"
    )


def test_other_kernels_are_the_users_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    made = torch.nn.Sequential(layer(KINDS.Q4_K))
    assert module_facts.read(made, weights=library_weights.refusal).refusal is None
    monkeypatch.setattr(library, "ops", object())
    assert library_weights.refusal(made[0], "to_q") == reasons.QuantisedLayer("to_q (GGUFLinear)")


def test_a_function_that_was_exchanged_in_the_table_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager calls what the table has, whose names the record of a graph's code does not hold."""
    made = layer(KINDS.Q4_K)
    usual = library.dequantize_functions[KINDS.Q4_K]
    assert library_weights.refusal(made, "to_q") is None
    monkeypatch.setitem(library.dequantize_functions, KINDS.Q4_K, lambda *given: usual(*given) * 2)
    assert isinstance(library_weights.refusal(made, "to_q"), reasons.LibraryWeight)


def test_blocks_with_other_types_than_the_next_are_blocks(tmp_path: Path) -> None:
    """As files have them: more bits for the weights of some blocks."""
    model = loaded(CASE.model(0), tmp_path)
    changed = model.transformer_blocks[1].attn.to_v
    values = torch.randn(changed.out_features, changed.in_features)
    changed.weight = library.GGUFParameter(packed(values, KINDS.Q5_1), quant_type=KINDS.Q5_1)
    assert type(family_of(model)).__name__ == "Blocks"


@pytest.mark.full
@pytest.mark.parametrize("kind", [KINDS.Q8_0, KINDS.Q4_0, KINDS.Q5_1], ids=lambda kind: str(kind.name))
def test_a_file_runs_compiled(kind: Any, engine: Registry, tmp_path: Path) -> None:
    """Sizes; another file; a weight changed behind its back; offloaded; a new process; a LoRA."""
    pipe = compile_pipe(qwen(transformer=loaded(CASE.model(0), tmp_path, kind)))
    plain = qwen(transformer=loaded(CASE.model(0), tmp_path, kind))
    latents(pipe)

    def check(one: Any, other: Any, compiles: int, **size: int) -> None:
        before = engine.counters.eager_calls
        assert distance(latents(one, **size), latents(other, **size)) < EXACT, size
        assert engine.counters.eager_calls == before, str(one.onegraph.report())
        assert engine.counters.compiles == compiles

    for size in ({}, {"side": 96, "tokens": 30}, {"side": 32, "tokens": 1}):
        check(pipe, plain, 1, **size)
    wanted = latents(plain)
    others = [qwen(1, loaded(CASE.model(1), tmp_path, kind)) for _ in range(2)]
    check(compile_pipe(others[0]), others[1], 1)
    for in_place in (True, False):
        for one in (pipe, plain):
            changed = one.transformer.transformer_blocks[0].attn.to_q
            if in_place:
                changed.weight.data[:, 2:] = 1  # the scales stay
            else:
                changed.weight = library.GGUFParameter(changed.weight.as_tensor().flip(0), quant_type=kind)
        check(pipe, plain, 1)
    assert distance(latents(plain), wanted) > 1e-3
    offloaded, again = (qwen(transformer=loaded(CASE.model(0), tmp_path, kind)) for _ in range(2))
    cpu = torch.device("cpu")
    apply_group_offloading(
        offloaded.transformer,
        cpu,
        cpu,
        offload_type="block_level",
        num_blocks_per_group=1,
        offload_to_disk_path=str(tmp_path),
    )
    offloaded = compile_pipe(offloaded)
    assert distance(latents(offloaded), wanted) < EXACT
    assert offloaded.onegraph.report()["transformer"].blocks["streamed"] == BLOCKS
    with new_process(engine.store.home) as process:
        assert distance(latents(compile_pipe(again)), wanted) < EXACT
        assert (process.counters.compiles, process.counters.eager_calls) == (0, 0)
        assert again.onegraph.report()["transformer"].blocks["calls"] == STEPS * BLOCKS
    if kind == KINDS.Q8_0:
        for one in (pipe, plain):
            add_lora(one)
        latents(pipe)
        check(pipe, plain, 2)
        for one in (pipe, plain):
            one.transformer.set_adapters(["style"], [0.5])
        check(pipe, plain, 2)


@pytest.mark.full
def test_a_type_that_is_changed_by_hand_is_noticed(engine: Registry, tmp_path: Path) -> None:
    """Bytes of one type read as another of the same length give other values: never a graph of the first."""
    pipe = compile_pipe(qwen(transformer=loaded(CASE.model(0), tmp_path, KINDS.Q4_0)))
    plain = qwen(transformer=loaded(CASE.model(0), tmp_path, KINDS.Q4_0))
    for _ in range(2):
        latents(pipe)
    before = latents(pipe)
    for one in (pipe, plain):
        one.transformer.transformer_blocks[0].attn.to_q.weight.quant_type = KINDS.IQ4_NL
    wanted = latents(plain)
    assert distance(wanted, before) > 1e-3
    assert distance(latents(pipe), wanted) < EXACT
    assert distance(latents(pipe), wanted) < EXACT
