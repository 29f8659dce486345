"""UNets with quantised layers of ComfyUI's own, compiled as a whole: as near to eager as two right results are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from headless import host
from support.models import quantised
from support.scenes.process import new_process

from onegraph.host.calls import model_hook
from onegraph.host.show import status
from onegraph.host.weights.quantised import exact_block
from onegraph.runtime.counters import Counters
from onegraph.runtime.graphs.faithfulness import relative_l2
from onegraph.runtime.obtain.registry import Registry

from .conftest import NODE, compiled, node_text

pytestmark = pytest.mark.usefixtures("inference")
CALLS: list[dict[str, Any]] = [{"height": 136, "width": 200, "batch": 2}, {"cfg": 1.0, "tokens": 154}]


def load(path: Path, which: str) -> Any:
    """The MODEL of a checkpoint in bfloat16, the layers of its transformers quantised as a file would have them."""
    from comfy.ops import mixed_precision_ops

    model, wanted = host.load(path, dtype=torch.bfloat16), quantised.FORMATS[which]
    module = model.model.diffusion_model
    ops = mixed_precision_ops({}, torch.bfloat16, disabled={wanted.format} if wanted.emulated else set())
    for name, layer in [*module.named_modules()]:
        if isinstance(layer, torch.nn.Linear) and ".transformer_blocks." in name:
            parent, _, last = name.rpartition(".")
            setattr(module.get_submodule(parent), last, quantised.quantised(layer, wanted, ops))
    return model


def own_error(model: Any) -> float:
    """How far eager is from the same sampling with a UNet in float32, of weights that were dequantised."""
    module = model.model.diffusion_model
    right = exact_block(module)

    def forward(*args: Any, **kwargs: Any) -> torch.Tensor:
        def floats(one: Any) -> Any:
            return one.float() if isinstance(one, torch.Tensor) and one.is_floating_point() else one

        given = {name: floats(one) for name, one in kwargs.items()}
        found: torch.Tensor = type(module)._forward(right, *map(floats, args), **given)
        return found.to(torch.bfloat16)

    eager = host.sample(model)
    vars(module)["_forward"] = forward
    try:
        return relative_l2(eager, host.sample(model))
    finally:
        del vars(module)["_forward"]


def quantised_layers(model: Any) -> list[Any]:
    return [one for one in model.model.modules() if getattr(one, "quant_format", None)]


@pytest.mark.full
@pytest.mark.parametrize("which", ["fp8 scaled", "fp8 scaled, emulated", "int8"])
def test_lifecycle(
    which: str, checkpoint: Callable[..., Path], counters: Counters, fresh_process: Registry, tmp_path: Path
) -> None:
    """Sizes; a LoRA on, weaker, off; other values behind its back; a new process: one compile."""
    model = load(checkpoint(), which)
    error = own_error(model)
    assert 1e-4 < error < 0.2

    def check(one: Any, **call: Any) -> torch.Tensor:
        before = counters.eager_calls
        found, wanted = host.sample(compiled(one), **call), host.sample(one, **call)
        assert relative_l2(found, wanted) <= 2 * error, (relative_l2(found, wanted), error, counters.binds)
        assert counters.eager_calls == before, status.last_runs[NODE].text()
        return wanted

    plain = check(model)
    for call in CALLS:
        check(model, **call)
    compiles = counters.compiles
    assert compiles == 1
    layers = {key: one for key, one in model.model.named_modules() if getattr(one, "quant_format", None)}
    torch.manual_seed(5)
    patches = {f"{key}.weight": ("diff", (0.03 * torch.randn(one.weight.shape),)) for key, one in layers.items()}
    for strength in (1.0, 0.3):
        adapted = model.clone()
        assert len(adapted.add_patches(patches, strength)) == len(patches)
        assert relative_l2(check(adapted), plain) > 2 * error
    assert relative_l2(check(model), plain) <= 2 * error
    for layer in quantised_layers(model):
        layer.weight._qdata = layer.weight._qdata.flip(0).contiguous()
    assert relative_l2(check(model), plain) > 2 * error
    assert counters.compiles == compiles
    with new_process(fresh_process.store.home) as process:
        host.sample(compiled(model))
        assert (process.counters.compiles, process.counters.eager_calls) == (0, 0)


@pytest.mark.full
@pytest.mark.parametrize("operations", ["manual_cast", "fp8_ops"])
def test_float8_without_scales(
    operations: str, checkpoint: Callable[..., Path], counters: Counters, fresh_process: Registry
) -> None:
    """Cast at each use, or multiplied with an input in float8 (--fast fp8_matrix_mult); and in a new process.

    Two results that are rounded from one are further apart than each is from that one, by the root of two.
    """
    import comfy.ops

    model = host.load(checkpoint(), dtype=torch.bfloat16)
    model.set_model_compute_dtype(torch.bfloat16)
    module = model.model.diffusion_model
    for name, one in [*module.named_modules()]:
        if isinstance(one, torch.nn.Linear) and ".transformer_blocks." in name:
            parent, _, last = name.rpartition(".")
            made = quantised.in_float8(one, getattr(comfy.ops, operations))
            setattr(module.get_submodule(parent), last, made)
    error = own_error(model)
    assert error < 4e-2
    host.sample(compiled(model))
    for call in ({}, *CALLS):
        assert relative_l2(host.sample(compiled(model), **call), host.sample(model, **call)) <= 1.5 * error, call
    assert (counters.compiles, counters.eager_calls) == (1, 0), node_text()
    with new_process(fresh_process.store.home) as process:
        host.sample(compiled(model))
        assert (process.counters.compiles, process.counters.eager_calls) == (0, 0), node_text()


def test_a_layer_of_a_format_without_a_graph_is_the_reason(checkpoint: Callable[..., Path], counters: Counters) -> None:
    model = load(checkpoint(), "fp8 scaled")
    quantised_layers(model)[0].quant_format = "int3"
    host.sample(compiled(model))
    assert counters.compiles == counters.compiled_calls == 0
    assert "int3" in node_text()


def test_oneflow_has_no_such_graphs(checkpoint: Callable[..., Path], counters: Counters) -> None:
    model = load(checkpoint(), "fp8 scaled")
    host.sample(model_hook.compile_model(model, model_hook.ModelNodeOptions(backend="oneflow"), NODE)[0])
    assert counters.compiles == counters.compiled_calls == 0
    assert "quantised weights" in node_text()
