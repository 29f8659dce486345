"""Modulation that is kept from step to step where weights are streamed: the module's own results to the bit, and never
older than its weights, its timestep or its LoRAs. Its weights stay off the device, and make room for the others'."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.comfyui import loaded_in_part, pages
from support.dit_matrix.weights import lora_of
from support.models import dits, quantised
from support.scenes.judge import distance
from support.scenes.nodes import assert_close, blocks, compiled, told
from support.scenes.process import new_process

from onegraph.host.show import status
from onegraph.host.weights import paged_blocks, paged_weights
from onegraph.runtime.calls import kept_modulation
from onegraph.runtime.calls.look_ahead import LookAhead
from onegraph.runtime.obtain import registry as registry_module
from onegraph.runtime.obtain.registry import Registry
from onegraph.signature.modulation import Given


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without graphs of blocks that have all weights, which would serve here, too."""
    return tmp_path_factory.mktemp("home")


@contextlib.contextmanager
def process(home: Path) -> Iterator[Registry]:
    """A registry, and what is known of blocks, as a new process would have them."""
    kept_modulation._modules.clear()
    kept_modulation._kept.clear()
    status.last_runs.clear()
    with new_process(home) as fresh:
        yield fresh


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[Registry]:
    with process(home) as made, torch.inference_mode(), pages.simulated(monkeypatch):
        yield made


def modulation_of(model: Any) -> list[torch.nn.Module]:
    """The layers of a Flux whose results are kept."""
    named = model.model.diffusion_model.named_modules()
    return [layer for name, layer in named if name.endswith(("mod.lin", "modulation.lin"))]


@pytest.fixture
def paged() -> tuple[Any, pages.FakeVbar]:
    """A small FLUX.1 with pages for two fifths of it, whose first run was a streamed one."""
    model = dits.load("flux")
    vbar = pages.page(model, 0.4)
    dits.sample(compiled(model), "flux", steps=3)
    return model, vbar


def check(model: Any, wanted: torch.Tensor, steps: int = 3, **changes: Any) -> tuple[int, int]:
    """A sampling of compiled blocks alone is right; how many results were kept ones, and how many were computed."""
    found = dits.sample(compiled(model), "flux", steps=steps, **changes)
    report, text = blocks(), told()
    assert_close(found, wanted, 1e-6)
    assert (report["eager_codes"], report["compiled"]) == ({}, report["of"]), text
    layers = [vars(layer) for layer in model.model.modules() if "_v" in vars(layer)]
    assert not any("_prefetch" in layer for layer in layers)
    assert len({id(layer["_v"][0]) for layer in layers}) <= 1  # and no stand-in for one
    return report["modulation"]["kept"], report["modulation"]["computed"]


def test_a_timestep_that_was_met_needs_no_weights_of_the_modulation(
    paged: Any, monkeypatch: pytest.MonkeyPatch, fresh: Registry
) -> None:
    model, vbar = paged
    wanted = dits.sample(model, "flux", steps=3)
    calls = 3 * len(modulation_of(model))
    check(model, wanted)
    first = dits.sample(compiled(model), "flux", steps=3)
    compiles = fresh.counters.compiles
    with monkeypatch.context() as patching:

        def nothing(*args: Any) -> Any:
            raise AssertionError("a module was called whose result is there")

        patching.setattr(paged_blocks.StreamedBlocks, "results", nothing)
        assert check(model, wanted) == (calls, 0)
    assert torch.equal(dits.sample(compiled(model), "flux", steps=3), first)
    assert f"modulation kept in {calls} of {calls} calls" in told()
    assert check(model, dits.sample(model, "flux", steps=4), steps=4)[1] > 0  # other timesteps
    assert fresh.counters.compiles == compiles
    assert not any(vbar.pins)


def test_a_new_process_restores_what_was_compiled_so(paged: Any, home: Path) -> None:
    """It learns from the stored graphs which modules they do without, and runs no block uncompiled for that."""
    with process(home) as restored:
        model = dits.load("flux")
        wanted = dits.sample(model, "flux", steps=3)
        pages.page(model, 0.4)
        check(model, wanted)
        assert restored.counters.compiles == 0


def test_a_model_that_was_compiled_with_room_is_not_compiled_again(tmp_path: Path) -> None:
    with process(tmp_path) as made:
        model = dits.load("flux")
        wanted = dits.sample(model, "flux", steps=3)
        dits.sample(compiled(model), "flux", steps=3)
        pages.page(model, 0.4)
        assert check(model, wanted) == (0, 0)
        assert made.counters.compiles == 2


def test_a_model_loaded_in_part_without_pages(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same graphs, with LoRAs that the host applies at each use."""
    import comfy.sd

    loaded_in_part.simulate(monkeypatch)
    model = dits.load("flux")
    wanted = dits.sample(model, "flux", steps=3)
    count = 3 * len(modulation_of(model))
    dits.sample(compiled(model), "flux", steps=3)
    check(model, wanted)  # the blocks that were watched kept nothing
    assert check(model, wanted) == (count, 0)
    assert blocks()["streamed"] > 0
    for strength in (0.7, 1.4):
        patched = comfy.sd.load_lora_for_models(model, None, lora_of(model), strength, 0)[0]
        merged = dits.sample(patched, "flux", steps=3)
        assert check(patched, merged)[1] > 0
        assert check(patched, merged) == (count, 0)
    assert check(model, wanted)[1] > 0


def test_a_schedule_is_computed_in_its_first_step(paged: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is called up to its first block for that, with tensors of its own, once for each prompt."""
    model, _ = paged
    wanted = dits.sample(model, "flux", steps=9)
    count = len(modulation_of(model))
    assert check(model, wanted, steps=9) == (8 * count, count)
    assert check(model, wanted, steps=9) == (9 * count, 0)
    guided = {"steps": 5, "cfg": 3.0, "seed": 8}
    assert check(model, dits.sample(model, "flux", **guided), **guided)[1] <= 2 * count  # and without a prompt
    looks: list[float] = []
    real = LookAhead.first_block

    def counted(self: LookAhead, timestep: float) -> Any:
        looks.append(timestep)
        return real(self, timestep)

    monkeypatch.setattr(LookAhead, "first_block", counted)
    assert check(model, wanted, steps=9) == (9 * count, 0)
    assert len(looks) <= 4  # only the current ones


def test_the_room_of_the_modulation_goes_to_other_weights(paged: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """comfy-aimdo counts absent pages before others; those of the modulation are the last ones after a step."""
    monkeypatch.setattr(paged_weights, "_PIECE", 2 * pages.PAGE)
    model, _ = paged
    wanted = dits.sample(model, "flux", steps=3)
    layers = [layer for layer in model.model.modules() if "_v" in vars(layer)]
    share = sum(vars(one)["_v"][2] for one in modulation_of(model)) / sum(vars(one)["_v"][2] for one in layers)
    vbar = pages.page(model, 1.1 - share)
    check(model, wanted)
    last = max(vars(one)["_v"][1] for one in layers if one not in modulation_of(model))
    assert all(vars(one)["_v"][1] > last for one in modulation_of(model))
    check(model, wanted)
    assert blocks()["streamed"] == 0, told()
    filled = vbar.filled
    assert check(model, dits.sample(model, "flux", steps=5), steps=5)[1] > 0  # other timesteps, by what is held
    assert blocks()["streamed"] == 0 and vbar.filled == filled
    assert not any(vbar.pins)
    vbar.evict()
    vbar.room = 0
    check(model, wanted)
    assert blocks()["streamed"] == 5


@pytest.mark.parametrize(
    "who", ["hook", "wrapper", "patch", "function", "partial", "method", "module", "named", "cached"]
)
def test_nobodys_code_is_called_once_more(who: str, paged: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever counts the calls of a model sees as many as there are: then each step computes its own."""
    import comfy.ldm.flux.model
    import comfy.patcher_extension

    model, _ = paged
    counts: list[int] = []

    def count() -> None:
        counts[-1] += 1

    def counted(used: Any) -> Any:
        counts.append(0)
        if who == "wrapper":
            kind = comfy.patcher_extension.WrappersMP.DIFFUSION_MODEL
            used.add_wrapper_with_key(kind, "counts", lambda executor, *args: (count(), executor(*args))[1])
        elif who == "patch":
            used.set_model_patch_replace(
                lambda args, extra: (count(), extra["original_block"](args))[1], "dit", "double_block", 0
            )
        return used

    module = model.model.diffusion_model
    layer, cls = module.img_in, type(module)
    own, named = cls.forward_orig, comfy.ldm.flux.model.timestep_embedding

    def counting(*args: Any, **kwargs: Any) -> Any:
        count()
        return own(*args, **kwargs)

    class Counting(torch.nn.Module):
        def forward(self, *args: Any) -> Any:
            count()
            return layer(*args)

    handle = layer.register_forward_hook(lambda *args: count()) if who == "hook" else None
    if who == "function":  # of a pack, on the model itself
        module.forward_orig = counting.__get__(module)
    elif who == "partial":
        module.forward_orig = functools.partial(counting, module)
    elif who == "method":
        monkeypatch.setattr(cls, "forward_orig", counting)
    elif who == "module":
        module._modules["img_in"] = Counting()
    elif who in ("named", "cached"):  # what the host's own method looks up
        replaced = functools.partial(lambda *args: (count(), named(*args))[1])
        other = replaced if who == "named" else functools.lru_cache(0)(replaced)
        monkeypatch.setattr(comfy.ldm.flux.model, "timestep_embedding", other)
    try:
        wanted = dits.sample(counted(model.clone()), "flux", steps=6)
        found = dits.sample(counted(compiled(model)), "flux", steps=6)
    finally:
        vars(module).pop("forward_orig", None)
        module._modules["img_in"] = layer
        if handle is not None:
            handle.remove()
    assert counts[0] == counts[1] > 0
    assert distance(found, wanted) < 1e-6
    assert blocks()["modulation"]["computed"] > len(modulation_of(model))


def test_loras_of_the_modulation_and_of_other_layers(paged: Any) -> None:
    """On, stronger, off; results are kept through LoRAs that leave the modulation as it is."""
    import comfy.sd

    model, vbar = paged
    plain = dits.load("flux")
    dits.sample(compiled(model), "flux", steps=3)
    lora = lora_of(plain)
    others = {name: one for name, one in lora.items() if ".lin." not in name}
    assert 0 < len(others) < len(lora)
    for chosen, strength in ((lora, 0.8), (lora, 1.6), (lora, 1.6), (None, 0.0), (others, 1.0), (others, 0.5)):
        patched = comfy.sd.load_lora_for_models(plain, None, chosen, strength, 0)[0] if chosen else plain
        wanted = dits.sample(patched, "flux", steps=3)
        pages.patch(model, patched)
        kept, computed = check(model, wanted)
        assert (computed > 0) == (chosen is not others), (strength, kept, computed)
        assert check(model, wanted)[1] == 0
        vbar.evict()


@pytest.mark.parametrize("how", ["written", "exchanged", "data"])
def test_weights_of_the_modulation_that_change(how: str, paged: Any) -> None:
    """In place, by another tensor, or within: also where torch counts no writes to a tensor."""
    model, vbar = paged
    dits.sample(compiled(model), "flux", steps=3)
    for number, layer in enumerate(modulation_of(model)):
        if how == "written":
            layer.weight.mul_(-1.3)
        elif how == "data":
            layer.bias.data.add_(0.1 * (number + 1))
        else:
            layer.weight = torch.nn.Parameter(layer.weight * 0.7, requires_grad=False)
        layer._v_signature = None  # type: ignore[assignment]
    assert check(model, dits.sample(model, "flux", steps=3))[1] > 0
    assert not any(vbar.pins)


def test_weights_of_the_modulation_that_change_between_steps(paged: Any) -> None:
    model, _ = paged
    dits.sample(compiled(model), "flux", steps=3)

    def change(given: Any) -> Any:
        for layer in modulation_of(model):
            layer.weight.mul_(1.05)
            layer._v_signature = None  # type: ignore[assignment]
        return given["denoised"]

    def run(used: Any) -> torch.Tensor:
        weights = [layer.weight.clone() for layer in modulation_of(model)]
        used.set_model_sampler_post_cfg_function(change)
        found = dits.sample(used, "flux", steps=3)
        for layer, weight in zip(modulation_of(model), weights, strict=True):
            layer.weight.copy_(weight)
            layer._v_signature = None  # type: ignore[assignment]
        return found

    found = run(compiled(model))
    assert blocks()["eager_codes"] == {}
    assert distance(found, run(model.clone())) < 1e-6


def writing(step: int) -> Callable[[Any, Any], Any]:
    """A patch that writes to what all blocks see, in one step and others, and has the block run as ever."""
    calls: list[int] = []

    def patch(args: Any, extra: Any) -> Any:
        calls.append(1)
        if len(calls) == step:
            args["vec"].mul_(1.5)
        return extra["original_block"](args)

    return patch


def test_options_that_hold_themselves(paged: Any) -> None:
    """What is in them cannot be told, so that other code may run between blocks."""
    model, _ = paged
    wanted = dits.sample(model, "flux", steps=3)
    fast = compiled(model)
    mine: dict[str, Any] = {}
    mine["mine"] = mine
    fast.model_options["transformer_options"]["somebodys"] = [mine]
    for _ in range(2):
        assert distance(dits.sample(fast, "flux", steps=3), wanted) < 1e-6
        assert blocks()["eager_codes"] == {}, told()


@pytest.mark.parametrize("step", [1, 2, 3])
def test_code_between_blocks_that_writes_to_what_they_see(step: int, paged: Any) -> None:
    """All blocks are given one tensor, which is read once in a step: not where somebody else's code runs in between."""
    model, _ = paged

    def patched(used: Any) -> Any:
        used.set_model_patch_replace(writing(step), "dit", "double_block", 1)
        return used

    wanted = dits.sample(patched(model.clone()), "flux", steps=3)
    plain = dits.sample(model, "flux", steps=3)
    assert distance(wanted, plain) > 1e-4
    for _ in range(2):
        found = dits.sample(patched(compiled(model)), "flux", steps=3)
        assert_close(found, wanted, 1e-6)
    check(model, plain)


def test_a_module_of_the_modulation_is_exchanged_in_mid_run(paged: Any) -> None:
    model, _ = paged
    dits.sample(compiled(model), "flux", steps=3)
    block, done = model.model.diffusion_model.single_blocks[0], []
    old = block.modulation.lin

    def exchange(given: Any) -> Any:
        if not done:
            done.append(1)
            new = type(old)(old.in_features, old.out_features, dtype=old.weight.dtype, device="cpu")
            new.weight = torch.nn.Parameter(old.weight * -1.0, requires_grad=False)
            new.bias = torch.nn.Parameter(old.bias * 2.0, requires_grad=False)
            block.modulation.lin = new.eval()
        return given["denoised"]

    fast = compiled(model)
    fast.set_model_sampler_post_cfg_function(exchange)
    found = dits.sample(fast, "flux", steps=3)
    block.modulation.lin = old
    done.clear()
    plain = model.clone()
    plain.set_model_sampler_post_cfg_function(exchange)
    assert distance(found, dits.sample(plain, "flux", steps=3)) < 1e-5


@pytest.mark.parametrize(("where", "call", "all_after"), [("results", 3, False), ("_brought", 12, True)])
def test_memory_that_runs_out(
    where: str, call: int, all_after: bool, paged: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the modulation, that block runs uncompiled; while weights are brought, so does the rest of the run. Nothing
    is compiled for that, and nothing stays behind."""
    model, vbar = paged
    wanted = dits.sample(model, "flux", steps=4)
    real, calls = getattr(paged_blocks.StreamedBlocks, where), []

    def failing(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == call:
            raise torch.OutOfMemoryError("no")
        return real(*args)

    compiles = registry_module.registry().counters.compiles
    monkeypatch.setattr(paged_blocks.StreamedBlocks, where, failing)
    assert distance(dits.sample(compiled(model), "flux", steps=4), wanted) < 1e-6
    codes = blocks()["eager_codes"]
    assert codes.keys() == {"memory_ran_out"} and (codes["memory_ran_out"] > 1) == all_after, codes
    assert registry_module.registry().counters.compiles == compiles
    assert not any(vbar.pins)
    check(model, wanted, steps=4)


def test_many_timesteps_and_runs_hold_little(paged: Any) -> None:
    model, _ = paged
    dits.sample(compiled(model), "flux", steps=kept_modulation._MOST + 12)
    tables = [table for of_block in kept_modulation._kept.values() for table in of_block.values()]
    assert {len(table.by_bits) for table in tables} == {kept_modulation._MOST}
    counts = []
    for number in range(60):
        dits.sample(compiled(model), "flux", steps=1 + number % 3)
        if number % 20 == 19:
            gc.collect()
            counts.append(sum(isinstance(one, torch.Tensor) for one in gc.get_objects()))
    assert max(counts[1:]) - min(counts[1:]) < 10, counts


def test_a_block_that_cannot_be_captured_so_is_compiled_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was watched may be no rule: here, that a block's feed-forward sees nothing but the timestep."""
    model = dits.load("flux")
    wanted = dits.sample(model, "flux", steps=4)
    pages.page(model, 0.4)
    real = kept_modulation.watching

    @contextlib.contextmanager
    def wrong(block: Any, named: Any, packages: Any) -> Iterator[Any]:
        with real(block, named, packages) as seen:
            yield seen
        if hasattr(block, "img_mlp"):
            seen.results = {Given("img_mlp", "vec"): torch.zeros_like(named["vec"])}

    monkeypatch.setattr(kept_modulation, "watching", wrong)
    for _ in range(2):
        assert distance(dits.sample(compiled(model), "flux", steps=4), wanted) < 1e-6
    assert blocks()["eager_codes"] == {} and blocks()["compiled"] == blocks()["of"]


@pytest.mark.parametrize("kind", ["int8 convrot", pytest.param("fp8 scaled", marks=pytest.mark.full)])
def test_quantised_modulation_is_kept(kind: str, fresh: Registry) -> None:
    model = quantised.load("qwen-image", kind)
    plain = quantised.load("qwen-image", kind)
    wanted = dits.sample(plain, "qwen-image", steps=3)
    pages.page(model, 0.4)
    found = [dits.sample(compiled(model), "qwen-image", steps=3) for _ in range(3)]
    assert blocks()["modulation"]["computed"] == 0 and blocks()["eager_codes"] == {}
    assert torch.equal(found[1], found[2])
    assert distance(found[2], wanted) < 5e-3
    assert fresh.counters.compiles <= 1


@pytest.mark.full
@pytest.mark.parametrize("name", [*dits.DITS])
def test_families_whose_first_run_is_a_streamed_one(name: str, tmp_path: Path) -> None:
    """Two sizes, with and without CFG; a new process compiles nothing, and answers by what it computes anew.

    Without LoRAs: the host's own layers with pages, outside of blocks, apply none on a CPU.
    """

    def run(model: Any, **given: Any) -> torch.Tensor:
        return dits.sample(model, name, steps=3, **given)

    ways: list[dict[str, Any]] = [{}, {"cfg": 3.0}, {"height": 24, "width": 16, "tokens": 21}, {}]
    wanted = [run(dits.load(name), **way) for way in ways]
    with process(tmp_path):
        model = dits.load(name)
        vbar = pages.page(model, 0.4)
        for way, right in zip(ways, wanted, strict=True):
            run(compiled(model), **way)  # which may compile
            assert distance(run(compiled(model), **way), right) < 1e-5, told()
        kept = blocks()["modulation"]
        assert kept["computed"] == 0 and not any(vbar.pins)
    with process(tmp_path) as restored:
        for way, right in zip(ways, wanted, strict=True):
            assert distance(run(compiled(model), **way), right) < 1e-5, told()
        assert restored.counters.compiles == 0, told()
        assert (blocks()["modulation"]["kept"] > 0) == (kept["kept"] > 0)
