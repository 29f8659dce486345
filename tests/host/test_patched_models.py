"""What custom nodes do to a model behind a graph's back: the image is eager's, and the node says what was changed."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from headless import host, models
from torch.overrides import TorchFunctionMode

from onegraph.graph_cache.first_use_results import FIRST_USE_FILE
from onegraph.runtime.counters import Counters
from onegraph.runtime.graphs.faithfulness import relative_l2
from onegraph.runtime.graphs.first_use import Comparison, FirstUseCheck
from onegraph.runtime.obtain import registry as registry_module
from onegraph.runtime.obtain.registry import Registry
from onegraph.runtime.policy import ANY_SPEED

from .conftest import compiled, node_text

pytestmark = pytest.mark.usefixtures("compiled_once")
SAME = 1e-4


def assert_same(result: torch.Tensor, reference: torch.Tensor) -> None:
    assert relative_l2(result, reference) < SAME


def assert_other(result: torch.Tensor, reference: torch.Tensor) -> None:
    assert relative_l2(result, reference) > 0.005


def unet_of(model: Any) -> Any:
    return model.model.diffusion_model


# The module's own state ------------------------------------------------------------------------------------------


def make_circular(unet: Any) -> None:
    """As seamless-tiling packs do."""
    for module in unet.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.padding_mode = "circular"


def swap_activation(unet: Any) -> None:
    unet.out[1] = torch.nn.Identity()


def dilate(unet: Any) -> None:
    unet.input_blocks[0][0].dilation = (2, 2)
    unet.input_blocks[0][0].padding = (2, 2)


@pytest.mark.parametrize("change", [make_circular, swap_activation, dilate])
@pytest.mark.parametrize("when", ["before the first run", "between runs"])
def test_changed_module_state_never_gets_the_old_graph(
    when: str, change: Callable[[Any], None], model: Any, counters: Counters
) -> None:
    fast = compiled(model, when_missing="eager")
    plain = host.sample(model)
    if when == "between runs":
        assert_same(host.sample(fast), plain)
    change(unet_of(model))
    reference = host.sample(model)
    assert_other(reference, plain)
    assert torch.equal(host.sample(fast), reference)
    assert node_text().startswith("uncompiled: ")
    assert counters.eager_calls == 2


def at_step(number: int, change: Callable[[Any], None], model: Any) -> Any:
    """The model with a node on it that changes the UNet just before that step."""
    steps: list[int] = []

    def wrapper(apply_model: Any, arguments: dict[str, Any]) -> Any:
        steps.append(1)
        if len(steps) == number:
            change(unet_of(model))
        return apply_model(arguments["input"], arguments["timestep"], **arguments["c"])

    clone = model.clone()
    clone.set_model_unet_function_wrapper(wrapper)
    return clone


def swap_block(unet: Any) -> None:
    """A block that is kept alive elsewhere, as packs do that put it back later."""
    block = unet.input_blocks[1]
    unet.onegraph_test_kept = [block]
    unet.input_blocks[1] = torch.nn.Sequential(Halved(block))


class Halved(torch.nn.Module):
    def __init__(self, block: torch.nn.Module) -> None:
        super().__init__()
        self.block = [block]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :64] * 0.5


def hook(unet: Any) -> None:
    unet.out[2].register_forward_hook(lambda module, args, output: output * 0.5)


def shadow(unet: Any) -> None:
    block = unet.middle_block[0]
    original = block._forward
    block._forward = lambda *args: original(*args) * 8


@pytest.mark.parametrize("change", [make_circular, swap_activation, swap_block, hook, shadow])
def test_a_change_in_mid_run_is_seen_at_that_call(
    change: Callable[[Any], None], checkpoint: Callable[..., Path], counters: Counters
) -> None:
    plain, other = host.load(checkpoint()), host.load(checkpoint())
    reference = host.sample(at_step(2, change, other), steps=3)
    assert_other(reference, host.sample(plain, steps=3))
    result = host.sample(compiled(at_step(2, change, plain), when_missing="eager"), steps=3)
    assert_same(result, reference)
    assert (counters.compiled_calls, counters.eager_calls) == (1, 2)


# Replaced functions ---------------------------------------------------------------------------------------------


def halved(original: Callable[..., Any]) -> Callable[..., Any]:
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) * 0.5

    return replacement


def functions() -> dict[str, tuple[Any, str]]:
    import comfy.ldm.modules.attention as attention
    import comfy.ldm.modules.diffusionmodules.openaimodel as openaimodel
    import comfy.ops

    return {
        "ResBlock._forward": (openaimodel.ResBlock, "_forward"),
        "UNetModel._forward": (openaimodel.UNetModel, "_forward"),
        "CrossAttention.forward": (attention.CrossAttention, "forward"),
        "BasicTransformerBlock.forward": (attention.BasicTransformerBlock, "forward"),
        "Conv2d._conv_forward": (torch.nn.Conv2d, "_conv_forward"),
        "disable_weight_init.Conv2d._conv_forward": (comfy.ops.disable_weight_init.Conv2d, "_conv_forward"),
        "openaimodel.forward_timestep_embed": (openaimodel, "forward_timestep_embed"),
        "openaimodel.timestep_embedding": (openaimodel, "timestep_embedding"),
        "attention.optimized_attention": (attention, "optimized_attention"),
        "functional.group_norm": (torch.nn.functional, "group_norm"),
    }


NAMES = (
    "ResBlock._forward",
    "UNetModel._forward",
    "CrossAttention.forward",
    "BasicTransformerBlock.forward",
    "Conv2d._conv_forward",
    "disable_weight_init.Conv2d._conv_forward",
    "openaimodel.forward_timestep_embed",
    "openaimodel.timestep_embedding",
    "attention.optimized_attention",
    "functional.group_norm",
)


@pytest.mark.parametrize("when", ["before the graph is loaded", "after it was used"])
@pytest.mark.parametrize("name", NAMES)
def test_a_replaced_function_runs_eager_with_its_name(
    name: str, when: str, model: Any, counters: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, attribute = functions()[name]
    fast, plain = compiled(model), host.sample(model)
    if when == "after it was used":
        assert_same(host.sample(fast), plain)
    with monkeypatch.context() as patched:
        patched.setattr(owner, attribute, halved(getattr(owner, attribute)))
        reference = host.sample(model)
        assert_other(reference, plain)
        assert torch.equal(host.sample(fast), reference)
        assert node_text() == f"uncompiled: another custom node replaced {name} (test_patched_models)"
    assert counters.eager_calls == 2
    assert_same(host.sample(fast), plain)  # and once it is gone, the graph is back
    assert (counters.eager_calls, counters.compiles) == (2, 0)


@pytest.mark.parametrize("attribute", ["_conv_forward", "forward"])
def test_a_method_put_on_a_module_is_eager_and_named(attribute: str, model: Any, counters: Counters) -> None:
    conv = unet_of(model).input_blocks[0][0]
    fast, plain = compiled(model), host.sample(model)
    assert_same(host.sample(fast), plain)
    setattr(conv, attribute, halved(getattr(conv, attribute)))
    reference = host.sample(model)
    assert_other(reference, plain)
    assert torch.equal(host.sample(fast), reference)
    assert f"another custom node replaced the {attribute} of input_blocks.0.0 (Conv2d)" in node_text()
    assert counters.eager_calls == 2


def test_leftovers_of_switched_off_packs_do_not_matter(model: Any, counters: Counters) -> None:
    """Seamless-tiling packs bind the class's own method again and keep attributes of theirs on each convolution."""
    for conv in unet_of(model).modules():
        if isinstance(conv, torch.nn.Conv2d):
            conv._conv_forward = torch.nn.Conv2d._conv_forward.__get__(conv, torch.nn.Conv2d)  # type: ignore[method-assign]
            conv.paddingX = (1, 1, 0, 0)  # type: ignore[assignment]
            conv.original_forward = lambda x: x  # type: ignore[assignment]
    assert_same(host.sample(compiled(model)), host.sample(model))
    assert (counters.compiled_calls, counters.compiles) == (2, 0)


def test_a_removed_bypass_lora_brings_the_graph_back(model: Any, counters: Counters, tmp_path: Path) -> None:
    """The host leaves each layer's own bound forward behind as an attribute of the layer."""
    import comfy.sd
    import comfy.utils

    state = comfy.utils.load_torch_file(str(models.write_lora("tiny_sdxl", tmp_path / "lora.safetensors")))
    bypassed = comfy.sd.load_bypass_lora_for_models(model, None, state, 1.0, 0)[0]
    plain, reference = host.sample(model), host.sample(bypassed)
    assert_other(reference, plain)
    assert torch.equal(host.sample(compiled(bypassed)), reference)
    assert "bypass_lora injects code into this model" in node_text()
    assert any("forward" in vars(module) for module in unet_of(model).modules())
    assert_same(host.sample(compiled(model)), plain)
    assert (counters.compiled_calls, counters.eager_calls) == (2, 2)


# Replaced for one call -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def forward_replaced(unet: Any) -> Iterator[None]:
    original = unet._forward
    with patch.object(unet, "_forward", lambda *args, **kwargs: original(*args, **kwargs) * 0.5):
        yield


@contextlib.contextmanager
def hooked(unet: Any) -> Iterator[None]:
    handle = unet.out[2].register_forward_pre_hook(lambda module, args: (args[0] * 0.5,))
    yield
    handle.remove()


@contextlib.contextmanager
def class_replaced(unet: Any) -> Iterator[None]:
    with patch.object(type(unet), "_forward", halved(type(unet)._forward)):
        yield


@contextlib.contextmanager
def function_replaced(unet: Any) -> Iterator[None]:
    with patch("torch.nn.functional.silu", halved(torch.nn.functional.silu)):
        yield


@pytest.mark.parametrize("how", [forward_replaced, hooked, class_replaced, function_replaced])
def test_a_patch_around_one_call_is_seen_at_that_call(
    how: Callable[[Any], contextlib.AbstractContextManager[None]], model: Any, counters: Counters
) -> None:
    """As block caches do, at every second call."""

    def patched(source: Any) -> Any:
        calls: list[int] = []

        def wrapper(apply_model: Any, arguments: dict[str, Any]) -> Any:
            calls.append(1)
            around = how(unet_of(model)) if len(calls) % 2 else contextlib.nullcontext()
            with around:
                return apply_model(arguments["input"], arguments["timestep"], **arguments["c"])

        clone = source.clone()
        clone.set_model_unet_function_wrapper(wrapper)
        return clone

    reference = host.sample(patched(model), steps=4)
    assert_other(reference, host.sample(model, steps=4))
    assert_same(host.sample(compiled(patched(model)), steps=4), reference)
    assert (counters.compiled_calls, counters.eager_calls) == (2, 2)
    assert "2 of 4 calls" in node_text()


def test_a_replaced_end_of_the_chain_runs_eager(model: Any, counters: Counters) -> None:
    from comfy.patcher_extension import WrappersMP

    def swap(executor: Any, *args: Any, **kwargs: Any) -> Any:
        executor.original = halved(executor.original)
        return executor(*args, **kwargs)

    swapped = model.clone()
    swapped.add_wrapper_with_key(WrappersMP.DIFFUSION_MODEL, "swap", swap)
    reference = host.sample(swapped)
    assert_other(reference, host.sample(model))
    assert torch.equal(host.sample(compiled(swapped)), reference)
    assert "replaced UNetModel._forward for this call" in node_text()
    assert counters.compiled_calls == 0


# Gradients ------------------------------------------------------------------------------------------------------


def test_a_call_that_is_differentiated_runs_eager(model: Any, counters: Counters) -> None:
    """Guidance packs lead the result back to the latent."""
    gradients: list[torch.Tensor] = []

    def guided(apply_model: Any, arguments: dict[str, Any]) -> Any:
        with torch.inference_mode(False), torch.enable_grad():
            plain = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in arguments["c"].items()}
            x = arguments["input"].clone().requires_grad_(True)
            result = apply_model(x, arguments["timestep"].clone(), **plain)
            gradients.append(torch.autograd.grad(result.square().mean(), x)[0])
        return result.detach()

    # Weights that are loaded in inference mode cannot take part in a backward pass.
    with torch.inference_mode(False):
        for parameter in unet_of(model).parameters():
            parameter.data = parameter.data.clone()
    clone = model.clone()
    clone.set_model_unet_function_wrapper(guided)
    reference = _sample_with_gradients(clone)
    expected = gradients.copy()
    gradients.clear()
    assert torch.equal(_sample_with_gradients(compiled(clone)), reference)
    assert all(torch.equal(a, b) and bool(a.any()) for a, b in zip(gradients, expected, strict=True))
    assert "gradients are wanted through this call" in node_text()
    assert counters.compiled_calls == 0


def _sample_with_gradients(model: Any) -> torch.Tensor:
    import comfy.sample

    latent = torch.zeros(1, 4, 16, 16)
    noise = comfy.sample.prepare_noise(latent, 1)
    positive, negative = host.conditioning(77, 2048, 11), host.conditioning(77, 2048, 12)
    result: torch.Tensor = comfy.sample.sample(
        model, noise, 2, 7.0, "euler", "normal", positive, negative, latent, seed=1, disable_pbar=True
    )
    return result


class Halving(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        return result * 0.5 if function is torch.nn.functional.silu else result


@pytest.mark.parametrize(
    ("around", "reason"),
    [
        (lambda: torch.autocast("cpu", torch.bfloat16), "runs this call under torch.autocast"),
        (Halving, "watches or changes each operation of this call"),
    ],
)
def test_a_context_that_changes_operations_runs_eager(
    around: Callable[[], Any], reason: str, model: Any, counters: Counters
) -> None:
    def wrapper(apply_model: Any, arguments: dict[str, Any]) -> Any:
        with around():
            return apply_model(arguments["input"], arguments["timestep"], **arguments["c"]).float()

    clone = model.clone()
    clone.set_model_unet_function_wrapper(wrapper)
    reference = host.sample(clone)
    assert not torch.equal(reference, host.sample(model))
    assert torch.equal(host.sample(compiled(clone)), reference)
    assert reason in node_text()
    assert counters.compiled_calls == 0


# After the first use ---------------------------------------------------------------------------------------------


def test_one_call_in_many_is_compared_with_eager(
    model: Any, counters: Counters, fresh_process: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEGRAPH_CHECK_EVERY", "3")
    fresh_process.policy = replace(ANY_SPEED, checks_share=1e9)  # whatever the checks take on this machine
    for options in ({}, {"cfg": 1.0}):
        host.sample(compiled(model), steps=8, **options)
    assert counters.spot_checks == 5  # 16 calls, the first of each kind were compared anyway
    assert (counters.eager_calls, counters.compiled_calls) == (0, 16)


@pytest.mark.parametrize("cfg", [7.0, 1.0])
def test_a_graph_that_fails_after_first_use_is_retired(
    cfg: float, model: Any, counters: Counters, fresh_process: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEGRAPH_CHECK_EVERY", "4")
    fresh_process.policy = replace(ANY_SPEED, checks_share=1e9)
    quarantined: list[Path] = []
    monkeypatch.setattr(fresh_process.store, "quarantine", quarantined.append)  # other tests use the graph
    fast, reference = compiled(model), host.sample(model, cfg=cfg)
    assert_same(host.sample(fast, cfg=cfg), reference)
    (graph,) = fresh_process.graphs()
    alias = graph._runners.first.runner._regions[0].aliases  # type: ignore[attr-defined]
    wrong = next(iter(alias.values()))
    graph._runners.first.runner._regions[0].loaded.bind(  # type: ignore[attr-defined]
        {name: torch.zeros_like(t) if t is not wrong and t.ndim > 1 else t for name, t in alias.items()}
    )
    host.sample(fast, steps=6, cfg=cfg)
    assert "the graph failed a later check: it differs from the uncompiled model" in node_text()
    assert counters.spot_checks == 1 and len(quarantined) == 1
    assert torch.equal(host.sample(fast, cfg=cfg), reference)
    assert node_text().startswith("uncompiled: the graph failed a later check")


def test_a_new_host_version_compares_the_graph_again(
    model: Any, checkpoint: Callable[..., Path], graphs_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onegraph.graph_cache.store import Store
    from onegraph.host.capture import compile_client

    compared: list[str] = []
    check = FirstUseCheck.check

    def counted(self: FirstUseCheck, comparison: Comparison) -> Any:
        compared.append(comparison.group)
        return check(self, comparison)

    monkeypatch.setattr(FirstUseCheck, "check", counted)
    counts = []
    for version in ("", "", "99.0", "99.0"):
        registry_module.use(Registry(Store(graphs_home), policy=ANY_SPEED))
        if version:
            monkeypatch.setattr(compile_client, "environment", lambda: "ComfyUI 99.0")
        compared.clear()
        host.sample(compiled(model))
        counts.append(len(compared))
    assert counts[1:] == [0, 1, 0]
    assert list(graphs_home.rglob(FIRST_USE_FILE))


# Several models --------------------------------------------------------------------------------------------------


def dual_model_sample(first: Any, second: Any) -> torch.Tensor:
    """As DualModelGuider samples: the host calls the second model with the first one's options."""
    import comfy.sample
    import comfy.samplers
    from comfy_extras.nodes_custom_sampler import Guider_DualModel

    guider = Guider_DualModel(first, second)
    guider.set_conds(host.conditioning(77, 2048, 11), host.conditioning(77, 2048, 12))
    guider.set_cfg(5.0)
    with torch.inference_mode():
        latent = torch.zeros(1, 4, 16, 16)
        noise = comfy.sample.prepare_noise(latent, 1)
        sigmas = comfy.samplers.calculate_sigmas(first.get_model_object("model_sampling"), "normal", 3)
        sampler = comfy.samplers.sampler_object("euler")
        result: torch.Tensor = guider.sample(noise, latent, sampler, sigmas, disable_pbar=True, seed=1)
    return result


def test_the_second_model_of_a_dual_guider_is_compiled(checkpoint: Callable[..., Path], counters: Counters) -> None:
    first, second = host.load(checkpoint(seed=1)), host.load(checkpoint(seed=2))
    reference = dual_model_sample(first, second)
    assert_same(dual_model_sample(compiled(first), compiled(second)), reference)
    assert (counters.compiled_calls, counters.eager_calls) == (6, 0)
    assert_same(dual_model_sample(compiled(first), second), reference)
    assert (counters.compiled_calls, counters.eager_calls) == (9, 3)
    assert any(reason.code == "no_node" for reason in counters.reasons)


# Memory ----------------------------------------------------------------------------------------------------------


def test_weights_of_models_that_are_gone_are_freed(
    checkpoint: Callable[..., Path], counters: Counters, tmp_path: Path
) -> None:
    import comfy.model_management
    import comfy.sd
    import comfy.utils

    lora = comfy.utils.load_torch_file(str(models.write_lora("tiny_sdxl", tmp_path / "lora.safetensors")))
    model = host.load(checkpoint())
    fast = compiled(model)
    host.sample(fast)
    with_lora = comfy.sd.load_lora_for_models(fast, None, lora, 1.0, 0)[0]
    host.sample(with_lora)
    alive = [weakref.ref(p) for p in unet_of(model).parameters()]
    storages = [weakref.ref(p.untyped_storage()) for p in unet_of(model).parameters()]
    second = host.load(checkpoint(seed=2))
    del model, fast, with_lora
    host.sample(compiled(second))
    comfy.model_management.unload_all_models()
    comfy.model_management.cleanup_models_gc()
    gc.collect()
    assert counters.compiled_calls == 6
    assert [ref() for ref in alive if ref() is not None] == []
    assert [ref() for ref in storages if ref() is not None] == []


def test_rebinding_again_and_again_holds_no_memory(model: Any, counters: Counters) -> None:
    """Each bind used to keep all weights that it was given."""
    import psutil

    fast, process = compiled(model), psutil.Process()

    def moved() -> None:
        with torch.inference_mode():
            for parameter in unet_of(model).parameters():
                parameter.data = parameter.data.clone()
        host.sample(fast, height=64, width=64, steps=1)

    for _ in range(10):
        moved()
    before = process.memory_info().rss
    weights = sum(p.nbytes for p in unet_of(model).parameters())
    for _ in range(20):
        moved()
    assert counters.binds == 30
    assert process.memory_info().rss - before < 2 * weights  # of 20 times as much
