"""Compiled VAEs: right, finite, shared, never compiled inside tiles, and the input VAE never changed."""

from __future__ import annotations

import contextlib
import copy
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from headless import host
from support.scenes.nodes import NODE, compiled_vae, told

from onegraph.common.errors import NoEncoderError
from onegraph.common.reasons import NoGraph
from onegraph.graph_cache.lookup import Miss
from onegraph.host.calls.vae import hook
from onegraph.runtime.counters import Counters
from onegraph.runtime.graphs.faithfulness import relative_l2
from onegraph.runtime.obtain.registry import Registry

pytestmark = pytest.mark.usefixtures("inference", "vae_compiled_once")
SAME = 1e-4


def node_text(part: str = "decoder") -> str:
    return told(f"{NODE}:{part}")


def latents(batch: int = 1, height: int = 16, width: int = 16, seed: int = 0) -> torch.Tensor:
    return torch.randn(batch, 4, height, width, generator=torch.Generator().manual_seed(seed))


def pixels(batch: int = 1, height: int = 96, width: int = 96, seed: int = 0) -> torch.Tensor:
    return torch.rand(batch, height, width, 3, generator=torch.Generator().manual_seed(seed))


def test_decode_of_any_size_and_batch_equals_eager(vae: Any, counters: Counters) -> None:
    fast = compiled_vae(vae)
    for shape in ((1, 16, 16), (1, 9, 21), (3, 12, 8), (2, 24, 16)):
        z = latents(*shape)
        assert relative_l2(fast.decode(z), vae.decode(z)) < SAME
    assert (counters.compiles, counters.restores, counters.eager_calls) == (0, 1, 0)
    assert node_text().startswith("compiled, any size 16-2048")
    assert node_text().endswith("(auto: one graph for any size)")


def test_encode_of_any_size_and_batch_equals_eager(vae: Any, counters: Counters) -> None:
    """ComfyUI hands the encoder a tensor that is not contiguous."""
    fast = compiled_vae(vae)
    for shape in ((1, 96, 96), (2, 64, 136), (1, 100, 75)):  # the last one is cropped to 96x72
        image = pixels(*shape)
        torch.manual_seed(0)
        reference = vae.encode(image)
        torch.manual_seed(0)
        assert relative_l2(fast.encode(image), reference) < SAME
    assert (counters.compiles, counters.restores, counters.eager_calls) == (0, 1, 0)


@contextlib.contextmanager
def as_dtype(vae: Any, dtype: torch.dtype) -> Iterator[Any]:
    """The VAE as ComfyUI runs it in another dtype."""
    before = vae.vae_dtype
    vae.first_stage_model.to(dtype)
    vae.vae_dtype = dtype
    try:
        yield vae
    finally:
        vae.first_stage_model.to(before)
        vae.vae_dtype = before


@pytest.mark.parametrize(
    ("dtype", "images"),
    [
        pytest.param(torch.float32, 12, id="float32"),
        pytest.param(torch.float32, 50, id="float32, fifty", marks=pytest.mark.full),
        pytest.param(torch.bfloat16, 50, id="bfloat16, fifty", marks=pytest.mark.full),
    ],
)
def test_images_are_finite_and_as_exact_as_eager(
    dtype: torch.dtype, images: int, vae: Any, checkpoint: Callable[..., Path], counters: Counters
) -> None:
    """The error against a run in higher precision is at most 1.5 times eager's own."""
    higher = torch.float64 if dtype == torch.float32 else torch.float32
    exact = copy.deepcopy(vae.first_stage_model).to(higher)
    with as_dtype(vae, dtype):
        module, proxy = vae.first_stage_model, compiled_vae(vae).first_stage_model
        outer = proxy.onegraph_hook
        errors: dict[str, list[float]] = {"eager": [], "compiled": []}
        for seed in range(images):
            image = (2 * pixels(1, 64, 64, seed).movedim(-1, 1) - 1).to(dtype)
            with outer.call("encoder", vae, "whole"):
                code = proxy.encode(image)
            with outer.call("decoder", vae, "whole"):
                result = proxy.decode(code)
            assert bool(torch.isfinite(code).all()) and bool(torch.isfinite(result).all())
            torch.testing.assert_close(code, module.encode(image), rtol=0.1, atol=0.1)
            truth = exact.decode(code.to(higher))
            errors["compiled"].append(relative_l2(result, truth))
            errors["eager"].append(relative_l2(module.decode(code), truth))
    assert sum(errors["compiled"]) <= 1.5 * sum(errors["eager"])
    assert counters.eager_calls == 0
    assert counters.compiles == (0 if dtype == torch.float32 else 2)


def test_the_input_vae_is_not_changed(vae: Any) -> None:
    module, attributes, vae_class = vae.first_stage_model, dict(vars(vae)), type(vae)
    fast = compiled_vae(vae)
    fast.decode(latents())
    assert vae.first_stage_model is module and type(vae) is vae_class and vars(vae) == attributes
    assert fast.patcher is vae.patcher and fast.first_stage_model.onegraph_module is module
    assert isinstance(fast, vae_class)
    assert set(fast.get_sd()) == set(vae.get_sd())


def test_two_nodes_on_one_vae_share_graph_and_weights(vae: Any, counters: Counters) -> None:
    first, second = compiled_vae(vae), compiled_vae(vae, parts="decoder")
    z = latents()
    assert torch.equal(first.decode(z), second.decode(z))
    assert counters.restores == 1
    assert first.first_stage_model.onegraph_module is second.first_stage_model.onegraph_module


def test_the_node_twice_in_a_row_hooks_once(vae: Any, counters: Counters) -> None:
    twice = compiled_vae(compiled_vae(vae))
    twice.decode(latents())
    assert counters.compiled_calls == 1
    off, text = hook.compile_vae(twice, hook.VaeNodeOptions(backend="off"), NODE)
    off.decode(latents())
    assert text == "off: the VAE runs uncompiled"
    assert type(off) is type(vae) and counters.compiled_calls == 1


def test_only_the_chosen_part_is_compiled(vae: Any, counters: Counters) -> None:
    fast = compiled_vae(vae, parts="decoder")
    fast.encode(pixels())
    assert counters.compiled_calls == 0
    fast.decode(latents())
    assert counters.compiled_calls == 1


def test_tiles_are_served_by_a_kept_graph(vae: Any, counters: Counters) -> None:
    fast, z = compiled_vae(vae), latents(1, 24, 20)
    result = fast.decode_tiled(z, tile_x=16, tile_y=16, overlap=4)
    assert relative_l2(result, vae.decode_tiled(z, tile_x=16, tile_y=16, overlap=4)) < SAME
    assert counters.compiles == 0 and counters.compiled_calls > 4
    assert "(tiles never compile)" in node_text()
    image = pixels(1, 160, 128)
    assert bool(torch.isfinite(fast.encode_tiled(image, tile_x=96, tile_y=96, overlap=16)).all())
    assert counters.eager_calls == 0


def test_tiles_never_compile(vae: Any, fresh_process: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh_process.store, "find", lambda *args: Miss(NoGraph()))
    monkeypatch.setattr(fresh_process.store, "take", lambda *args: None)
    z = latents(1, 24, 20)
    result = compiled_vae(vae).decode_tiled(z, tile_x=16, tile_y=16, overlap=4)
    assert torch.equal(result, vae.decode_tiled(z, tile_x=16, tile_y=16, overlap=4))
    assert fresh_process.counters.compiles == fresh_process.counters.compiled_calls == 0
    assert node_text() == "uncompiled: no graph is cached for this model yet"


def test_running_out_of_memory_tiles_without_compiling(
    vae: Any, counters: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    import comfy.model_management

    fast, z, whole = compiled_vae(vae, when_missing="eager"), latents(1, 32, 32), []

    def limited(self: Any, part: str, module: Any, x: torch.Tensor, eager: Any) -> torch.Tensor:
        if not whole:
            whole.append(1)
            raise comfy.model_management.OOM_EXCEPTION("no memory for a whole image")
        return serve_all(self, part, module, x, eager)

    serve_all = hook.VaeHook.serve
    monkeypatch.setattr(hook.VaeHook, "serve", limited)
    result = fast.decode(z)
    assert result.shape == (1, 256, 256, 3) and bool(torch.isfinite(result).all())
    assert "(tiles never compile)" in node_text()
    assert counters.compiles == 0


def test_a_batch_split_by_low_memory_is_served(vae: Any, counters: Counters, monkeypatch: pytest.MonkeyPatch) -> None:
    z = latents(3)
    reference = vae.decode(z)
    monkeypatch.setattr(vae.patcher, "get_free_memory", lambda device: 1)
    assert relative_l2(compiled_vae(vae).decode(z), reference) < SAME
    assert (counters.compiles, counters.eager_calls) == (0, 0)


@pytest.mark.parametrize("rule", ["skip", "any size", "auto"])
def test_changing_resolutions_compile_by_the_rule(rule: str, vae: Any, counters: Counters) -> None:
    fast = compiled_vae(vae, dynamic_resolution=rule)
    for side in range(8, 18):
        z = latents(1, side, 10)
        assert relative_l2(fast.decode(z), vae.decode(z)) < SAME
    assert counters.compiles == 0
    assert counters.eager_calls == (10 if rule == "skip" else 0)
    if rule == "skip":
        assert node_text() == "uncompiled: skip: the resolution varies (10 so far)"


def test_an_overflow_is_told_or_quarantines_the_graph(
    vae: Any, counters: Counters, fresh_process: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = compiled_vae(vae, when_missing="eager")
    fast.decode(latents())
    with torch.inference_mode():
        weight = vae.first_stage_model.decoder.conv_out.weight
        kept = weight.clone()
        weight.mul_(1e38).mul_(1e3)
    result = fast.decode(latents())
    assert not bool(torch.isfinite(vae.decode(latents())).all()) or result.shape == (1, 128, 128, 3)
    assert node_text() == "uncompiled: this VAE itself overflows in float32 on this image; use another VAE"
    assert all(graph.retired is None for graph in fresh_process.graphs())
    weight.copy_(kept)
    assert fast.decode(latents()).isfinite().all()
    assert node_text().startswith("compiled, any size")


def test_a_graph_that_is_not_finite_returns_nothing(
    vae: Any, fresh_process: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = compiled_vae(vae, when_missing="eager")
    fast.decode(latents())
    (graph,) = fresh_process.graphs()
    runner, folder = graph._runners.first.runner, graph.entry.folder

    class NotFinite:
        def __getattr__(self, name: str) -> Any:
            return getattr(runner, name)

        def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
            return runner(*inputs) * float("nan")

    monkeypatch.setattr(graph._runners.first, "runner", NotFinite())
    monkeypatch.setattr(fresh_process.store, "quarantine", lambda place: None)  # other tests use the graph
    assert torch.equal(fast.decode(latents()), vae.decode(latents()))
    assert "not finite where the uncompiled model's are; it is not used again" in node_text()
    assert torch.equal(fast.decode(latents()), vae.decode(latents()))
    assert graph.retired is not None and folder.exists()


def test_a_vae_without_an_encoder_refuses_to_encode(checkpoint: Callable[..., Path], counters: Counters) -> None:
    """ComfyUI would answer with the latents of uninitialised memory."""
    vae = host.load_vae(checkpoint(vae="decoder"))
    fast = compiled_vae(vae)
    for encode in (fast.encode, fast.encode_tiled):
        with pytest.raises(NoEncoderError, match="no encoder, so it can only decode; load a complete VAE"):
            encode(pixels())
    fast.decode(latents())
    assert node_text().startswith("restored in")
    assert compiled_vae(vae, parts="decoder").encode(pixels()).shape == (1, 4, 12, 12)  # not our business then


@pytest.mark.parametrize(
    ("names", "encodes"),
    [
        (["first_stage_model.decoder.x", "first_stage_model.encoder.x"], True),
        (["first_stage_model.decoder.x", "conditioner.encoder.x"], False),
        (["decoder.x"], False),
        (["decoder.x", "encoder.x"], True),
        (["vae.decoder.x", "vae.encoder.x"], True),
        (["a.naming.nobody.knows"], True),
    ],
)
def test_what_counts_as_a_vae_without_an_encoder(names: list[str], encodes: bool, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({name: torch.zeros(1) for name in names}, tmp_path / "vae.safetensors")
    assert hook.has_encoder(tmp_path / "vae.safetensors") is encodes


def test_two_nodes_hold_one_set_of_weights(vae: Any) -> None:
    """Measured: the process grows by less than half an encoder when two nodes run it through its graph."""
    weights = sum(p.numel() * p.element_size() for p in vae.first_stage_model.encoder.parameters())
    vae.encode(pixels())  # whatever eager needs for itself
    before, tensors = psutil.Process().memory_info().rss, _bytes_of_tensors()
    for node in (compiled_vae(vae), compiled_vae(vae)):
        node.encode(pixels())
    assert weights > 100e6
    assert psutil.Process().memory_info().rss - before < weights / 2
    assert _bytes_of_tensors() - tensors < weights / 100


def _bytes_of_tensors() -> int:
    """Bytes of all distinct storages that Python holds."""
    gc.collect()
    storages = {}
    for held in gc.get_objects():
        if type(held) in (torch.Tensor, torch.nn.Parameter) and held.device.type == "cpu":
            storages[held.untyped_storage().data_ptr()] = held.untyped_storage().nbytes()
    return sum(storages.values())


def test_taesd(counters: Counters) -> None:
    import comfy.sd
    from comfy.taesd.taesd import TAESD
    from headless import models

    state = models.seeded(TAESD(latent_channels=4).state_dict(), 5)
    vae = comfy.sd.VAE(sd={k: v.float() for k, v in state.items()})
    assert type(vae.first_stage_model) is TAESD
    fast = compiled_vae(vae, parts="decoder")
    for shape in ((1, 16, 16), (2, 10, 24)):
        z = latents(*shape)
        assert relative_l2(fast.decode(z), vae.decode(z)) < SAME
    assert (counters.compiles, counters.eager_calls) == (1, 0)


def test_audio_vaes_pass_through(vae: Any) -> None:
    video = copy.copy(vae)
    video.latent_dim = 1
    passed, text = hook.compile_vae(video, hook.VaeNodeOptions(), NODE)
    assert passed is video
    assert text == "uncompiled: AutoencoderKL is a video or audio VAE"


def test_load_checkpoint_gives_all_three(checkpoint: Callable[..., Path], counters: Counters) -> None:
    from onegraph.host.comfyui.loader import checkpoint_names
    from onegraph.nodes.load_checkpoint import OneGraphLoadCheckpoint

    name = checkpoint(vae="both").name
    assert name in checkpoint_names()
    model, _clip, fast = OneGraphLoadCheckpoint.execute(name, "auto", "any size", "eager", "both", "auto").args
    fast.decode(latents())
    assert isinstance(fast.first_stage_model, hook.VaeProxy) and "onegraph" in str(model.wrappers)
    assert counters.compiled_calls == 1
