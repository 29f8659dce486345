"""What other nodes do with a compiled VAE and its `first_stage_model` works as with ComfyUI's own VAE."""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.scenes.nodes import NODE, compiled_vae, told

from onegraph.common.reasons import ReplacedPart, VaeMethodReplaced
from onegraph.host.calls import component
from onegraph.host.calls.vae import hook
from onegraph.host.show import progress, status
from onegraph.runtime.counters import Counters
from onegraph.runtime.graphs.faithfulness import relative_l2
from onegraph.runtime.obtain.registry import Registry

pytestmark = pytest.mark.usefixtures("inference", "vae_compiled_once")
SAME = 1e-4


def compiled(vae: Any, **options: Any) -> Any:
    return compiled_vae(vae, **{"parts": "decoder", "when_missing": "eager", **options})


def node_text() -> str:
    return told(f"{NODE}:decoder")


def latents(height: int = 16, width: int = 16, seed: int = 0) -> torch.Tensor:
    return torch.randn(1, 4, height, width, generator=torch.Generator().manual_seed(seed))


def test_it_is_a_module_of_the_same_class_and_state(vae: Any) -> None:
    module, proxy = vae.first_stage_model, compiled(vae).first_stage_model
    assert isinstance(proxy, type(module)) and callable(proxy) and repr(proxy) == repr(module)
    assert [n for n, _ in proxy.named_modules()] == [n for n, _ in module.named_modules()]
    assert list(proxy.modules())[1:] == list(module.modules())[1:]
    assert all(proxy.state_dict()[name] is not None for name in module.state_dict())
    assert [id(p) for p in proxy.parameters()] == [id(p) for p in module.parameters()]
    image = torch.rand(1, 3, 64, 64)
    assert torch.equal(proxy(image)[1], module(image)[1])
    proxy.to(torch.float64)
    assert module.decoder.conv_in.weight.dtype == torch.float64


def test_attributes_set_on_it_are_the_modules(vae: Any) -> None:
    module, proxy = vae.first_stage_model, compiled(vae).first_stage_model
    proxy.tile_hint = 3
    module.other = 4
    proxy.register_buffer("scale", torch.ones(1))
    assert (module.tile_hint, proxy.other) == (3, 4) and "scale" in module.state_dict()
    del proxy.tile_hint
    assert not hasattr(module, "tile_hint")
    assert not [name for name in vars(module) if "onegraph" in name]


def test_another_decoder_set_through_it_decodes(vae: Any) -> None:
    fast, z = compiled(vae), latents()
    before = fast.decode(z)
    other = copy.deepcopy(vae.first_stage_model.decoder)
    other.conv_out.bias.add_(0.3)
    fast.first_stage_model.decoder = other
    assert vae.first_stage_model.decoder is other
    result = fast.decode(z)
    assert relative_l2(result, vae.decode(z)) < SAME < relative_l2(result, before)


def test_a_decoder_of_another_kind_runs_eager(vae: Any) -> None:
    class Brighter(torch.nn.Module):
        def __init__(self, decoder: torch.nn.Module) -> None:
            super().__init__()
            self.decoder = decoder

        def forward(self, z: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.decoder(z) + 0.2
            return result

    fast, z = compiled(vae), latents()
    fast.decode(z)
    fast.first_stage_model.decoder = Brighter(vae.first_stage_model.decoder)
    assert torch.equal(fast.decode(z), vae.decode(z))
    assert node_text() == "uncompiled: AutoencoderKL has an unusual encoder or decoder"


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_its_copies_decode_by_themselves_and_in_a_vae(copied: Callable[[Any], Any], vae: Any) -> None:
    fast, module, z = compiled(vae), vae.first_stage_model, latents()
    other = copied(fast.first_stage_model)
    assert isinstance(other, type(module)) and vars(other) is not vars(module)
    assert torch.equal(other.decode(z), module.decode(z))
    fast.first_stage_model = other
    assert relative_l2(fast.decode(z), vae.decode(z)) < SAME
    assert node_text().startswith("restored in ")


def test_it_is_pickled_as_the_plain_module(vae: Any) -> None:
    module, z = vae.first_stage_model, latents()
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        other = pickle.loads(pickle.dumps(compiled(vae).first_stage_model, protocol))
        assert type(other) is type(module) and other is not module
    assert torch.equal(other.decode(z), module.decode(z))


def test_a_shallow_copy_of_the_vae_uses_the_graph(vae: Any, counters: Counters) -> None:
    other, z = copy.copy(compiled(vae)), latents()
    assert relative_l2(other.decode(z), vae.decode(z)) < SAME
    assert (counters.compiled_calls, counters.eager_calls) == (1, 0)


def test_a_deep_copy_is_served_with_its_own_weights(vae: Any, counters: Counters) -> None:
    fast, z = compiled(vae), latents()
    fast.decode(z)
    other = copy.deepcopy(fast)
    module = other.first_stage_model.onegraph_module
    assert module is other.patcher.model is not vae.patcher.model
    module.decoder.conv_out.bias.add_(0.3)
    changed = copy.deepcopy(vae)
    changed.first_stage_model.decoder.conv_out.bias.add_(0.3)
    for _ in range(2):  # in turns: the graph is bound to the one and to the other
        assert relative_l2(other.decode(z), changed.decode(z)) < SAME
        assert relative_l2(fast.decode(z), vae.decode(z)) < SAME
    assert relative_l2(changed.decode(z), vae.decode(z)) > SAME
    assert (counters.compiled_calls, counters.eager_calls) == (5, 0)


def circular(vae: Any) -> Any:
    """What nodes for seamless tiling do to a VAE."""
    for layer in vae.first_stage_model.modules():
        if isinstance(layer, torch.nn.Conv2d):
            layer.padding_mode = "circular"
    return vae


def test_a_deep_copy_made_circular_spares_the_original(vae: Any, counters: Counters) -> None:
    fast, z = compiled(vae), latents()
    plain = fast.decode(z)
    other, reference = circular(copy.deepcopy(fast)), circular(copy.deepcopy(vae)).decode(z)
    assert torch.equal(other.decode(z), reference)
    assert relative_l2(reference, plain) > 0.01
    assert torch.equal(fast.decode(z), plain)
    assert (counters.compiled_calls, counters.eager_calls) == (2, 1)


def test_replacing_first_stage_model_is_told_on_ours(vae: Any, counters: Counters) -> None:
    other, z = copy.copy(compiled(vae)), latents()
    other.patcher = other.patcher.clone()
    other.first_stage_model = other.patcher.model
    assert torch.equal(other.decode(z), vae.decode(z))
    reason = VaeMethodReplaced("first_stage_model")
    assert progress.texts[NODE] == f"decoder: uncompiled: {reason.text}"
    assert (counters.eager_calls, counters.reasons) == (1, {reason: 1})
    other.encode(torch.rand(1, 64, 64, 3))  # not what this node compiles
    assert counters.eager_calls == 1
    again = compiled(other)
    assert relative_l2(again.decode(z), vae.decode(z)) < SAME
    assert node_text().startswith("restored in ")


def test_a_wrapped_decode_is_called_once_and_told(vae: Any) -> None:
    fast, z, seen = compiled(vae), latents(), []
    original = fast.first_stage_model.decode

    def wrapper(z: torch.Tensor) -> torch.Tensor:
        seen.append(z)
        result: torch.Tensor = original(z) + 0.1
        return result

    reference = vae.first_stage_model.decode(z)
    fast.first_stage_model.decode = wrapper
    assert relative_l2(fast.first_stage_model.decode(z), reference + 0.1) < SAME
    fast.decode(z)
    assert len(seen) == 2
    fast.first_stage_model.decode = lambda z: reference
    fast.decode(z)
    assert node_text() == "uncompiled: another node replaced this VAE's decode"


def test_options_of_a_call_are_the_modules_business(vae: Any, counters: Counters) -> None:
    vae.first_stage_model.decoder.forward = lambda z, brighter=0.0: torch.zeros(1, 3, 128, 128) + brighter
    result = compiled(vae).decode(latents(), vae_options={"brighter": 0.5})
    assert torch.equal(result, vae.decode(latents(), vae_options={"brighter": 0.5}))
    assert node_text() == "uncompiled: the workflow passes options to this VAE's decode"


# Tiles ------------------------------------------------------------------------------------------------------


TILED = {"tile_x": 16, "tile_y": 16, "overlap": 4}


@contextlib.contextmanager
def looks() -> Iterator[list[str]]:
    """Every time that Python asks for a tensor's value, which on a GPU waits for the device."""
    seen: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("__bool__", "item", "tolist", "__float__", "__int__"):
            original = getattr(torch.Tensor, name)

            def counted(self: torch.Tensor, name: str = name, original: Any = original) -> Any:
                seen.append(name)
                return original(self)

            patch.setattr(torch.Tensor, name, counted)
        yield seen


def test_tiles_are_looked_at_once(vae: Any, counters: Counters, monkeypatch: pytest.MonkeyPatch) -> None:
    fast, z, waits = compiled(vae), latents(40, 40), []
    fast.decode(z)
    for module in (hook, component):
        monkeypatch.setattr(module, "wait_for", waits.append)
    with looks() as by_eager:
        reference = vae.decode_tiled(z, **TILED)
    before = counters.compiled_calls
    with looks() as by_graph:
        result = fast.decode_tiled(z, **TILED)
    assert relative_l2(result, reference) < SAME
    assert counters.compiled_calls - before > 16
    assert by_graph == [*by_eager, "tolist"]
    assert len(waits) == 1  # when it is over
    assert status.last_runs[f"{NODE}:decoder"].call_ms is None


class NotFinite:
    """A runner whose results are not finite from its n-th call on."""

    def __init__(self, runner: Any, good: int) -> None:
        self._runner = runner
        self._good = good

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self._runner(*inputs)
        self._good -= 1
        if self._good < 0:
            result[..., 3, 3] = float("inf")
        return result


def test_one_tile_not_finite_makes_the_image_eager(
    vae: Any, fresh_process: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, z = compiled(vae), latents(24, 20)
    fast.decode(z)
    (graph,) = fresh_process.graphs()
    monkeypatch.setattr(graph._runners.first, "runner", NotFinite(graph._runners.first.runner, 5))
    monkeypatch.setattr(fresh_process.store, "quarantine", lambda place: None)  # other tests use the graph
    reference = vae.decode_tiled(z, **TILED)
    assert torch.equal(fast.decode_tiled(z, **TILED), reference)
    assert node_text() == (
        "uncompiled: the graph returned values that are not finite where the uncompiled model's are; "
        "it is not used again"
    )
    assert graph.retired is not None
    report = status.last_runs[f"{NODE}:decoder"]
    assert report.compiled_calls == 0 and report.calls == fresh_process.counters.eager_calls > 5
    assert torch.equal(fast.decode_tiled(z, **TILED), reference)


def test_tiles_that_overflow_the_vae_retire_no_graph(vae: Any, fresh_process: Registry) -> None:
    fast, z = compiled(vae), latents(24, 20)
    fast.decode(z)
    vae.first_stage_model.decoder.conv_out.weight.mul_(1e38).mul_(1e3)
    fast.decode_tiled(z, **TILED)
    assert node_text() == "uncompiled: this VAE itself overflows in float32 on this image; use another VAE"
    assert all(graph.retired is None for graph in fresh_process.graphs())


@pytest.mark.full
def test_encoding_tiles_again_draws_the_same_noise(
    vae: Any, fresh_process: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    vae.first_stage_model.regularization.sample = True
    image = torch.rand(1, 128, 128, 3, generator=torch.Generator().manual_seed(0))
    fast, tiles = compiled(vae, parts="encoder", when_missing="wait"), {"tile_x": 96, "tile_y": 96, "overlap": 16}
    fast.encode(image)
    (graph,) = fresh_process.graphs()
    monkeypatch.setattr(graph._runners.first, "runner", NotFinite(graph._runners.first.runner, 1))
    monkeypatch.setattr(fresh_process.store, "quarantine", lambda place: None)
    torch.manual_seed(3)
    reference = vae.encode_tiled(image, **tiles)
    torch.manual_seed(3)
    assert torch.equal(fast.encode_tiled(image, **tiles), reference)
    assert graph.retired is not None


def test_chosen_attention_is_not_in_the_architecture(vae: Any) -> None:
    """Which of its functions that is depends on options and packages; a graph has its own attention anyway."""
    from comfy.ldm.modules.diffusionmodules import model as blocks

    from onegraph.compiler.code import fingerprint
    from onegraph.host.weights import eligibility
    from onegraph.runtime.guards.module_guard import ModuleGuard

    module, rules = vae.first_stage_model, eligibility.rules()
    before, guard = fingerprint.digest(module, rules), ModuleGuard(module, rules)
    block = module.decoder.mid.attn_1
    for own in (blocks.normal_attention, blocks.pytorch_attention, blocks.xformers_attention):
        block.optimized_attention = own
        guard.refresh(module)
        assert guard.patched is None
        assert fingerprint.digest(module, rules) == before
    block.optimized_attention = lambda q, k, v: v
    guard.refresh(module)
    assert isinstance(guard.patched, ReplacedPart) and guard.patched.what == "optimized_attention"
