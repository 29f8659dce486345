"""Compiled equals eager in every way a workflow can ask, and whatever no graph honours runs eager with a reason."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from headless import host, models

from onegraph.host.calls import model_hook as hook
from onegraph.host.calls import model_hook as unet_module
from onegraph.runtime.counters import Counters
from onegraph.runtime.graphs.faithfulness import relative_l2
from onegraph.runtime.guards.module_guard import ModuleGuard
from onegraph.runtime.obtain.registry import Registry

from .conftest import BOTH_BACKENDS, compiled, node_text

pytestmark = pytest.mark.usefixtures("compiled_once")
SAME = 1e-4  # relative L2 of latents after two steps; measured 3e-5, another LoRA or seed is above 0.1


def assert_same(result: torch.Tensor, reference: torch.Tensor) -> None:
    assert relative_l2(result, reference) < SAME


def assert_other(result: torch.Tensor, reference: torch.Tensor) -> None:
    assert relative_l2(result, reference) > 0.01


CALLS: list[dict[str, Any]] = [
    {"height": 64, "width": 64},
    {"height": 128, "width": 192},
    {"height": 136, "width": 200},  # odd latents
    {"tokens": 154},
    {"tokens": 231},
    {"tokens": 400},  # too long against 77 to be batched with it: two calls of one
    {"cfg": 1.0},
    {"batch": 2},
    {"batch": 3, "cfg": 1.0},
    {"batch": 5},  # ten at once: more than the graph takes, so split
]


def test_any_call_in_one_process_needs_no_new_compile(model: Any, counters: Counters) -> None:
    fast = compiled(model)
    for call in CALLS:
        assert_same(host.sample(fast, **call), host.sample(model, **call))
        assert node_text().startswith(("compiled, any size", "restored in")), (call, node_text())
    assert (counters.compiles, counters.restores, counters.eager_calls) == (0, 1, 0)


def test_a_new_process_takes_the_graph_up(model: Any, counters: Counters) -> None:
    host.sample(compiled(model))
    assert (counters.compiles, counters.restores, counters.compiled_calls) == (0, 1, 2)
    assert node_text().startswith("restored in ")
    assert "any size 64-2048" in node_text()


def test_seeds_still_matter(model: Any) -> None:
    fast = compiled(model)
    assert_other(host.sample(fast, seed=2), host.sample(fast, seed=1))


@pytest.mark.parametrize("order", ["before the node", "after the node"])
def test_lora_on_weaker_off_and_on_again(
    order: str, model: Any, backend: str, counters: Counters, tmp_path: Path
) -> None:
    lora = models.write_lora("tiny_sdxl", tmp_path / "lora.safetensors")
    seen = []
    for strength in (1.0, 0.5, 0.0, 1.0):
        patched = host.with_lora(model, lora, strength) if strength else model
        if order == "before the node":
            fast = compiled(patched, backend=backend)
        else:
            fast = compiled(model, backend=backend)
            fast = host.with_lora(fast, lora, strength) if strength else fast
        result = host.sample(fast)
        assert node_text().startswith(("compiled, ", "restored in")), node_text()
        assert_same(result, host.sample(patched))
        seen.append(result)
    assert_other(seen[0], seen[1])
    assert_other(seen[1], seen[2])
    assert_same(seen[3], seen[0])
    assert (counters.compiles, counters.restores, counters.eager_calls) == (0, 1, 0)


def test_two_checkpoints_of_an_architecture_take_turns(
    checkpoint: Callable[..., Path], backend: str, counters: Counters
) -> None:
    first, second = host.load(checkpoint(seed=1)), host.load(checkpoint(seed=2))
    bias = [m.model.diffusion_model.out[2].bias for m in (first, second)]
    assert bias[0].shape == (4,) and not torch.equal(bias[0], bias[1])  # the constant compilers like to inline
    references = [host.sample(first), host.sample(second)]
    assert_other(*references)
    for _ in range(2):
        for model, reference in zip((first, second), references, strict=True):
            assert_same(host.sample(compiled(model, backend=backend)), reference)
    assert (counters.compiles, counters.eager_calls) == (0, 0)


def test_a_new_checkpoint_has_a_cached_graph_restored(checkpoint: Callable[..., Path], counters: Counters) -> None:
    path = checkpoint(seed=3)
    model = host.load(path)
    assert_same(host.sample(compiled(model)), host.sample(model))
    assert (counters.compiles, counters.restores) == (0, 1)
    assert not list(path.parent.glob("tiny_sdxl_3_decoder.graphs"))  # the graph folder has it already


def test_only_the_output_bias_differs(
    checkpoint: Callable[..., Path], backend: str, counters: Counters, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    state = load_file(checkpoint())
    state["model.diffusion_model.out.2.bias"] += torch.tensor([0.5, -0.5, 1.0, -1.0]).half()
    save_file(state, tmp_path / "biased.safetensors")
    original, biased = host.load(checkpoint()), host.load(tmp_path / "biased.safetensors")
    for model in (original, biased, original):
        assert_same(host.sample(compiled(model, backend=backend)), host.sample(model))
    assert_other(host.sample(biased), host.sample(original))
    assert counters.compiles == 0


def test_a_sibling_without_the_node_stays_eager(model: Any, backend: str, counters: Counters, tmp_path: Path) -> None:
    lora = models.write_lora("tiny_sdxl", tmp_path / "lora.safetensors")
    fast, sibling = compiled(model, backend=backend), host.with_lora(model, lora, 1.0)
    reference, patched = host.sample(model), host.sample(sibling)
    for _ in range(2):
        assert_same(host.sample(fast), reference)
        assert torch.equal(host.sample(sibling), patched)
    assert counters.compiled_calls == 4


def test_a_merged_model_computes_with_merged_weights(
    checkpoint: Callable[..., Path], backend: str, counters: Counters
) -> None:
    from comfy_extras.nodes_model_merging import ModelMergeSimple

    first, second = host.load(checkpoint(seed=1)), host.load(checkpoint(seed=2))
    merged = ModelMergeSimple().merge(first, second, 0.5)[0]
    reference = host.sample(merged)
    assert_other(reference, host.sample(first))
    assert_same(host.sample(compiled(merged, backend=backend)), reference)
    merged_after = ModelMergeSimple().merge(compiled(first, backend=backend), compiled(second), 0.5)[0]
    assert_same(host.sample(merged_after), reference)
    assert counters.eager_calls == 0


@pytest.mark.parametrize("also", ["alone", "with a LoRA on the same weights"])
def test_scheduled_lora_changes_weights_between_steps(
    also: str, model: Any, backend: str, counters: Counters, tmp_path: Path
) -> None:
    import comfy.hooks
    import comfy.utils

    lora = models.write_lora("tiny_sdxl", tmp_path / "lora.safetensors")
    if also != "alone":
        model = host.with_lora(model, models.write_lora("tiny_sdxl", tmp_path / "other.safetensors", seed=4), 0.7)
    hooks = comfy.hooks.create_hook_lora(comfy.utils.load_torch_file(str(lora)), 1.0, 1.0)
    keyframes = comfy.hooks.HookKeyframeGroup()
    keyframes.add(comfy.hooks.HookKeyframe(strength=1.0, start_percent=0.0))
    keyframes.add(comfy.hooks.HookKeyframe(strength=0.2, start_percent=0.5))
    hooks.set_keyframes_on_hooks(keyframes)
    positive = comfy.hooks.set_hooks_for_conditioning(host.conditioning(77, 2048, 11), hooks)
    patched = model.clone()
    patched.register_all_hook_patches(hooks, comfy.hooks.create_target_dict(comfy.hooks.EnumWeightTarget.Model))
    reference = host.sample(patched, positive=positive, steps=4)
    assert_other(reference, host.sample(model, steps=4))
    fast = compiled(patched, backend=backend)
    host.sample(compiled(model, backend=backend))  # bound to the weights without the hooks before
    assert_same(host.sample(fast, positive=positive, steps=4), reference)
    assert (counters.compiles, counters.eager_calls) == (0, 0)
    assert counters.compiled_calls >= 4


@pytest.mark.parametrize("backend", BOTH_BACKENDS, indirect=True)
def test_weights_patched_in_place(model: Any, backend: str, counters: Counters, tmp_path: Path) -> None:
    lora = models.write_lora("tiny_sdxl", tmp_path / "lora.safetensors")
    reference, patched = host.sample(model), host.sample(host.with_lora(model, lora, 1.0))
    model.weight_inplace_update = True
    fast = compiled(model, backend=backend)
    for _ in range(2):
        assert_same(host.sample(fast), reference)
        assert_same(host.sample(host.with_lora(fast, lora, 1.0)), patched)
    assert (counters.compiles, counters.eager_calls) == (0, 0)


def test_weights_moved_between_runs_are_found_again(model: Any, backend: str, counters: Counters) -> None:
    import comfy.model_management

    fast, reference = compiled(model, backend=backend), host.sample(model)
    for _ in range(2):
        assert_same(host.sample(fast), reference)
        comfy.model_management.unload_all_models()
    for parameter in model.model.diffusion_model.parameters():
        parameter.data = parameter.data.clone()
    assert_same(host.sample(fast), reference)
    assert counters.eager_calls == 0


def test_the_node_twice_on_one_model_hooks_it_once(model: Any, counters: Counters) -> None:
    host.sample(compiled(compiled(model)))
    assert counters.compiled_calls == 2


@pytest.mark.parametrize("order", ["before the node", "after the node"])
def test_other_wrappers_run_whichever_was_added_first(order: str, model: Any, counters: Counters) -> None:
    from comfy.patcher_extension import WrappersMP

    calls = []

    def halve(executor: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return executor(*args, **kwargs) * 0.5

    def wrapped(patcher: Any) -> Any:
        clone = patcher.clone()
        clone.add_wrapper_with_key(WrappersMP.DIFFUSION_MODEL, "halve", halve)
        return clone

    reference = host.sample(wrapped(model))
    fast = compiled(wrapped(model)) if order == "before the node" else wrapped(compiled(model))
    calls.clear()
    assert_same(host.sample(fast), reference)
    assert len(calls) == 2
    assert (counters.compiled_calls, counters.eager_calls) == (2, 0)


def free_u(model: Any) -> Any:
    from comfy_extras.nodes_freelunch import FreeU_V2

    return FreeU_V2.execute(model, b1=1.3, b2=1.4, s1=0.9, s2=0.2).args[0]


def hyper_tile(model: Any) -> Any:
    from comfy_extras.nodes_hypertile import HyperTile

    return HyperTile.execute(model, tile_size=64, swap_size=2, max_depth=1, scale_depth=False)[0]


def injected(model: Any) -> Any:
    from comfy.patcher_extension import PatcherInjection

    clone = model.clone()
    clone.set_injections("motion", [PatcherInjection(lambda patcher: None, lambda patcher: None)])
    return clone


def object_patched(model: Any) -> Any:
    clone = model.clone()
    clone.add_object_patch("diffusion_model.out.1", torch.nn.ReLU())
    return clone


def weight_wrapped(model: Any) -> Any:
    clone = model.clone()
    clone.add_weight_wrapper("diffusion_model.out.2.weight", lambda weight: weight * 2)
    return clone


def attention_replaced(model: Any) -> Any:
    clone = model.clone()
    clone.set_model_attn1_output_patch(lambda n, options: n * 0.5)
    return clone


def unknown_option(model: Any) -> Any:
    clone = model.clone()
    clone.model_options["transformer_options"]["some_new_feature"] = 3
    return clone


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (free_u, "FreeU_V2 patches this model (output_block_patch)"),
        (hyper_tile, "HyperTile patches this model (attn1_patch)"),
        (injected, "motion injects code into this model"),
        (object_patched, "an object patch replaces diffusion_model.out.1"),
        (weight_wrapped, "a weight wrapper changes diffusion_model.out.2.weight at each use"),
        (attention_replaced, "patches this model (attn1_output_patch)"),
        (unknown_option, "the workflow sets the model option some_new_feature"),
    ],
)
def test_what_no_graph_honours_is_eager_with_a_reason(
    change: Callable[[Any], Any], reason: str, model: Any, counters: Counters
) -> None:
    torch.manual_seed(0)
    reference = host.sample(change(model))
    torch.manual_seed(0)
    assert torch.equal(host.sample(compiled(change(model))), reference)
    assert node_text().startswith("uncompiled: ")
    assert reason in node_text()
    assert (counters.compiled_calls, counters.eager_calls) == (0, 2)


def test_removing_a_patch_brings_the_graph_back(model: Any, counters: Counters) -> None:
    host.sample(compiled(free_u(model)))
    assert_same(host.sample(compiled(model)), host.sample(model))
    assert counters.compiled_calls == 2


def test_guidance_leaves_unpatched_calls_compiled(model: Any, counters: Counters) -> None:
    from comfy_extras.nodes_pag import PerturbedAttentionGuidance

    guided = PerturbedAttentionGuidance.execute(model, scale=3.0).args[0]
    assert_same(host.sample(compiled(guided)), host.sample(guided))
    assert counters.compiled_calls == 2 and counters.eager_calls == 2
    assert node_text().startswith("2 of 4 calls ")
    assert "PerturbedAttentionGuidance replaces parts of this model (attn1)" in node_text()


def forward_hook(unet: torch.nn.Module) -> Any:
    return unet.get_submodule("out.2").register_forward_hook(lambda module, args, output: output * 2)


def replaced_forward(unet: torch.nn.Module) -> Any:
    block = unet.get_submodule("out.2")
    original = block.forward
    block.forward = lambda x: original(x) * 2  # type: ignore[method-assign]
    return None


def cast_weights(unet: torch.nn.Module) -> Any:
    unet.get_submodule("out.2").comfy_cast_weights = True  # type: ignore[assignment]
    return None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (forward_hook, "a forward hook sits on out.2"),
        (replaced_forward, "another custom node replaced the forward of out.2"),
        (cast_weights, "the weights of out.2 (Conv2d) are cast or moved at each use"),
    ],
)
def test_a_changed_module_runs_eager_with_the_reason(
    change: Callable[[torch.nn.Module], Any], reason: str, model: Any, counters: Counters
) -> None:
    change(model.model.diffusion_model)
    assert torch.equal(host.sample(compiled(model)), host.sample(model))
    assert reason in node_text()
    assert counters.compiled_calls == 0


def test_a_replaced_class_method_is_noticed(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from comfy.ldm.modules.attention import CrossAttention

    original = CrossAttention.forward
    monkeypatch.setattr(CrossAttention, "forward", lambda self, *args, **kwargs: original(self, *args, **kwargs) * 0.5)
    assert torch.equal(host.sample(compiled(model)), host.sample(model))
    assert "another custom node replaced CrossAttention.forward" in node_text()


@pytest.mark.parametrize("order", [pytest.param("before the node", marks=pytest.mark.full), "after the node"])
def test_torch_compile_of_another_node_goes_first(order: str, model: Any, counters: Counters) -> None:
    from comfy_api.torch_helpers import set_torch_compile_wrapper

    def jit(patcher: Any) -> Any:
        clone = patcher.clone()
        set_torch_compile_wrapper(model=clone, backend="eager")
        return clone

    fast = compiled(jit(model)) if order == "before the node" else jit(compiled(model))
    assert_same(host.sample(fast), host.sample(model))
    assert node_text() == "uncompiled: another node runs this model through torch.compile"
    assert counters.compiled_calls == 0


def test_a_call_that_fails_in_the_graph_goes_on_eager(
    model: Any, counters: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onegraph.runtime.graphs.loaded_graph import LoadedGraph

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("the driver went away")

    reference = host.sample(model)
    monkeypatch.setattr(LoadedGraph, "call", broken)
    assert torch.equal(host.sample(compiled(model)), reference)
    assert "a compiled call failed (RuntimeError: the driver went away)" in node_text()
    assert counters.eager_calls == 2


def test_a_size_outside_the_range_says_so_in_pixels(model: Any, counters: Counters) -> None:
    host.sample(compiled(model), height=48, width=64, steps=1)
    assert node_text() == "uncompiled: height 48 is outside 64..2048 pixels (any size 64-2048)"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"backend": "off"}, "off: the model runs uncompiled"),
        ({"backend": "oneflow"}, "ready: any size, oneflow; starts with the first sampling step"),
        ({}, "ready: any size, inductor; starts with the first sampling step"),
    ],
)
def test_attaching_is_cheap_and_says_what_will_happen(
    options: dict[str, Any], text: str, model: Any, counters: Counters
) -> None:
    patcher, said_at_once = hook.compile_model(model, hook.ModelNodeOptions(**options), "7")
    assert said_at_once == text
    assert (counters.compiles, counters.restores) == (0, 0)
    if options == {"backend": "off"}:
        assert torch.equal(host.sample(patcher), host.sample(model))
        assert counters.compiled_calls == 0


def test_a_node_that_runs_again_inspects_the_model_no_more(
    model: Any, counters: Counters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind another LoRA, say: the modules are the same ones."""
    inspected = 0
    rebuild = ModuleGuard._rebuild

    def noted(self: ModuleGuard, module: torch.nn.Module) -> None:
        nonlocal inspected
        inspected += 1
        rebuild(self, module)

    monkeypatch.setattr(ModuleGuard, "_rebuild", noted)
    expected = host.sample(compiled(model))
    assert inspected == 1
    patched = host.with_lora(model, models.write_lora("tiny_sdxl", tmp_path / "lora.safetensors"), 1.0)
    assert_same(host.sample(compiled(patched)), host.sample(patched))
    assert torch.equal(host.sample(compiled(model)), expected)
    assert inspected == 1 and counters.eager_calls == 0
    model.model.diffusion_model.out[1].register_forward_hook(lambda module, given, result: result * 0.5)
    halved = host.sample(compiled(model))  # changed between two nodes
    assert_same(halved, host.sample(model))
    assert_other(halved, expected)
    assert inspected == 2 and counters.eager_calls > 0


def test_off_takes_an_earlier_node_of_ours_off(model: Any, counters: Counters) -> None:
    host.sample(compiled(compiled(model), backend="off"))
    assert counters.compiled_calls == counters.eager_calls == 0


def test_the_input_model_is_not_changed(model: Any) -> None:
    compiled(model)
    assert not model.wrappers and not model.callbacks


def test_an_error_at_the_end_of_a_run_spares_the_queue(
    model: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(self: Registry, device: torch.device) -> None:
        raise RuntimeError("CUDA error")

    monkeypatch.setattr(Registry, "trim", fails)
    assert torch.isfinite(host.sample(compiled(model))).all()
    assert "the end of a run could not be reported" in caplog.text


def test_few_frames_stand_before_the_graph(model: Any, counters: Counters, monkeypatch: pytest.MonkeyPatch) -> None:
    """From ComfyUI's chain of wrappers to the runner: whoever debugs a step reads these frames."""
    from onegraph.backends.inductor.runner import InductorRunner

    pack = Path(unet_module.__file__).resolve().parents[2]
    found: list[list[str]] = []
    call = InductorRunner.__call__

    def recorded(self: InductorRunner, *inputs: torch.Tensor) -> torch.Tensor:
        files = [(frame.name, Path(frame.filename).resolve()) for frame in traceback.extract_stack()[:-1]]
        ours = [(name, file) for name, file in files if file.is_relative_to(pack)]
        found.append(
            [name for name, file in ours if file.relative_to(pack).parts[0] not in ("tests", "tools", "build", ".venv")]
        )
        return call(self, *inputs)

    monkeypatch.setattr(InductorRunner, "__call__", recorded)
    host.sample(compiled(model), steps=3)
    assert counters.eager_calls == 0
    assert found[-1] == ["wrapper", "_innermost", "dispatch", "serve", "_serve", "_attempt", "call", "_run"]
