"""LoRA as PEFT's layers: one graph for all LoRAs that have layers of the same sizes in the same places."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.models import pipes

from onegraph.pipelines import adapters, compile_pipe, load_pipe, save_pipe
from onegraph.runtime.obtain.registry import Registry


def lora(pipe: Any, seed: int, rank: int = 2, ending: tuple[str, ...] = ("to_q", "to_v")) -> dict[str, torch.Tensor]:
    """A LoRA for the queries and values of a UNet, in diffusers' names."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, child in pipe.unet.named_modules():
        if name.endswith(ending):
            found[f"unet.{name}.lora_A.weight"] = torch.randn(rank, child.in_features, generator=generator)
            found[f"unet.{name}.lora_B.weight"] = torch.randn(child.out_features, rank, generator=generator) * 0.2
    return found


class Pair:
    """A compiled pipeline and one that is not, to which the same is done."""

    def __init__(self, **options: Any) -> None:
        self.eager, self.pipe = pipes.sd(), compile_pipe(pipes.sd(), **options)

    def load(self, seed: int, name: str, **options: Any) -> None:
        """Have both load a LoRA, as `load_lora_weights` takes the options."""
        rank = options.pop("rank", 2)
        for one in (self.eager, self.pipe):
            one.load_lora_weights(lora(one, seed, rank), adapter_name=name, **options)

    def each(self, method: str, *arguments: Any) -> None:
        for one in (self.eager, self.pipe):
            getattr(one, method)(*arguments)

    def image(self, *, compiled: bool = True) -> Any:
        """Eager's image, which the other one's equals, with all calls of the UNet compiled or none."""
        before = self.pipe.onegraph.report()["unet"]
        image = pipes.image(self.pipe)
        assert pipes.distance(image, pipes.image(self.eager)) <= 2
        after = self.pipe.onegraph.report()["unet"]
        assert after.compiled_calls - before.compiled_calls == (2 if compiled else 0), after.text
        return image


@pytest.mark.full
def test_one_graph_for_a_loras_structure(registry: Registry) -> None:
    """Compiled once: for other values, another name, other strengths, hot-swapped, unloaded and loaded again."""
    pair = Pair()
    plain = pair.image()
    pair.load(1, "a")
    first = pair.image()
    assert pipes.distance(plain, first) > 10
    compiles = registry.counters.compiles
    assert compiles <= 1
    pair.each("set_adapters", ["a"], [0.4])
    weaker = pair.image()
    assert pipes.distance(weaker, first) > 5
    pair.load(2, "a", hotswap=True)
    assert pipes.distance(pair.image(), weaker) > 5
    pair.each("disable_lora")
    assert pipes.distance(pair.image(), plain) <= 2
    pair.each("enable_lora")
    pair.image()
    pair.each("unload_lora_weights")
    assert pipes.distance(pair.image(), plain) <= 2
    pair.load(2, "other")
    second = pair.image()
    assert pipes.distance(second, first) > 5
    pair.each("unload_lora_weights")
    pair.load(1, "other")
    assert pipes.distance(pair.image(), first) <= 2, "layers of the same structure that nobody has seen"
    assert registry.counters.compiles == compiles


def test_the_strength_changes_between_steps(registry: Registry) -> None:
    """PEFT changes a number in a table of each layer, which no other check looks at."""
    pair = Pair()
    pair.load(1, "a")
    pair.image()

    def weaken(pipe: Any, step: int, timestep: Any, given: dict[str, Any]) -> dict[str, Any]:
        pipe.set_adapters(["a"], [1.0 - 4.0 * (step + 1)])
        return given

    eager = pipes.image(pair.eager, steps=3, callback_on_step_end=weaken)
    pair.each("set_adapters", ["a"], [1.0])
    assert pipes.distance(eager, pipes.image(pair.eager, steps=3)) > 2
    pair.each("set_adapters", ["a"], [1.0])
    assert pipes.distance(pipes.image(pair.pipe, steps=3, callback_on_step_end=weaken), eager) <= 2
    assert not pair.pipe.onegraph.report()["unet"].eager


def test_two_pipelines_take_turns_with_one_unet(registry: Registry) -> None:
    """Each has its own LoRA, and one of them was never compiled."""
    from diffusers import StableDiffusionPipeline

    pair = Pair()
    pair.load(1, "a")
    pair.load(2, "b")
    others = [StableDiffusionPipeline.from_pipe(one, scheduler=pipes.scheduler()) for one in (pair.eager, pair.pipe)]
    images = []
    for number in range(4):
        group = (pair.eager, pair.pipe) if number % 2 else others
        for one in group:
            one.set_progress_bar_config(disable=True)
            one.set_adapters(["b" if number % 2 else "a"], [1.0 + number // 2])
        images.append(pipes.image(group[0]))
        assert pipes.distance(pipes.image(group[1]), images[-1]) <= 2
    assert min(pipes.distance(images[n], images[n + 1]) for n in range(3)) > 5
    assert not pair.pipe.onegraph.report()["unet"].eager


def test_a_loaded_lora_is_saved_and_loaded(registry: Registry, tmp_path: Any) -> None:
    pair = Pair()
    pair.load(1, "a")
    image = pair.image()
    save_pipe(pair.pipe, tmp_path)
    other = pipes.sd()
    other.load_lora_weights(lora(other, 1), adapter_name="mine")
    load_pipe(other, tmp_path)
    assert pipes.distance(pipes.image(other), image) <= 2
    assert other.onegraph.report()["unet"].compiled_calls == 2, str(other.onegraph.report())


@pytest.mark.full
def test_two_loras_at_once(registry: Registry) -> None:
    pair = Pair()
    pair.load(1, "a")
    first = pair.image()
    pair.load(2, "b", rank=3)
    pair.each("set_adapters", ["a", "b"], [0.3, 0.9])
    both = pair.image()
    assert pipes.distance(both, first) > 5
    compiles = registry.counters.compiles
    pair.each("set_adapters", ["a", "b"], [1.0, 0.0])
    assert pipes.distance(pair.image(), first) <= 2
    pair.each("set_adapters", ["a"])
    assert pipes.distance(pair.image(), first) <= 2
    assert registry.counters.compiles == compiles


def test_another_rank_is_another_structure(registry: Registry) -> None:
    pair = Pair(when_missing="eager")
    pair.load(1, "a", rank=5)
    pair.image(compiled=False)
    assert pair.pipe.onegraph.report()["unet"].codes == {"no_graph": 2}


def test_fused_loras_take_the_plain_graph(registry: Registry) -> None:
    pair = Pair(when_missing="eager")
    pair.load(1, "a", rank=5)
    pair.load(2, "b", rank=5)
    pair.each("set_adapters", ["a", "b"], [0.3, 0.9])
    loaded = pair.image(compiled=False)
    pair.each("fuse_lora")
    assert pipes.distance(pair.image(), loaded) <= 2
    pair.each("unfuse_lora")
    pair.image(compiled=False)
    pair.each("fuse_lora")
    pair.each("unload_lora_weights")
    assert pipes.distance(pair.image(), loaded) <= 2
    assert registry.counters.compiles == 0


def test_an_adapter_that_is_no_plain_lora_runs_eager(registry: Registry) -> None:
    from peft import LoraConfig

    pipe = compile_pipe(pipes.sd(), when_missing="eager")
    pipe.unet.add_adapter(LoraConfig(r=2, target_modules=["to_q"], use_dora=True))
    pipes.image(pipe)
    assert pipe.onegraph.report()["unet"].codes == {"adapter_layers": 2}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_a_layer_computes_what_pefts_does(kind: str, dtype: torch.dtype) -> None:
    """To the last bit, with two adapters of other ranks, strengths and dtypes."""
    from peft import LoraConfig, inject_adapter_in_model

    torch.manual_seed(0)
    layer = torch.nn.Linear(6, 5) if kind == "linear" else torch.nn.Conv2d(6, 5, 3, padding=1)
    model = torch.nn.Sequential(layer)
    for name, rank, alpha in (("a", 2, 3), ("b", 4, 1)):
        inject_adapter_in_model(
            LoraConfig(r=rank, lora_alpha=alpha, target_modules=["0"], init_lora_weights=False), model, name
        )
    model[0].set_adapter(["b", "a"])
    model.to(dtype).eval()
    model[0].lora_A["a"].to(torch.float32)
    model[0].lora_B["a"].to(torch.float32)
    x = torch.randn((3, 6) if kind == "linear" else (3, 6, 7, 7)).to(dtype)
    compiled, strengths = adapters.as_compiled(model)
    assert adapters.first_of(compiled) is None and not strengths.layers[0][0].scales.data_ptr() % 16
    with torch.no_grad():
        assert torch.equal(compiled(x), model(x))
        model[0].set_scale("a", 0.7)
        assert not torch.equal(compiled(x), model(x))
        strengths.sync()
        assert torch.equal(compiled(x), model(x))
        model[0].scaling = {**model[0].scaling, "b": torch.tensor(0.3)}  # a tensor, as enable_lora_hotswap has it
        for _ in range(2):
            strengths.sync()
            assert torch.equal(compiled(x), model(x))
            model[0].scaling["b"] *= 2
